use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;

use super::{
    Algorithm, ClaimSource, HeaderError, Jwk, KeysError, LEEWAY, Timestamp, TokenError, Value, Verifier,
};

const SECRET: &[u8] = b"a secret that is long enough for HS256";
const NOW: u64 = 1_800_000_000;

fn now() -> Timestamp {
    Timestamp::from_secs(NOW)
}

fn claims() -> Value {
    json!({ "sub": "alice", "org": "acme", "exp": NOW + 600 })
}

fn signed(algorithm: Algorithm, id: Option<&str>, key: &EncodingKey, claims: &Value) -> String {
    let header = Header { kid: id.map(str::to_owned), ..Header::new(algorithm) };
    encode(&header, claims, key).unwrap()
}

fn hs256(claims: &Value) -> String {
    signed(Algorithm::HS256, None, &EncodingKey::from_secret(SECRET), claims)
}

fn subject(verifier: &Verifier, token: &str) -> Result<String, TokenError> {
    let claims = verifier.verify(token.as_bytes(), now())?;
    Ok(claims.get("sub").unwrap_or_default().to_owned())
}

fn rsa_key() -> EncodingKey {
    /// The length of the PKCS #8 header before the key.
    const PKCS8_HEAD: usize = 26;
    let pair = aws_lc_rs::rsa::KeyPair::generate(KeySize::Rsa2048).unwrap();
    let der: aws_lc_rs::encoding::Pkcs8V1Der<'_> = pair.as_der().unwrap();
    EncodingKey::from_rsa_der(&der.as_ref()[PKCS8_HEAD..])
}

fn ec_key() -> EncodingKey {
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    EncodingKey::from_ec_der(pair.to_pkcs8v1().unwrap().as_ref())
}

/// The public half of `key` as a member of a key set.
fn public(key: &EncodingKey, algorithm: Algorithm, id: &str) -> Value {
    let mut jwk = Jwk::from_encoding_key(key, algorithm).unwrap();
    jwk.common.key_id = Some(id.to_owned());
    serde_json::to_value(jwk).unwrap()
}

fn jwks(keys: &[Value]) -> Result<Verifier, KeysError> {
    Verifier::jwks(json!({ "keys": keys }).to_string().as_bytes())
}

#[test]
fn secret_verifies_its_own_signature() {
    let verifier = Verifier::hs256(SECRET).unwrap();
    assert_eq!(subject(&verifier, &hs256(&claims())), Ok("alice".to_owned()));
    let with_line_end = Verifier::hs256(&[SECRET, b"\r\n"].concat()).unwrap();
    assert_eq!(subject(&with_line_end, &hs256(&claims())), Ok("alice".to_owned()));
    let other = Verifier::hs256(b"another secret").unwrap();
    assert_eq!(subject(&other, &hs256(&claims())), Err(TokenError::Signature));
    assert!(matches!(Verifier::hs256(b"\n"), Err(KeysError::NoSecret)));
}

#[test]
fn key_set_selects_key_by_algorithm_and_key_id() {
    let (rsa, other, curve) = (rsa_key(), rsa_key(), ec_key());
    let verifier = jwks(&[
        public(&other, Algorithm::RS256, "other"),
        public(&rsa, Algorithm::RS256, "rsa"),
        public(&curve, Algorithm::ES256, "ec"),
    ])
    .unwrap();
    let alice = || Ok("alice".to_owned());
    assert_eq!(subject(&verifier, &signed(Algorithm::RS256, Some("rsa"), &rsa, &claims())), alice());
    assert_eq!(subject(&verifier, &signed(Algorithm::RS256, None, &rsa, &claims())), alice());
    assert_eq!(subject(&verifier, &signed(Algorithm::ES256, Some("ec"), &curve, &claims())), alice());
    let wrong_id = signed(Algorithm::RS256, Some("other"), &rsa, &claims());
    assert_eq!(subject(&verifier, &wrong_id), Err(TokenError::Signature));
    let unknown_id = signed(Algorithm::RS256, Some("new"), &rsa, &claims());
    assert_eq!(subject(&verifier, &unknown_id), Err(TokenError::NoKey));
    let other_algorithm = signed(Algorithm::RS512, Some("rsa"), &rsa, &claims());
    assert_eq!(subject(&verifier, &other_algorithm), Err(TokenError::NoKey));
}

#[test]
fn token_algorithm_that_differs_from_the_key_is_rejected() {
    let rsa = rsa_key();
    let key = public(&rsa, Algorithm::RS256, "rsa");
    let verifier = jwks(std::slice::from_ref(&key)).unwrap();
    // The public key as an HMAC secret, in the forms an attacker would try.
    for secret in [key["n"].as_str().unwrap().to_owned(), key.to_string()] {
        let confused =
            signed(Algorithm::HS256, Some("rsa"), &EncodingKey::from_secret(secret.as_bytes()), &claims());
        assert_eq!(subject(&verifier, &confused), Err(TokenError::NoKey));
    }
    // {"alg":"none"} and {"alg":"None"}, with and without a signature.
    let token = hs256(&claims());
    let mut parts = token.split('.').skip(1);
    let (payload, signature) = (parts.next().unwrap(), parts.next().unwrap());
    for none in ["eyJhbGciOiJub25lIn0", "eyJhbGciOiJOb25lIn0"] {
        let verifier = Verifier::hs256(SECRET).unwrap();
        assert_eq!(subject(&verifier, &format!("{none}.{payload}.")), Err(TokenError::Malformed));
        assert_eq!(subject(&verifier, &format!("{none}.{payload}.{signature}")), Err(TokenError::Malformed));
    }
}

#[test]
fn token_expired_or_too_early_is_rejected() {
    let verifier = Verifier::hs256(SECRET).unwrap();
    let verdict = |claims: Value| subject(&verifier, &hs256(&claims)).map(|_| ());
    assert_eq!(verdict(json!({ "exp": NOW - LEEWAY + 1 })), Ok(()));
    assert_eq!(verdict(json!({ "exp": NOW - LEEWAY })), Err(TokenError::Expired));
    assert_eq!(verdict(json!({ "exp": 1_800_000_600.5 })), Ok(()));
    assert_eq!(verdict(json!({ "exp": -1 })), Err(TokenError::Expired));
    assert_eq!(verdict(json!({ "exp": u64::MAX })), Ok(()));
    for claims in [json!({}), json!({ "exp": "tomorrow" }), json!({ "exp": null })] {
        assert_eq!(verdict(claims), Err(TokenError::NoExpiry));
    }
    assert_eq!(verdict(json!({ "exp": NOW + 99, "nbf": NOW + LEEWAY })), Ok(()));
    assert_eq!(verdict(json!({ "exp": NOW + 99, "nbf": NOW + LEEWAY + 1 })), Err(TokenError::TooEarly));
    assert_eq!(verdict(json!({ "exp": NOW + 99, "nbf": "soon" })), Err(TokenError::TooEarly));
}

#[test]
fn modified_or_malformed_token_is_rejected() {
    let verifier = Verifier::hs256(SECRET).unwrap();
    let token = hs256(&claims());
    let (message, signature) = token.rsplit_once('.').unwrap();
    let (header, _) = message.split_once('.').unwrap();
    let other = hs256(&json!({ "sub": "mallory", "exp": NOW + 600 }));
    let payload = other.split('.').nth(1).unwrap();
    assert_eq!(subject(&verifier, &format!("{header}.{payload}.{signature}")), Err(TokenError::Signature));
    assert_eq!(subject(&verifier, &format!("{message}.")), Err(TokenError::Signature));
    for broken in ["", ".", "..", "a.b.c", "Bearer x", &"x".repeat(20_000)] {
        assert_eq!(subject(&verifier, broken), Err(TokenError::Malformed), "{broken}");
    }
}

#[test]
fn key_set_without_usable_key_is_rejected() {
    assert!(matches!(Verifier::jwks(b"not json"), Err(KeysError::NotJwks(_))));
    assert!(matches!(jwks(&[]), Err(KeysError::NoKey)));
    let mut encrypting = public(&ec_key(), Algorithm::ES256, "enc");
    encrypting["use"] = json!("enc");
    assert!(matches!(jwks(&[encrypting]), Err(KeysError::NoKey)));
    let secret = EncodingKey::from_secret(SECRET);
    let verifier = jwks(&[public(&secret, Algorithm::HS256, "shared")]).unwrap();
    let token = signed(Algorithm::HS256, Some("shared"), &secret, &claims());
    assert_eq!(subject(&verifier, &token), Ok("alice".to_owned()));
}

#[test]
fn debug_hides_keys_and_claims() {
    let verifier = Verifier::hs256(SECRET).unwrap();
    let claims = verifier.verify(hs256(&claims()).as_bytes(), now()).unwrap();
    let shown = format!("{verifier:?} {claims:?}");
    assert!(!shown.contains("secret") && !shown.contains("alice"), "{shown}");
}

#[test]
fn token_with_non_canonical_signature_or_scheme_is_accepted() {
    let source = ClaimSource::new(
        http::header::AUTHORIZATION,
        "sub",
        std::sync::Arc::new(Verifier::hs256(SECRET).unwrap()),
    );
    let token = hs256(&claims());
    let user = |value: &[u8]| {
        let mut headers = http::HeaderMap::new();
        headers.insert(http::header::AUTHORIZATION, http::HeaderValue::from_bytes(value).unwrap());
        source.read(&headers).and_then(|reading| reading.name("sub").map(str::to_owned))
    };
    // 32 bytes are 43 digits, and the last digit has two unused bits.
    let mut other_bits = token.clone().into_bytes();
    *other_bits.last_mut().unwrap() += 1;
    let standard = {
        let (head, signature) = token.rsplit_once('.').unwrap();
        format!("{head}.{}", signature.replace('-', "+").replace('_', "/"))
    };
    for variant in [token.clone(), format!("{token}="), format!("{token}=="), format!("{token}!"), standard] {
        for scheme in ["", "Bearer ", "bearer   ", "Bearer\t", "BEARER \t "] {
            assert_eq!(
                user(format!("{scheme}{variant}").as_bytes()).as_deref(),
                Some("alice"),
                "{scheme}{variant}"
            );
        }
    }
    assert_eq!(user(&other_bits).as_deref(), Some("alice"));
    assert_eq!(user(&[b"Bearer\xa0", token.as_bytes()].concat()).as_deref(), Some("alice"));
    let forged = format!("{}A", &token[..token.len() - 8]);
    assert_eq!(user(forged.as_bytes()), None);
    assert_eq!(user(b"Bearer opaque"), None);
    assert_eq!(user(b"Bearer ..."), None);
}

fn source() -> ClaimSource {
    ClaimSource::new(
        http::header::AUTHORIZATION,
        "sub",
        std::sync::Arc::new(Verifier::hs256(SECRET).unwrap()),
    )
}

fn authorization(value: &[u8]) -> http::HeaderMap {
    let value = http::HeaderValue::from_bytes(value).unwrap();
    [(http::header::AUTHORIZATION, value)].into_iter().collect()
}

fn user(value: &[u8]) -> Option<String> {
    source().read(&authorization(value)).and_then(|reading| reading.name("sub").map(str::to_owned))
}

#[test]
fn token_in_any_spelling_names_its_user() {
    let token = hs256(&claims());
    let (head, tail) = token.split_at(10);
    let spellings = [
        format!("X {token}"),
        format!("X y, Bearer {token}"),
        format!("Bearer:{token}"),
        format!("1234567{token}"),
        format!("Token token=\"{token}\""),
        format!("Bearer {token}.x"),
        format!("Bearer {token}=AAAA"),
        format!("Bearer {token}AAAA"),
        format!("Bearer {token}, x"),
        format!("{head}Bearer {tail}"),
        format!("Bearer {head} {tail}"),
        format!("eyJhbGciOiJIUzI1NiJ9.{token}"),
        format!("eyJeyJeyJ{token}"),
    ];
    for spelling in spellings {
        assert_eq!(user(spelling.as_bytes()).as_deref(), Some("alice"), "{spelling}");
        assert_eq!(source().check(&authorization(spelling.as_bytes())), Ok(()), "{spelling}");
    }
    for space in [&b"\xa0Bearer "[..], b"Bearer \xa0", b"\x85", b"\xc2\xa0Bearer "] {
        assert_eq!(user(&[space, token.as_bytes()].concat()).as_deref(), Some("alice"), "{space:?}");
    }
}

#[test]
fn token_that_is_not_valid_now_names_its_user() {
    for times in
        [json!({ "exp": 7 }), json!({}), json!({ "exp": "x" }), json!({ "exp": NOW + 9, "nbf": NOW + 999 })]
    {
        let mut claims = json!({ "sub": "alice" });
        claims.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
        let headers = authorization(hs256(&claims).as_bytes());
        let reading = source().read(&headers).unwrap();
        assert_eq!(reading.name("sub"), Some("alice"));
        assert!(reading.check_claim("sub", now()).is_err() && !reading.is_valid(now()), "{claims}");
    }
    let current = source().read(&authorization(hs256(&claims()).as_bytes())).unwrap();
    assert!(current.check_claim("sub", now()).is_ok() && current.is_valid(now()));
    let other = source().read(&authorization(b"Basic YTpi")).unwrap();
    assert!(!other.is_valid(now()) && other.name("sub").is_none());
}

#[test]
fn claim_with_a_whole_number_names_its_user() {
    let user = |sub: Value| user(hs256(&json!({ "sub": sub, "iat": NOW, "exp": NOW + 9 })).as_bytes());
    for (sub, name) in
        [(json!(42), "42"), (json!("42"), "42"), (json!(-7), "-7"), (json!(u64::MAX), "18446744073709551615")]
    {
        assert_eq!(user(sub.clone()).as_deref(), Some(name), "{sub}");
    }
    for sub in
        [json!(4.5), json!(1e30), json!(true), json!(["a"]), json!({ "id": 1 }), json!(""), json!(null)]
    {
        assert_eq!(user(sub.clone()), None, "{sub}");
    }
    let numbers =
        hs256(&json!({ "sub": 1, "exp": NOW + 9 })) + "," + &hs256(&json!({ "sub": 2, "exp": NOW + 9 }));
    let different = HeaderError::DifferentTokens(http::header::AUTHORIZATION);
    assert_eq!(source().check(&authorization(numbers.as_bytes())), Err(different));
}

#[test]
fn tokens_of_different_users_or_too_many_are_rejected() {
    let token = |user: &str, exp: u64| hs256(&json!({ "sub": user, "exp": exp }));
    let check = |value: String| source().check(&authorization(value.as_bytes()));
    let (alice, old, bob) = (token("alice", NOW + 60), token("alice", 7), token("bob", 7));
    let name = http::header::AUTHORIZATION;
    assert_eq!(check(format!("Bearer {alice}, Bearer {old}")), Ok(()));
    assert_eq!(check(format!("Bearer {alice}, {bob}")), Err(HeaderError::DifferentTokens(name.clone())));
    assert_eq!(check(format!("{bob}{alice}")), Err(HeaderError::DifferentTokens(name.clone())));
    let forged = format!("{}AAAA", &bob[..bob.len() - 4]);
    assert_eq!(check(format!("Bearer {alice}, {forged}")), Ok(()), "a forged token names nobody");
    assert_eq!(check([&*alice; 4].join(",")), Ok(()));
    assert_eq!(check([&*alice; 5].join(",")), Err(HeaderError::TooManyTokens(name)));
}
