use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use super::*;
use crate::{Facts, NoFiles, compile};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const POLICY: &[u8] = b"clients: { user: { header: X-User }, tenant: { header: X-Tenant }, fingerprint: { headers: [user-agent] }, \
cookie: { name: session }, ip: { trusted_proxies: [192.0.2.0/24] } }\nrate_limits: { default: { requests: 1, window: 1s } }";

fn subject(text: &str) -> Subject {
    Subject::parse(text, 64).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn ban(text: &str, until: Option<u64>) -> Ban {
    let until = until.map(Timestamp::from_secs);
    Ban { subject: subject(text), reason: String::new(), since: Timestamp::ZERO, until }
}

/// Whom of `bans` a request meets that comes from `peer` with `headers`.
fn met(bans: &Bans, peer: &str, headers: &[(&str, &str)]) -> Option<String> {
    let plan = compile("policy.yaml", POLICY, &NoFiles).unwrap().plan;
    let header = |(name, value): &(&str, &str)| {
        (HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap())
    };
    let headers: HeaderMap = headers.iter().map(header).collect();
    let peer = peer.parse().unwrap();
    let facts = Facts { method: "GET", host: "", path: "/", headers: &headers, peer };
    let identity = plan.identities.identify(&facts, None, NOW);
    bans.find(&identity, NOW).map(|ban| ban.subject.to_string())
}

#[test]
fn every_kind_of_client_and_every_network_is_met() {
    let bans = Bans::new(
        [
            "203.0.113.0/24",
            "ip:198.51.100.7",
            "ip:2001:db8::1",
            "user:bob",
            "tenant:acme",
            "api_key:secret-of-alice",
            "cookie:abc",
        ]
        .map(|text| ban(text, None)),
    );
    let nobody = "192.0.2.1";
    assert_eq!(met(&bans, "203.0.113.9", &[]).as_deref(), Some("ip:203.0.113.0/24"));
    assert_eq!(met(&bans, "198.51.100.7", &[]).as_deref(), Some("ip:198.51.100.7"));
    assert_eq!(met(&bans, "2001:db8::ffff", &[]).as_deref(), Some("ip:2001:db8::/64"), "a neighbour");
    assert_eq!(met(&bans, nobody, &[("x-user", "bob")]).as_deref(), Some("user:bob"));
    assert_eq!(met(&bans, nobody, &[("x-tenant", "acme")]).as_deref(), Some("tenant:acme"));
    assert!(met(&bans, nobody, &[("x-api-key", "secret-of-alice")]).unwrap().starts_with("api_key:secr…#"));
    assert!(met(&bans, nobody, &[("cookie", "session=abc")]).unwrap().starts_with("cookie:…#"));
    for headers in
        [[("x-user", "bobby")], [("x-tenant", "bob")], [("x-api-key", "bob")], [("cookie", "session=bob")]]
    {
        assert_eq!(met(&bans, nobody, &headers), None, "{headers:?}");
    }
    assert_eq!(met(&bans, "198.51.100.8", &[]), None);
    assert_eq!(met(&bans, "2001:db8:0:1::1", &[]), None);
}

#[test]
fn a_fingerprint_and_a_very_long_user_are_met() {
    let long = "u".repeat(200);
    let plan = compile("policy.yaml", POLICY, &NoFiles).unwrap().plan;
    let headers: HeaderMap =
        [(http::header::USER_AGENT, HeaderValue::from_static("bot"))].into_iter().collect();
    let facts = Facts { method: "GET", host: "", path: "/", headers: &headers, peer: [192, 0, 2, 1].into() };
    let print = plan.identities.identify(&facts, None, NOW).fingerprint().unwrap();
    let hex = print.map(|byte| format!("{byte:02x}")).concat();
    let bans = Bans::new([ban(&format!("fingerprint:{hex}"), None), ban(&format!("user:{long}"), None)]);
    assert_eq!(met(&bans, "192.0.2.1", &[("user-agent", "bot")]), Some(format!("fingerprint:{hex}")));
    assert!(met(&bans, "192.0.2.1", &[("x-user", &long)]).is_some());
    assert_eq!(met(&bans, "192.0.2.1", &[("x-user", &"u".repeat(201))]), None);
}

#[test]
fn nobody_meets_a_ban_that_is_over_and_a_wider_one_still_holds() {
    let now = NOW.as_secs_ceil();
    let over = Bans::new([ban("203.0.113.7", Some(now)), ban("user:bob", Some(now))]);
    assert_eq!(met(&over, "203.0.113.7", &[("x-user", "bob")]), None, "it ends at this very instant");
    let wider = Bans::new([ban("203.0.113.7", Some(now)), ban("203.0.0.0/16", Some(now + 1))]);
    assert_eq!(met(&wider, "203.0.113.7", &[]).as_deref(), Some("ip:203.0.0.0/16"));
}

#[test]
fn what_is_shown_can_be_typed_again_and_shows_no_secret() {
    let shown = [
        ("203.0.113.7", "ip:203.0.113.7"),
        ("::ffff:203.0.113.7", "ip:203.0.113.7"),
        ("ip:203.0.113.0/24", "ip:203.0.113.0/24"),
        ("2001:db8::7", "ip:2001:db8::/64"),
        ("2001:db8::7/128", "ip:2001:db8::7/128"),
        ("user:bob", "user:bob"),
        ("api_key:sk_live_51H_very_secret", "api_key:sk_l…#b59c1698"),
        ("api_key:…#b59c1698", "api_key:…#b59c1698"),
    ];
    for (typed, expected) in shown {
        assert_eq!(subject(typed).to_string(), expected);
        assert_eq!(subject(expected), subject(typed), "{expected}");
    }
    let by_hash = Bans::new([ban("api_key:…#b59c1698", None)]);
    assert!(met(&by_hash, "192.0.2.1", &[("x-api-key", "sk_live_51H_very_secret")]).is_some());
}

#[test]
fn what_is_nobody_is_told() {
    let wrong = |text: &str| Subject::parse(text, 64).unwrap_err().to_string();
    assert!(wrong("203.0.113.7/24").contains("`203.0.113.0/24`"), "{}", wrong("203.0.113.7/24"));
    assert!(wrong("203.0.113").contains("all four parts"), "{}", wrong("203.0.113"));
    assert!(wrong("ip:everywhere").contains("is no network"), "{}", wrong("ip:everywhere"));
    assert!(wrong("bob").contains("user:bob"));
    assert!(wrong("everybody").contains("one client"));
    assert!(wrong("anonymous").contains("one client"));
    assert!(wrong("user:a+tenant:b").contains("one client"));
    assert!(wrong("use:bob").contains("`user:…`"));
    assert!(wrong(&format!("user:{}", "x".repeat(5_000))).contains("at most"));
}

#[test]
fn cookie_ban_request_with_several_values_is_met_by_any() {
    let bans = Bans::new([ban("cookie:abc", None)]);
    for cookies in ["session=abc; session=abc", "session=abc; session=", "session=x; session=\"abc\""] {
        assert!(met(&bans, "192.0.2.1", &[("cookie", cookies)]).is_some(), "{cookies}");
    }
    assert_eq!(met(&bans, "192.0.2.1", &[("cookie", "session=x; session=y")]), None);
}
