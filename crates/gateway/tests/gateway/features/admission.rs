//! Bans, exemptions and the identification of clients.

use tidegate_core::Timestamp;
use tidegate_policy::{Ban, Bans, Subject};
use tidegate_testkit::server::HttpServer;

use crate::fixture::{ResourceLimits, TestGateway};

const ONE: &str = "rate_limits: { default: { requests: 1, window: 1h, algorithm: sliding_window_log } }";

async fn gateway(rest: &str, files: &[(&str, &str)]) -> (TestGateway, HttpServer) {
    let upstream = HttpServer::named("served").await;
    let gateway =
        TestGateway::with(&[upstream.url()], &format!("{ONE}\n{rest}\n"), files, ResourceLimits::default());
    (gateway, upstream)
}

#[tokio::test]
async fn banned_network_gets_403_without_limit_headers() {
    let (gateway, _upstream) = gateway("bans: { networks: [127.0.0.0/8] }", &[]).await;
    let response = gateway.get("/").await;
    assert_eq!(response.status, 403);
    assert_eq!(response.json()["error"], "banned");
    assert_eq!(response.header("retry-after"), None);
    assert_eq!(response.header("x-ratelimit-limit"), None);
}

#[tokio::test]
async fn ban_from_a_file_applies_to_the_client_behind_a_trusted_proxy() {
    let rest = "clients: { ip: { trusted_proxies: [127.0.0.1] } }\nbans: { file: bans.txt }";
    let (gateway, _upstream) = gateway(rest, &[("bans.txt", "203.0.113.0/24 # abuse\n")]).await;
    assert_eq!(gateway.get_with("/", &[("x-forwarded-for", "203.0.113.9")]).await.status, 403);
    assert_eq!(gateway.get_with("/", &[("x-forwarded-for", "203.0.114.9")]).await.status, 200);
}

#[tokio::test]
async fn request_from_outside_of_allow_gets_403_with_its_own_code() {
    let rest = "clients: { ip: { trusted_proxies: [127.0.0.1] } }\nallow: { file: partners.txt }";
    let (gateway, _upstream) = gateway(rest, &[("partners.txt", "203.0.113.0/24 # a partner\n")]).await;
    assert_eq!(gateway.get_with("/", &[("x-forwarded-for", "203.0.113.9")]).await.status, 200);
    for address in ["203.0.112.9", "203.0.113.9, 192.0.2.1"] {
        let response = gateway.get_with("/", &[("x-forwarded-for", address)]).await;
        assert_eq!((response.status.as_u16(), &response.json()["error"]), (403, &"not_allowed".into()));
        assert_eq!(response.header("x-ratelimit-limit"), None);
    }
}

#[tokio::test]
async fn exempt_network_banned_by_the_policy_gets_403() {
    let exempt = "clients: { exempt: { networks: [127.0.0.0/8] }, ip: { trusted_proxies: [127.0.0.1] } }";
    let (gateway, _upstream) = gateway(&format!("{exempt}\nbans: {{ networks: [127.0.0.9] }}"), &[]).await;
    assert_eq!(gateway.get_with("/", &[("x-forwarded-for", "127.0.0.9")]).await.status, 403);
    for _ in 0..5 {
        let response = gateway.get("/").await;
        assert_eq!((response.status.as_u16(), response.text()), (200, "served"));
        assert_eq!(response.header("x-ratelimit-limit"), None);
    }
}

#[tokio::test]
async fn exempt_api_key_is_not_limited_and_not_counted_for_its_address() {
    let rest = "clients: { identify_by: [ip], exempt: { api_keys_file: friends.txt } }";
    let (gateway, _upstream) = gateway(rest, &[("friends.txt", "friend\n")]).await;
    for _ in 0..5 {
        assert_eq!(gateway.get_with("/", &[("x-api-key", "friend")]).await.status, 200);
    }
    assert_eq!(gateway.get("/").await.status, 200);
    assert_eq!(gateway.get_with("/", &[("x-api-key", "foe")]).await.status, 429);
}

#[tokio::test]
async fn unverified_api_keys_are_separate_clients() {
    let (gateway, _upstream) = gateway("clients: { api_key: { verify: none } }", &[]).await;
    for key in ["a", "b", "c"] {
        assert_eq!(gateway.get_with("/", &[("x-api-key", key)]).await.status, 200);
        assert_eq!(gateway.get_with("/", &[("x-api-key", key)]).await.status, 429);
    }
}

#[tokio::test]
async fn unknown_api_key_with_a_keys_file_is_counted_by_address() {
    let upstream = HttpServer::named("served").await;
    let policy = "
clients: { identify_by: [api_key, ip], tiers: { file: keys.csv } }
rate_limits:
  default: { requests: 2, window: 1h, algorithm: sliding_window_log }
  tiers: { premium: { requests: 9, window: 1h, algorithm: sliding_window_log } }
";
    let files = [("keys.csv", "key,tier\nknown,premium\n")];
    let gateway = TestGateway::with(&[upstream.url()], policy, &files, ResourceLimits::default());
    let known = gateway.get_with("/", &[("x-api-key", "known")]).await;
    assert_eq!(known.number("x-ratelimit-limit"), 9);
    let invented = gateway.get_with("/", &[("x-api-key", "invented-1")]).await;
    assert_eq!((invented.number("x-ratelimit-limit"), invented.number("x-ratelimit-remaining")), (2, 1));
    assert_eq!(
        gateway.get_with("/", &[("x-api-key", "invented-2")]).await.number("x-ratelimit-remaining"),
        0
    );
    assert_eq!(gateway.get("/").await.status, 429, "unknown keys share the limit of their address");
    assert_eq!(gateway.get_with("/", &[("x-api-key", "known")]).await.number("x-ratelimit-remaining"), 7);
}

/// A ban by an operator that ends at `until`.
fn ban(subject: &str, until: Timestamp) -> Ban {
    let subject = Subject::parse(subject, 64).unwrap();
    Ban { subject, reason: "abuse".to_owned(), since: Timestamp::ZERO, until: Some(until) }
}

#[tokio::test]
async fn runtime_ban_of_a_network_or_client_applies_until_it_ends_or_is_removed() {
    let rest =
        "clients: { identify_by: [user], user: { header: X-User }, ip: { trusted_proxies: [127.0.0.1] } }";
    let (gateway, _upstream) = gateway(rest, &[]).await;
    let as_user = |name| [("x-user", name)];
    gateway.set_bans(Bans::new([ban("user:bob", Timestamp::MAX), ban("user:eve", Timestamp::from_secs(1))]));
    let response = gateway.get_with("/", &as_user("bob")).await;
    assert_eq!((response.status.as_u16(), &response.json()["error"]), (403, &"banned".into()));
    assert_eq!(gateway.get_with("/", &as_user("eve")).await.status, 200, "this ban has ended");
    assert_eq!(gateway.get_with("/", &as_user("carol")).await.status, 200);
    gateway.set_bans(Bans::new([ban("127.0.0.0/8", Timestamp::MAX)]));
    assert_eq!(gateway.get_with("/", &as_user("dave")).await.status, 403);
    gateway.set_bans(Bans::default());
    assert_eq!(gateway.get_with("/", &as_user("bob")).await.status, 200, "rejected requests are not charged");
}

#[tokio::test]
async fn exempt_client_banned_by_an_operator_gets_403_until_the_ban_is_removed() {
    let rest = "clients: { exempt: { networks: [127.0.0.1], api_keys_file: friends.txt } }";
    let (gateway, _upstream) = gateway(rest, &[("friends.txt", "friend\n")]).await;
    for subject in ["127.0.0.1", "api_key:friend"] {
        gateway.set_bans(Bans::new([ban(subject, Timestamp::MAX)]));
        assert_eq!(gateway.get_with("/", &[("x-api-key", "friend")]).await.status, 403, "{subject}");
    }
    gateway.set_bans(Bans::default());
    for _ in 0..3 {
        assert_eq!(gateway.get_with("/", &[("x-api-key", "friend")]).await.status, 200);
    }
}
