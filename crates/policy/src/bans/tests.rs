use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use super::*;
use crate::{Directory, Facts, NoFiles, compile};

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

/// Returns the subject of the ban that applies to a request from `peer` with `headers`.
fn find_ban(bans: &Bans, peer: &str, headers: &[(&str, &str)]) -> Option<String> {
    let plan = compile("policy.yaml", POLICY, &NoFiles).unwrap().plan;
    let header = |(name, value): &(&str, &str)| {
        (HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap())
    };
    let headers: HeaderMap = headers.iter().map(header).collect();
    let peer = peer.parse().unwrap();
    let facts = Facts {
        method: "GET",
        host: Some(""),
        path: "/",
        headers: &headers,
        peer,
        body: crate::BodyFacts::Unknown,
    };
    let directory = Directory::from_csv(b"listed,free,acme\nother,free\n", &["free"]).unwrap();
    let identity = plan.identities.identify(&facts, Some(&directory), NOW);
    bans.find(&identity, NOW).map(|ban| ban.subject.to_string())
}

#[test]
fn ban_of_an_address_applies_to_all_of_its_forms_and_to_no_neighbour() {
    for banned in ["203.0.113.7", "64:ff9b::203.0.113.7", "2002:cb00:7107::1"] {
        let bans = Bans::new([ban(banned, None)]);
        for peer in [
            "203.0.113.7",
            "::ffff:203.0.113.7",
            "64:ff9b::203.0.113.7",
            "64:ff9b:1::203.0.113.7",
            "2002:cb00:7107:9::1",
        ] {
            assert_eq!(find_ban(&bans, peer, &[]).as_deref(), Some("ip:203.0.113.7"), "{banned} {peer}");
        }
        for neighbour in ["203.0.113.8", "64:ff9b::203.0.113.8", "2002:cb00:7108::1"] {
            assert_eq!(find_ban(&bans, neighbour, &[]), None, "{banned} {neighbour}");
        }
    }
}

#[test]
fn ban_of_each_network_and_client_kind_is_found() {
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
    let not_banned = "192.0.2.1";
    assert_eq!(find_ban(&bans, "203.0.113.9", &[]).as_deref(), Some("ip:203.0.113.0/24"));
    assert_eq!(find_ban(&bans, "198.51.100.7", &[]).as_deref(), Some("ip:198.51.100.7"));
    assert_eq!(find_ban(&bans, "2001:db8::ffff", &[]).as_deref(), Some("ip:2001:db8::/64"), "a neighbour");
    assert_eq!(find_ban(&bans, not_banned, &[("x-user", "bob")]).as_deref(), Some("user:bob"));
    assert_eq!(find_ban(&bans, not_banned, &[("x-tenant", "acme")]).as_deref(), Some("tenant:acme"));
    assert!(
        find_ban(&bans, not_banned, &[("x-api-key", "secret-of-alice")])
            .unwrap()
            .starts_with("api_key:secr…#")
    );
    assert!(find_ban(&bans, not_banned, &[("cookie", "session=abc")]).unwrap().starts_with("cookie:…#"));
    for headers in
        [[("x-user", "bobby")], [("x-tenant", "bob")], [("x-api-key", "bob")], [("cookie", "session=bob")]]
    {
        assert_eq!(find_ban(&bans, not_banned, &headers), None, "{headers:?}");
    }
    assert_eq!(find_ban(&bans, "198.51.100.8", &[]), None);
    assert_eq!(find_ban(&bans, "2001:db8:0:1::1", &[]), None);
}

#[test]
fn ban_of_fingerprint_or_long_user_is_found() {
    let long = "u".repeat(200);
    let plan = compile("policy.yaml", POLICY, &NoFiles).unwrap().plan;
    let headers: HeaderMap =
        [(http::header::USER_AGENT, HeaderValue::from_static("bot"))].into_iter().collect();
    let facts = Facts {
        method: "GET",
        host: Some(""),
        path: "/",
        headers: &headers,
        peer: [192, 0, 2, 1].into(),
        body: crate::BodyFacts::Unknown,
    };
    let print = plan.identities.identify(&facts, None, NOW).fingerprint().unwrap();
    let hex = print.map(|byte| format!("{byte:02x}")).concat();
    let bans = Bans::new([ban(&format!("fingerprint:{hex}"), None), ban(&format!("user:{long}"), None)]);
    assert_eq!(find_ban(&bans, "192.0.2.1", &[("user-agent", "bot")]), Some(format!("fingerprint:{hex}")));
    assert!(find_ban(&bans, "192.0.2.1", &[("x-user", &long)]).is_some());
    assert_eq!(find_ban(&bans, "192.0.2.1", &[("x-user", &"u".repeat(201))]), None);
}

#[test]
fn ban_expired_does_not_apply_but_wider_active_one_does() {
    let now = NOW.as_secs_ceil();
    let expired = Bans::new([ban("203.0.113.7", Some(now)), ban("user:bob", Some(now))]);
    assert_eq!(find_ban(&expired, "203.0.113.7", &[("x-user", "bob")]), None, "it ends at exactly this time");
    let wider = Bans::new([ban("203.0.113.7", Some(now)), ban("203.0.0.0/16", Some(now + 1))]);
    assert_eq!(find_ban(&wider, "203.0.113.7", &[]).as_deref(), Some("ip:203.0.0.0/16"));
}

#[test]
fn subject_displayed_parses_again_and_hides_secrets() {
    let shown = [
        ("203.0.113.7", "ip:203.0.113.7"),
        ("::ffff:203.0.113.7", "ip:203.0.113.7"),
        ("ip:203.0.113.0/24", "ip:203.0.113.0/24"),
        ("::ffff:198.51.7.0/120", "ip:198.51.7.0/24"),
        ("::ffff:0:0/96", "ip:0.0.0.0/0"),
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
    assert!(find_ban(&by_hash, "192.0.2.1", &[("x-api-key", "sk_live_51H_very_secret")]).is_some());
}

#[test]
fn subject_invalid_returns_the_reason() {
    let wrong = |text: &str| Subject::parse(text, 64).unwrap_err().to_string();
    assert!(wrong("203.0.113.7/24").contains("`203.0.113.0/24`"), "{}", wrong("203.0.113.7/24"));
    assert!(wrong("::ffff:198.51.7.1/120").contains("`198.51.7.0/24`"), "{}", wrong("::ffff:198.51.7.1/120"));
    assert!(wrong("::ffff:198.51.7.1/64").contains("96 to 128"), "{}", wrong("::ffff:198.51.7.1/64"));
    assert!(wrong("203.0.113").contains("all four parts"), "{}", wrong("203.0.113"));
    assert!(wrong("ip:everywhere").contains("invalid network"), "{}", wrong("ip:everywhere"));
    assert!(wrong("bob").contains("user:bob"));
    assert!(wrong("everybody").contains("one client"));
    assert!(wrong("anonymous").contains("one client"));
    assert!(wrong("user:a+tenant:b").contains("one client"));
    assert!(wrong("use:bob").contains("`user:…`"));
    assert!(wrong(&format!("user:{}", "x".repeat(5_000))).contains("at most"));
}

#[test]
fn cookie_ban_request_with_several_values_matches_any() {
    let bans = Bans::new([ban("cookie:abc", None)]);
    for cookies in ["session=abc; session=abc", "session=abc; session=", "session=x; session=\"abc\""] {
        assert!(find_ban(&bans, "192.0.2.1", &[("cookie", cookies)]).is_some(), "{cookies}");
    }
    assert_eq!(find_ban(&bans, "192.0.2.1", &[("cookie", "session=x; session=y")]), None);
}

#[test]
fn tenant_ban_request_with_a_key_of_another_tenant_matches_both() {
    let bans = Bans::new([ban("tenant:evil", None)]);
    for key in ["listed", "other", "unknown"] {
        let headers = [("x-tenant", "evil"), ("x-api-key", key)];
        assert!(find_ban(&bans, "192.0.2.1", &headers).is_some(), "{key}");
    }
    assert_eq!(find_ban(&bans, "192.0.2.1", &[("x-tenant", "good"), ("x-api-key", "listed")]), None);
    let bans = Bans::new([ban("tenant:acme", None)]);
    assert!(find_ban(&bans, "192.0.2.1", &[("x-tenant", "good"), ("x-api-key", "listed")]).is_some());
}
