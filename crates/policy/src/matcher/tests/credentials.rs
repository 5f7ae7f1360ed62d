//! Tokens and API keys: whom they name, and what happens to invalid ones.

use std::collections::BTreeMap;

use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::*;
use crate::bans::{Ban, Bans, Subject};
use crate::identity::HeaderError;
use crate::request::ReadOptions;

const SECRET: &[u8] = b"a secret that is long enough for HS256";
const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn active(clients: &str) -> ActivePolicy {
    ActivePolicy::new(compiled(clients).plan)
}

fn compiled(clients: &str) -> crate::CompiledPolicy {
    let files: BTreeMap<String, Vec<u8>> = [
        ("jwt.secret".to_owned(), SECRET.to_vec()),
        ("keys.csv".to_owned(), b"listed,free\n".to_vec()),
        ("exempt.txt".to_owned(), b"exempt\n".to_vec()),
    ]
    .into_iter()
    .collect();
    let policy = format!(
        "
clients:
  identify_by: [user, ip]
  user: {{ jwt: {{ secret_file: jwt.secret }} }}
  tiers: {{ file: keys.csv }}
  exempt: {{ api_keys_file: exempt.txt }}
  {clients}
rate_limits:
  default: {{ requests: 5, window: 1m, penalty: {{ after: 1, for: 1m }} }}
  tiers: {{ free: {{ requests: 5, window: 1m }} }}
  rules:
    - {{ name: both, per: [ip, user], requests: 5, window: 1m, penalty: {{ after: 1, for: 1m }} }}
"
    );
    let compiled = crate::compile("policy.yaml", policy.as_bytes(), &files);
    compiled.unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn policy_with_tokens_that_does_not_choose_on_invalid_warns() {
    let warnings = |clients: &str| -> Vec<String> {
        compiled(clients).warnings.iter().map(|warning| warning.what.clone()).collect()
    };
    let what = "a client evades bans of users and `both` with a token that the gateway rejects and the service accepts: it is forwarded and does not count";
    assert_eq!(warnings(""), [what]);
    for mode in ["forward", "remove", "reject"] {
        assert_eq!(warnings(&format!("on_invalid: {mode}")), [""; 0]);
    }
}

fn token(claims: &Value) -> String {
    encode(&Header::default(), claims, &EncodingKey::from_secret(SECRET)).unwrap()
}

fn expired() -> String {
    token(&json!({ "sub": "alice", "exp": 7 }))
}

fn valid() -> String {
    token(&json!({ "sub": "alice", "exp": 1_800_000_600 }))
}

/// The names of the counters of a request, and whether a violation locks each out; `None` if the client is banned.
fn counters(value: &str, bans: Option<&Bans>) -> Option<Vec<(String, bool, bool)>> {
    let active = active("on_invalid: forward");
    let headers = headers(&[("authorization", value)]);
    let facts = Facts {
        method: "GET",
        host: Some(""),
        path: "/",
        headers: &headers,
        peer: [192, 0, 2, 1].into(),
        body: crate::BodyFacts::Unknown,
    };
    let runtime = RuntimeData { directory: active.directory.as_deref(), bans };
    let mut scratch = Scratch::default();
    match active.matcher.admit(&facts, runtime, NOW, &mut scratch) {
        Admission::Checked(matched) => {
            let checks = matched.checks().iter().enumerate().map(|(at, check)| {
                let name = crate::ClientName::from_key(check.key.client).to_string();
                (name, matched.penalty(at).is_some(), matched.caused_penalty(at).is_some())
            });
            Some(checks.collect())
        }
        Admission::Banned { .. } => None,
        other @ Admission::Exempt { .. } => panic!("{other:?}"),
    }
}

#[test]
fn expired_token_counts_its_user_without_a_penalty() {
    let of = |name: &str, caused| (name.to_owned(), true, caused);
    let both = of("ip:192.0.2.1+user:alice", true);
    assert_eq!(
        counters(&format!("Bearer {}", valid()), None),
        Some(vec![of("user:alice", true), both.clone()])
    );
    for spelling in [format!("Bearer {}", expired()), format!("X y, Bearer {}", expired())] {
        assert_eq!(
            counters(&spelling, None),
            Some(vec![of("user:alice", false), both.clone()]),
            "{spelling}"
        );
    }
}

#[test]
fn banned_user_is_banned_in_every_spelling_of_a_token() {
    let subject = Subject::parse("user:alice", 64).unwrap();
    let bans = Bans::new([Ban { subject, reason: String::new(), since: Timestamp::ZERO, until: None }]);
    let no_expiry = token(&json!({ "sub": "alice" }));
    let later = token(&json!({ "sub": "alice", "exp": 1_800_900_000, "nbf": 1_800_800_000 }));
    for token in [valid(), expired(), no_expiry, later] {
        for spelling in
            ["Bearer TOKEN", "X TOKEN", "X y, Bearer TOKEN", "1234567TOKEN", "TOKEN=x", "Bearer TOKENx"]
        {
            let value = spelling.replace("TOKEN", &token);
            assert_eq!(counters(&value, Some(&bans)), None, "{value}");
        }
    }
    assert!(counters("Bearer opaque", Some(&bans)).is_some());
}

fn options(directory: Option<&Directory>) -> ReadOptions<'_> {
    ReadOptions { directory, needs_route: false, removes_headers: true }
}

/// The result for these headers, and the names of those that are left.
fn applied(mode: &str, lines: &[(&str, &str)]) -> Result<Vec<String>, HeaderError> {
    let active = active(&format!("on_invalid: {mode}"));
    let (mut headers, directory) = (headers(lines), active.directory.as_deref());
    active.matcher.apply_credentials(&mut headers, options(directory), || NOW)?;
    let mut left: Vec<_> = headers.keys().map(|name| name.as_str().to_owned()).collect();
    left.sort();
    Ok(left)
}

#[test]
fn invalid_credentials_are_handled_as_the_policy_says() {
    let bearer = |token: String| format!("Bearer {token}");
    let forged = bearer(valid().replace('.', ".x"));
    let invalid =
        [forged, bearer(expired()), "Bearer opaque".to_owned(), format!("{}, {}", valid(), expired())];
    for value in &invalid {
        let lines = [("authorization", value.as_str()), ("accept", "*/*")];
        assert_eq!(applied("forward", &lines).unwrap(), ["accept", "authorization"], "{value}");
        assert_eq!(applied("remove", &lines).unwrap(), ["accept"], "{value}");
        let error = applied("reject", &lines).unwrap_err();
        assert_eq!(error, HeaderError::InvalidToken(http::header::AUTHORIZATION), "{value}");
        assert!(error.challenge().unwrap().starts_with("Bearer"));
    }
    for mode in ["forward", "remove", "reject"] {
        let value = bearer(valid());
        for key in ["listed", "exempt"] {
            let lines = [("authorization", value.as_str()), ("x-api-key", key)];
            assert_eq!(applied(mode, &lines).unwrap(), ["authorization", "x-api-key"], "{mode} {key}");
        }
        assert_eq!(applied(mode, &[]).unwrap(), [""; 0]);
    }
    let both = [("authorization", invalid[0].as_str()), ("x-api-key", "unlisted")];
    assert_eq!(applied("remove", &both).unwrap(), [""; 0]);
    let error = applied("reject", &both[1..]).unwrap_err();
    assert_eq!(error, HeaderError::UnknownKey(HeaderName::from_static("x-api-key")));
    assert_eq!(error.challenge(), Some("ApiKey"));
}

#[test]
fn tokens_of_two_users_are_rejected_in_every_mode() {
    let value = format!("Bearer {}, {}", valid(), token(&json!({ "sub": "bob" })));
    for mode in ["forward", "remove", "reject"] {
        let error = applied(mode, &[("authorization", &value)]).unwrap_err();
        assert_eq!(error, HeaderError::DifferentTokens(http::header::AUTHORIZATION), "{mode}");
        assert_eq!(error.challenge(), None);
    }
}

/// A token with these bytes as its header and its claims.
fn raw_token(header: &[u8], claims: &[u8]) -> String {
    use jsonwebtoken::{Algorithm, crypto};
    let encoded = |bytes: &[u8]| {
        let value = bytes.chunks(3).flat_map(|chunk| {
            let bits = chunk.iter().fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte))
                << (8 * (3 - chunk.len()));
            (0..=chunk.len()).map(move |digit| bits >> (18 - 6 * digit) & 63)
        });
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        value.map(|sextet| char::from(alphabet[sextet])).collect::<String>()
    };
    let message = format!("{}.{}", encoded(header), encoded(claims));
    let signature =
        crypto::sign(message.as_bytes(), &EncodingKey::from_secret(SECRET), Algorithm::HS256).unwrap();
    format!("{message}.{signature}")
}

/// Claims that strict parsers reject and services accept.
fn lenient_claims() -> Vec<Vec<u8>> {
    let nested = ["[".repeat(200), "]".repeat(200)].concat();
    let long = "a".repeat(20_000);
    let claims = [
        br#"{"sub":"alice","exp":1800000600,"name":"\ud800"}"#.to_vec(),
        br#"{"m":1e999,"sub":"alice","exp":1800000600}"#.to_vec(),
        br#"{"m":NaN,"sub":"alice","exp":1800000600}"#.to_vec(),
        b"{\"m\":\"\xff\",\"sub\":\"alice\",\"exp\":1800000600}".to_vec(),
        b"\xef\xbb\xbf{\"sub\":\"alice\",\"exp\":1800000600}".to_vec(),
        format!(r#"{{"m":{nested},"sub":"alice","exp":1800000600}}"#).into_bytes(),
        format!(r#"{{"m":"{long}","sub":"alice","exp":1800000600}}"#).into_bytes(),
    ];
    claims.to_vec()
}

#[test]
fn token_that_only_lenient_services_read_counts_its_user() {
    let claims = lenient_claims().into_iter().map(|claims| (br#"{"alg":"HS256"}"#.to_vec(), claims));
    let headers = [
        &br#"{"alg":"HS256","typ":1}"#[..],
        br#"{"alg":"HS256","kid":1}"#,
        br#"{"alg":"HS256","x5c":"a"}"#,
        br#"{"alg":"HS256","typ":"a","typ":"a"}"#,
        br#"{"alg":"none","alg":"HS256"}"#,
        br#"{"alg":"HS256","a":"\ud800"}"#,
    ];
    let plain = br#"{"sub":"alice","exp":1800000600}"#.to_vec();
    let headers = headers.map(|header| (header.to_vec(), plain.clone()));
    for (header, claims) in claims.chain(headers) {
        let value = format!("Bearer {}", raw_token(&header, &claims));
        let counted = counters(&value, None).unwrap();
        let shown = claims.get(..60.min(claims.len())).unwrap().escape_ascii();
        assert_eq!(counted[0], ("user:alice".to_owned(), true, true), "{} {shown}", header.escape_ascii());
        let other = token(&json!({ "sub": "bob", "exp": 1_800_000_600 }));
        let both = format!("{value} {other}");
        let error = applied("reject", &[("authorization", &both)]).unwrap_err();
        assert_eq!(error, HeaderError::DifferentTokens(http::header::AUTHORIZATION), "{shown}");
    }
}

#[test]
fn token_in_basic_credentials_or_around_a_scheme_counts_its_user() {
    let valid = valid();
    let (start, end) = valid.split_at(30);
    let credentials = |text: &str| raw_token(text.as_bytes(), b"").split('.').next().unwrap().to_owned();
    let values = [
        format!("Basic {}", credentials(&format!("{valid}:"))),
        format!("basic {}==", credentials(&format!("x:{valid}"))),
        format!("Bearer {start}Token {end}"),
        format!("{start}JWT {end}"),
    ];
    for value in values {
        assert_eq!(counters(&value, None).unwrap()[0].0, "user:alice", "{value}");
    }
}

#[test]
fn token_in_a_cookie_counts_its_user_in_every_spelling_that_services_decode() {
    let files = BTreeMap::from([("jwt.secret".to_owned(), SECRET.to_vec())]);
    let policy =
        b"clients: { identify_by: [user, ip], user: { jwt: { header: Cookie, secret_file: jwt.secret } }, \
        on_invalid: forward }\nrate_limits: { default: { requests: 5, window: 1m } }";
    let active = ActivePolicy::new(crate::compile("policy.yaml", policy, &files).unwrap().plan);
    for (dot, first) in [(".", "e"), ("%2E", "e"), ("%2e", "%65"), ("\\056", "e"), ("%252E", "e")] {
        let token = valid().replace('.', dot);
        let value = format!("a=b; session=\"{first}{}\"", &token[1..]);
        let headers = headers(&[("cookie", &value)]);
        let facts = Facts {
            method: "GET",
            host: Some(""),
            path: "/",
            headers: &headers,
            peer: [192, 0, 2, 1].into(),
            body: crate::BodyFacts::Unknown,
        };
        let identity = active.matcher.plan().identities.identify(&facts, None, NOW);
        assert_eq!(identity.user(), Some(&b"alice"[..]), "{value}");
    }
}

/// A policy with API keys in `Authorization`, and the counter of the first limit, or the error.
fn key_counter(value: &str, bans: Option<&Bans>) -> Result<Option<String>, HeaderError> {
    let files = BTreeMap::from([("keys.csv".to_owned(), b"listed,free\nother,free\n".to_vec())]);
    let policy = b"clients: { api_key: { header: Authorization }, tiers: { file: keys.csv } }\n\
        rate_limits: { default: { requests: 9, window: 1m }, tiers: { free: { requests: 5, window: 1m } } }";
    let active = ActivePolicy::new(crate::compile("policy.yaml", policy, &files).unwrap().plan);
    let directory = Directory::from_csv(b"listed,free\nother,free\n", &["free"]).unwrap();
    let mut headers = headers(&[("authorization", value)]);
    active.matcher.apply_credentials(&mut headers, options(Some(&directory)), || NOW)?;
    let facts = Facts {
        method: "GET",
        host: Some(""),
        path: "/",
        headers: &headers,
        peer: [192, 0, 2, 1].into(),
        body: crate::BodyFacts::Unknown,
    };
    let runtime = RuntimeData { directory: Some(&directory), bans };
    let mut scratch = Scratch::default();
    Ok(match active.matcher.admit(&facts, runtime, NOW, &mut scratch) {
        Admission::Checked(matched) => {
            Some(crate::ClientName::from_key(matched.checks()[0].key.client).to_string())
        }
        _ => None,
    })
}

const SPELLINGS: [&str; 15] = [
    "listed",
    "Bearer listed",
    "bearer  listed",
    "Bearer listed x",
    "x Bearer listed",
    "Bearer Bearer listed",
    "1234567listed",
    "Bearer:listed",
    "BearerXlisted",
    "Token token=listed",
    "Token token=\"listed\"",
    "Bearer \"listed\"",
    "lisBearer ted",
    "Basic bGlzdGVkOg==",
    "Basic eDpsaXN0ZWQ=",
];

#[test]
fn api_key_in_authorization_counts_in_every_spelling() {
    let counted = key_counter("listed", None);
    assert!(counted.as_ref().unwrap().as_ref().unwrap().starts_with("api_key:"));
    for value in SPELLINGS {
        assert_eq!(key_counter(value, None), counted, "{value}");
    }
    for value in ["Bearer unlisted-key", "Basic dTpw", "Digest a, b"] {
        assert_eq!(key_counter(value, None), Ok(Some("ip:192.0.2.1".to_owned())), "{value}");
    }
    for value in ["Bearer listed other", "other listed", "Basic bGlzdGVkOm90aGVy"] {
        let error = Err(HeaderError::SeveralKeys(http::header::AUTHORIZATION));
        assert_eq!(key_counter(value, None), error, "{value}");
    }
}

#[test]
fn banned_api_key_is_banned_in_every_spelling_in_authorization() {
    for key in ["listed", "unlisted-key"] {
        let subject = Subject::parse(&format!("api_key:{key}"), 64).unwrap();
        let bans = Bans::new([Ban { subject, reason: String::new(), since: Timestamp::ZERO, until: None }]);
        for value in SPELLINGS.iter().filter(|value| value.contains("listed") && !value.contains("Basic")) {
            let value = value.replace("listed", key);
            assert_eq!(key_counter(&value, Some(&bans)), Ok(None), "{value}");
        }
        assert!(key_counter("Bearer other", Some(&bans)).unwrap().is_some());
    }
}

#[test]
fn tenant_of_the_token_counts_beside_that_of_the_api_key() {
    let files = BTreeMap::from([("jwt.secret".to_owned(), SECRET.to_vec())]);
    let policy = b"clients: { tenant: { jwt: { claim: org, secret_file: jwt.secret } }, tiers: { file: keys.csv }, on_invalid: forward }
rate_limits:
  tenant: { requests: 5, window: 1m, penalty: { after: 1, for: 1m } }
  tiers: { free: unlimited }
  rules:
    - { name: one, per: tenant, requests: 5, window: 1m }
    - { name: both, per: [ip, tenant], requests: 5, window: 1m }
    - { name: each, per_each: [ip, tenant], requests: 5, window: 1m }
    - { name: none, per: ip, requests: 5, window: 1m }
";
    let files = files
        .into_iter()
        .chain([("keys.csv".to_owned(), b"k1,free,acme\n".to_vec())])
        .collect::<BTreeMap<_, _>>();
    let active = ActivePolicy::new(crate::compile("policy.yaml", policy, &files).unwrap().plan);
    let directory = Directory::from_csv(b"k1,free,acme\n", &["free"]).unwrap();
    let counted = |org: &str, expires: u64| {
        let token = token(&json!({ "org": org, "exp": expires }));
        let headers = headers(&[("authorization", &token), ("x-api-key", "k1")]);
        let facts = Facts {
            method: "GET",
            host: Some(""),
            path: "/",
            headers: &headers,
            peer: [192, 0, 2, 1].into(),
            body: crate::BodyFacts::Unknown,
        };
        let mut scratch = Scratch::default();
        match active.matcher.admit(&facts, Some(&directory), NOW, &mut scratch) {
            Admission::Checked(matched) => {
                let keys = matched
                    .checks()
                    .iter()
                    .map(|check| crate::ClientName::from_key(check.key.client).to_string());
                (keys.collect::<Vec<_>>().join(" "), matched.caused_penalty(0).is_some())
            }
            other => panic!("{other:?}"),
        }
    };
    let (valid, address) = (1_800_000_600, "ip:192.0.2.1");
    let one = format!("tenant:acme tenant:acme {address}+tenant:acme {address} tenant:acme {address}");
    assert_eq!(counted("acme", valid), (one, true));
    let both = format!(
        "tenant:acme tenant:umbrella tenant:acme tenant:umbrella {address}+tenant:acme {address}+tenant:umbrella \
         {address} tenant:acme tenant:umbrella {address}"
    );
    assert_eq!(counted("umbrella", valid), (both.clone(), true));
    assert_eq!(counted("umbrella", 7), (both, false), "the token may have been found");
}
