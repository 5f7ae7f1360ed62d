use std::collections::BTreeMap;

use super::*;
use crate::compile;

const POLICY: &[u8] = b"
clients:
  api_key: { header: X_Key, verify: none }
  user: { header: X-User }
  tenant: { jwt: { header: X-Token, secret_file: jwt.secret } }
  fingerprint: { headers: [user-agent] }
  cookie: { name: session }
rate_limits:
  rules:
    - { name: a, match: { header: { X_Match: a } }, cost: { header: X_Cost }, requests: 1, window: 1 }
    - { name: b, match: { when: \"request.headers['x_when'] == 'a'\" }, concurrent: 1 }
";

const ALL: HeaderTraits =
    HeaderTraits { connection: true, transfer_encoding: true, proxy: true, unusual_name: true };

fn rules() -> HeaderRules {
    let files: BTreeMap<_, _> = [("jwt.secret".to_owned(), vec![b'a'; 32])].into_iter().collect();
    HeaderRules::new(
        &compile("policy.yaml", POLICY, &files).unwrap_or_else(|problems| panic!("{problems}")).plan,
    )
}

fn map(lines: &[(&'static str, &str)]) -> HeaderMap {
    lines.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
}

#[test]
fn repeated_identity_header_is_rejected_by_name() {
    for name in ["x_key", "x-user", "x-token"] {
        let error = rules().check(&map(&[(name, "a"), ("accept", "*/*"), (name, "a")])).unwrap_err();
        assert_eq!(error, HeaderError::Repeated(HeaderName::from_static(name)));
        assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
    }
    let repeated = ["user-agent", "cookie", "accept", "x-api-key", "authorization"];
    let lines: Vec<_> = repeated.iter().chain(&repeated).map(|name| (*name, "a")).collect();
    assert_eq!(rules().check(&map(&lines)), Ok(()));
}

#[test]
fn comma_is_rejected_only_in_api_key() {
    assert_eq!(
        rules().check(&map(&[("x_key", "a,b")])),
        Err(HeaderError::Comma(HeaderName::from_static("x_key")))
    );
    assert_eq!(rules().check(&map(&[("x_key", "a b"), ("x-user", "a,b"), ("accept", "a,b")])), Ok(()));
}

#[test]
fn api_key_with_bytes_that_servers_strip_is_rejected() {
    for key in [&b"KEY\xa0"[..], b"\xa0KEY", b"KEY\x85", b"K\tEY", b"KEY\xe2\x80\x80", b"KEY\xff"] {
        let value = http::HeaderValue::from_bytes(key).unwrap();
        let headers = [(HeaderName::from_static("x_key"), value)].into_iter().collect();
        let expected = HeaderError::KeyCharacter(HeaderName::from_static("x_key"));
        assert_eq!(rules().check(&headers), Err(expected), "{}", key.escape_ascii());
    }
}

#[test]
fn cookie_with_several_readings_is_rejected_by_name() {
    let check = |value| rules().check(&map(&[("cookie", value)]));
    assert_eq!(check("session=\"\\141bc\""), Err(HeaderError::Cookie("session".to_owned())));
    assert_eq!(check("other=\"\\141bc\"; session=%61bc"), Ok(()));
}

#[test]
fn connection_that_lists_a_header_of_a_rule_is_rejected() {
    for name in ["x_match", "X_Cost", "x_when"] {
        let line = format!("close, {name}");
        let error = rules().check_connection(&map(&[("connection", &line)])).unwrap_err();
        assert_eq!(error, HeaderError::NamedInConnection(name.parse().unwrap()));
    }
    let policy = "rate_limits: { rules: [{ name: a, match: { header: { Upgrade: websocket } }, requests: 1, window: 1 }] }";
    let compiled = compile("policy.yaml", policy.as_bytes(), &crate::NoFiles).unwrap();
    let upgrade = map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
    assert_eq!(HeaderRules::new(&compiled.plan).check_connection(&upgrade), Ok(()));
}

#[test]
fn connection_that_lists_identity_or_forwarding_header_is_rejected() {
    for name in
        ["X_Key", "x-user", "X-TOKEN", "cookie", "User-Agent", "forwarded", "X-Forwarded-Proto", "x-real-ip"]
    {
        for line in [name.to_owned(), format!("close, {name}"), format!("te,\t{name} ,")] {
            let error = rules().check_connection(&map(&[("connection", &line)])).unwrap_err();
            assert_eq!(error, HeaderError::NamedInConnection(name.parse().unwrap()), "{line}");
        }
    }
    for line in
        ["", "keep-alive", "close", "Upgrade, HTTP2-Settings", "x-api-key", "authorization", "x-forwarded"]
    {
        assert_eq!(rules().check_connection(&map(&[("connection", line)])), Ok(()), "{line}");
    }
}

#[test]
fn apply_removes_headers_that_the_peer_may_not_send() {
    let sent = [
        ("x_key", "k"),
        ("x_match", "a"),
        ("x_cost", "1"),
        ("x_when", "a"),
        ("x_other", "a"),
        ("x.user", "ann"),
        ("x-key", "k"),
        ("x-user", "ann"),
        ("accept", "*/*"),
    ];
    let removed = |is_trusted, underscored| {
        let mut headers = map(&sent);
        rules().apply(&mut headers, ALL, is_trusted, underscored).unwrap();
        let gone = sent.iter().map(|(name, _)| *name).filter(|name| !headers.contains_key(*name));
        gone.collect::<Vec<_>>()
    };
    assert_eq!(removed(false, UnderscoreHeaders::Drop), ["x_other", "x.user", "x-key", "x-user"]);
    assert_eq!(removed(false, UnderscoreHeaders::Keep), ["x-user"]);
    assert_eq!(removed(true, UnderscoreHeaders::Drop), ["x_other", "x.user", "x-key"]);
    assert_eq!(removed(true, UnderscoreHeaders::Keep), [""; 0]);
    assert!(rules().apply(&mut map(&[("x_key", "a,b")]), ALL, true, UnderscoreHeaders::Keep).is_err());
}

#[test]
fn check_spelling_header_that_servers_confuse_with_one_in_use_is_rejected() {
    for (sent, used) in [
        ("x_user", "x-user"),
        ("x.user", "x-user"),
        ("x_token", "x-token"),
        ("user_agent", "user-agent"),
        ("x-key", "x_key"),
        ("x.key", "x_key"),
    ] {
        let headers = map(&[("accept", "*/*"), (used, "a"), (sent, "a")]);
        let (sent, used) = (HeaderName::from_static(sent), HeaderName::from_static(used));
        assert_eq!(
            rules().check_spelling(&headers, UnderscoreHeaders::Drop),
            Err(HeaderError::OtherSpelling(Box::new(ConfusedHeaders { sent, used })))
        );
        assert_eq!(rules().check_spelling(&headers, UnderscoreHeaders::Keep), Ok(()));
    }
    let in_use = [
        "x_key", "x-user", "x_match", "x_cost", "x_when", "x_other", "x-other", "x.other", "x__key",
        "session",
    ];
    for name in in_use {
        let headers = map(&[(name, "a")]);
        assert_eq!(rules().check_spelling(&headers, UnderscoreHeaders::Drop), Ok(()), "{name}");
    }
}
