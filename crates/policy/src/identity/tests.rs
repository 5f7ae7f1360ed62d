use std::sync::Arc;

use http::header::{AUTHORIZATION, COOKIE, USER_AGENT};
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;

use super::*;

const SECRET: &[u8] = b"a secret that is long enough for HS256";
const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const X_USER: HeaderName = HeaderName::from_static("x-user");
const X_TENANT: HeaderName = HeaderName::from_static("x-tenant");

fn headers(lines: &[(HeaderName, &str)]) -> HeaderMap {
    lines.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
}

fn facts(headers: &HeaderMap) -> Facts<'_> {
    Facts {
        method: "GET",
        host: Some("example.org"),
        path: "/",
        headers,
        peer: [192, 0, 2, 7].into(),
        body: crate::BodyFacts::Unknown,
    }
}

fn everything() -> IdentitySpec {
    IdentitySpec {
        identify_by: vec![
            ClientKind::ApiKey,
            ClientKind::User,
            ClientKind::Cookie,
            ClientKind::Fingerprint,
            ClientKind::Ip,
        ],
        accepts_unverified_keys: true,
        addresses: Addresses::default().with_trusted_proxies(["192.0.2.7/32".parse().unwrap()]),
        user: Some(IdentitySource::Header(X_USER)),
        tenant: Some(IdentitySource::Header(X_TENANT)),
        fingerprint: Some(Fingerprint::new(vec![USER_AGENT]).unwrap()),
        cookie: Some(CookieName::new("session").unwrap()),
        ..IdentitySpec::default()
    }
}

/// The kind of client and the key it is counted by.
fn client(
    spec: &IdentitySpec,
    lines: &[(HeaderName, &str)],
    directory: Option<&Directory>,
) -> (ClientKind, Vec<u8>) {
    let (identities, headers) = (Identities::new(spec.clone()).unwrap(), headers(lines));
    let facts = facts(&headers);
    let identity = identities.identify(&facts, directory, NOW);
    let mut key = Vec::new();
    assert!(identity.append(identity.kind(), &mut key));
    (identity.kind(), key)
}

#[test]
fn client_is_the_first_identity_that_is_present() {
    let lines = [(X_API_KEY, "k1"), (X_USER, "alice"), (COOKIE, "session=s1"), (USER_AGENT, "curl")];
    let kinds: Vec<_> =
        (0..=lines.len()).map(|skipped| client(&everything(), &lines[skipped..], None).0).collect();
    assert_eq!(kinds, everything().identify_by);
}

#[test]
fn client_without_identity_is_anonymous() {
    let spec = IdentitySpec { identify_by: vec![ClientKind::ApiKey], ..IdentitySpec::default() };
    assert_eq!(client(&spec, &[], None).0, ClientKind::Anonymous);
}

#[test]
fn keys_of_different_kinds_differ() {
    let spec = everything();
    let keys = [
        client(&spec, &[(X_API_KEY, "alice")], None).1,
        client(&spec, &[(X_USER, "alice")], None).1,
        client(&spec, &[(COOKIE, "session=alice")], None).1,
        client(&spec, &[(USER_AGENT, "alice")], None).1,
        client(&spec, &[], None).1,
        client(&spec, &[(X_API_KEY, "192.0.2.7")], None).1,
    ];
    for (index, key) in keys.iter().enumerate() {
        assert!(!keys[..index].contains(key));
    }
}

#[test]
fn combined_keys_are_unambiguous() {
    let (identities, both) = (Identities::new(everything()).unwrap(), |user: &str, tenant: &str| {
        headers(&[(X_USER, user), (X_TENANT, tenant)])
    });
    let key = |headers: &HeaderMap| {
        let facts = facts(headers);
        let identity = identities.identify(&facts, None, NOW);
        let mut key = Vec::new();
        assert!(identity.append(ClientKind::User, &mut key) && identity.append(ClientKind::Tenant, &mut key));
        key
    };
    assert_ne!(key(&both("ab", "c")), key(&both("a", "bc")));
    let headers = headers(&[]);
    let facts = facts(&headers);
    assert!(!identities.identify(&facts, None, NOW).append(ClientKind::User, &mut Vec::new()));
}

#[test]
fn api_key_not_in_directory_is_ignored() {
    let directory = Directory::from_csv(b"k1,free,acme\n", &["free"]).unwrap();
    let spec = IdentitySpec::default();
    assert_eq!(client(&spec, &[(X_API_KEY, "k1")], Some(&directory)).0, ClientKind::ApiKey);
    let invented = client(&spec, &[(X_API_KEY, "k2")], Some(&directory));
    assert_eq!(invented, client(&spec, &[], Some(&directory)));
}

#[test]
fn api_key_in_authorization_does_not_include_the_scheme() {
    let directory = Directory::from_csv(b"sk_live,free\n", &["free"]).unwrap();
    let key_of = |name: HeaderName, value: &str| {
        let spec = IdentitySpec { api_key: Some(name.clone()), ..IdentitySpec::default() };
        client(&spec, &[(name, value)], Some(&directory)).0
    };
    for value in ["sk_live", "Bearer sk_live", "bearer  sk_live", "Token\tsk_live"] {
        assert_eq!(key_of(AUTHORIZATION, value), ClientKind::ApiKey, "{value}");
    }
    for value in ["Bearer", "Bearer sk_liv", "Bearer sk_live2"] {
        assert_eq!(key_of(AUTHORIZATION, value), ClientKind::Ip, "{value}");
    }
    assert_eq!(key_of(X_API_KEY, "Bearer sk_live"), ClientKind::Ip, "other headers have no scheme");
}

#[test]
fn api_key_without_directory_is_used_only_if_unverified_keys_are_accepted() {
    let (strict, lenient) =
        (IdentitySpec::default(), IdentitySpec { accepts_unverified_keys: true, ..IdentitySpec::default() });
    let lines = [(X_API_KEY, "k2")];
    assert_eq!(client(&strict, &lines, None), client(&strict, &[], None));
    assert_eq!(client(&lenient, &lines, None).0, ClientKind::ApiKey);
}

#[test]
fn user_and_tenant_headers_are_used_only_if_the_peer_is_trusted() {
    let headers = headers(&[(X_USER, "alice"), (X_TENANT, "acme")]);
    let facts = facts(&headers);
    let trusted = Identities::new(everything()).unwrap();
    let identity = trusted.identify(&facts, None, NOW);
    assert_eq!((identity.user(), identity.tenant()), (Some(&b"alice"[..]), Some(&b"acme"[..])));
    let spec = IdentitySpec { addresses: Addresses::default(), ..everything() };
    let untrusted = Identities::new(spec).unwrap();
    let identity = untrusted.identify(&facts, None, NOW);
    assert_eq!((identity.user(), identity.tenant(), identity.kind()), (None, None, ClientKind::Ip));
}

#[test]
fn empty_or_repeated_api_key_header_is_ignored() {
    let spec = IdentitySpec::default();
    assert_eq!(client(&spec, &[(X_API_KEY, "")], None).0, ClientKind::Ip);
    assert_eq!(client(&spec, &[(X_API_KEY, "a"), (X_API_KEY, "b")], None).0, ClientKind::Ip);
}

#[test]
fn tenant_of_directory_takes_precedence_over_header() {
    let directory = Directory::from_csv(b"k1,free,acme\nk2,free\n", &["free"]).unwrap();
    let identities = Identities::new(everything()).unwrap();
    let tenant = |key: &str| {
        let headers = headers(&[(X_API_KEY, key), (X_TENANT, "umbrella")]);
        let facts = facts(&headers);
        let identity = identities.identify(&facts, Some(&directory), NOW);
        identity.tenant().map(|tenant| String::from_utf8(tenant.to_vec()).unwrap())
    };
    assert_eq!(tenant("k1").as_deref(), Some("acme"));
    assert_eq!(tenant("k2").as_deref(), Some("umbrella"));
}

#[test]
fn user_and_tenant_claims_share_one_verification() {
    let verifier = Arc::new(Verifier::hs256(SECRET).unwrap());
    let claim =
        |name| Some(IdentitySource::Claim(ClaimSource::new(AUTHORIZATION, name, Arc::clone(&verifier))));
    let spec = IdentitySpec {
        identify_by: vec![ClientKind::User, ClientKind::Ip],
        user: claim("sub"),
        tenant: claim("org"),
        ..IdentitySpec::default()
    };
    let claims = json!({ "sub": "alice", "org": "acme", "exp": 1_800_000_600 });
    let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET)).unwrap();
    for value in [format!("Bearer {token}"), format!("bearer  {token}"), token.clone()] {
        let (identities, headers) =
            (Identities::new(spec.clone()).unwrap(), headers(&[(AUTHORIZATION, &value)]));
        let facts = facts(&headers);
        let identity = identities.identify(&facts, None, NOW);
        assert_eq!((identity.user(), identity.tenant()), (Some(&b"alice"[..]), Some(&b"acme"[..])));
        assert!(identity.tenant_token.get().is_none(), "verified once");
    }
    let forged = token.replace('.', ".x");
    assert_eq!(client(&spec, &[(AUTHORIZATION, &format!("Bearer {forged}"))], None).0, ClientKind::Ip);
    assert_eq!(client(&spec, &[(AUTHORIZATION, "Basic YTpi")], None).0, ClientKind::Ip);
}

#[test]
fn identify_by_with_unconfigured_kind_is_rejected() {
    let with = |kinds: &[ClientKind]| {
        Identities::new(IdentitySpec { identify_by: kinds.to_vec(), ..IdentitySpec::default() }).map(|_| ())
    };
    assert_eq!(with(&[]), Err(IdentityError::Empty));
    assert_eq!(
        with(&[ClientKind::Ip, ClientKind::Ip]),
        Err(IdentityError::Duplicate { kind: ClientKind::Ip })
    );
    for kind in [ClientKind::User, ClientKind::Cookie, ClientKind::Fingerprint, ClientKind::Anonymous] {
        assert_eq!(with(&[kind]), Err(IdentityError::NotConfigured { kind }));
    }
    assert_eq!(with(&[ClientKind::Tenant, ClientKind::Ip]), Ok(()));
}

#[test]
fn client_kind_is_found_by_its_name() {
    for kind in ClientKind::NAMED.into_iter().chain([ClientKind::Anonymous]) {
        assert_eq!(ClientKind::named(kind.name()), Some(kind).filter(|kind| *kind != ClientKind::Anonymous));
    }
}

#[test]
fn identity_debug_hides_the_api_key() {
    let (identities, headers) = (Identities::new(everything()).unwrap(), headers(&[]));
    let facts = facts(&headers);
    let identity = identities.identify(&facts, None, NOW);
    identity.api_key.set(Some(ResolvedKey { key: b"sk_secret".into(), grant: None })).unwrap();
    assert!(!format!("{identity:?}").contains("secret"));
    assert!(!format!("{:?}", identity.resolved_key()).contains("115"));
}

#[test]
fn outdated_names_are_those_of_tokens_that_are_not_valid_now() {
    let verifier = Arc::new(Verifier::hs256(SECRET).unwrap());
    let claim =
        |name| Some(IdentitySource::Claim(ClaimSource::new(AUTHORIZATION, name, Arc::clone(&verifier))));
    let spec = IdentitySpec { user: claim("sub"), tenant: claim("org"), ..IdentitySpec::default() };
    let identities = Identities::new(spec).unwrap();
    let directory = Directory::from_csv(b"k1,free,acme\n", &["free"]).unwrap();
    let outdated = |expires: u64, key: &str| {
        let claims = json!({ "sub": "alice", "org": "acme", "exp": expires });
        let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET)).unwrap();
        let headers = headers(&[(AUTHORIZATION, &token), (X_API_KEY, key)]);
        let facts = facts(&headers);
        let identity = identities.identify(&facts, Some(&directory), NOW);
        assert_eq!(identity.not_locked_out(), NotLockedOut::default(), "nothing was read");
        assert_eq!((identity.user(), identity.tenant()), (Some(&b"alice"[..]), Some(&b"acme"[..])));
        let outdated = identity.not_locked_out();
        (outdated.contains(ClientKind::User), outdated.contains(ClientKind::Tenant))
    };
    assert_eq!(outdated(1_800_000_600, "k2"), (false, false));
    assert_eq!(outdated(7, "k2"), (true, true));
    assert_eq!(outdated(7, "k1"), (true, false), "the directory names the tenant");
}

#[test]
fn address_of_a_trusted_proxy_is_not_locked_out() {
    let trusted = Addresses::default().with_trusted_proxies(["192.0.2.0/24".parse().unwrap()]);
    let identities = Identities::new(IdentitySpec { addresses: trusted, ..IdentitySpec::default() }).unwrap();
    let is_excluded = |lines: &[(HeaderName, &str)]| {
        let headers = headers(lines);
        let facts = facts(&headers);
        identities.identify(&facts, None, NOW).not_locked_out().contains(ClientKind::Ip)
    };
    let forwarded = HeaderName::from_static("x-forwarded-for");
    for shared in ["unknown", "fe80::1%eth0", "192.0.2.9"] {
        assert!(is_excluded(&[(forwarded.clone(), shared)]), "{shared}");
    }
    assert!(is_excluded(&[]));
    assert!(!is_excluded(&[(forwarded, "198.51.100.1")]));
}
