//! Who is banned, who is exempt, and who is who.

use tidegate_core::Timestamp;
use tidegate_policy::{Ban, Bans, Subject};
use tidegate_testkit::server::HttpServer;

use crate::fixture::{ResourceLimits, TestGateway};

const ONE: &str = "rate_limits: { default: { requests: 1, window: 1h, algorithm: sliding_window_log } }";

async fn proxy(rest: &str, files: &[(&str, &str)]) -> (TestGateway, HttpServer) {
    let upstream = HttpServer::named("served").await;
    let proxy =
        TestGateway::with(&[upstream.url()], &format!("{ONE}\n{rest}\n"), files, ResourceLimits::default());
    (proxy, upstream)
}

#[tokio::test]
async fn a_banned_network_gets_403_and_nothing_about_limits() {
    let (proxy, _upstream) = proxy("bans: { networks: [127.0.0.0/8] }", &[]).await;
    let answer = proxy.get("/").await;
    assert_eq!(answer.status, 403);
    assert_eq!(answer.json()["error"], "banned");
    assert_eq!(answer.header("retry-after"), None);
    assert_eq!(answer.header("x-ratelimit-limit"), None);
}

#[tokio::test]
async fn a_ban_from_a_file_finds_the_client_behind_a_trusted_proxy() {
    let rest = "clients: { ip: { trusted_proxies: [127.0.0.1] } }\nbans: { file: bans.txt }";
    let (proxy, _upstream) = proxy(rest, &[("bans.txt", "203.0.113.0/24 # abuse\n")]).await;
    assert_eq!(proxy.get_with("/", &[("x-forwarded-for", "203.0.113.9")]).await.status, 403);
    assert_eq!(proxy.get_with("/", &[("x-forwarded-for", "203.0.114.9")]).await.status, 200);
}

#[tokio::test]
async fn exempt_network_that_the_policy_bans_gets_403() {
    let exempt = "clients: { exempt: { networks: [127.0.0.0/8] }, ip: { trusted_proxies: [127.0.0.1] } }";
    let (proxy, _upstream) = proxy(&format!("{exempt}\nbans: {{ networks: [127.0.0.9] }}"), &[]).await;
    assert_eq!(proxy.get_with("/", &[("x-forwarded-for", "127.0.0.9")]).await.status, 403);
    for _ in 0..5 {
        let answer = proxy.get("/").await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "served"));
        assert_eq!(answer.header("x-ratelimit-limit"), None);
    }
}

#[tokio::test]
async fn an_exempt_key_is_not_limited_and_costs_others_nothing() {
    let rest = "clients: { identify_by: [ip], exempt: { api_keys_file: friends.txt } }";
    let (proxy, _upstream) = proxy(rest, &[("friends.txt", "friend\n")]).await;
    for _ in 0..5 {
        assert_eq!(proxy.get_with("/", &[("x-api-key", "friend")]).await.status, 200);
    }
    assert_eq!(proxy.get("/").await.status, 200);
    assert_eq!(proxy.get_with("/", &[("x-api-key", "foe")]).await.status, 429);
}

#[tokio::test]
async fn every_key_is_a_client_where_none_is_verified() {
    let (proxy, _upstream) = proxy("clients: { api_key: { verify: none } }", &[]).await;
    for key in ["a", "b", "c"] {
        assert_eq!(proxy.get_with("/", &[("x-api-key", key)]).await.status, 200);
        assert_eq!(proxy.get_with("/", &[("x-api-key", key)]).await.status, 429);
    }
}

#[tokio::test]
async fn with_a_directory_an_unknown_key_falls_through_to_the_address() {
    let upstream = HttpServer::named("served").await;
    let policy = "
clients: { identify_by: [api_key, ip], tiers: { file: keys.csv } }
rate_limits:
  default: { requests: 2, window: 1h, algorithm: sliding_window_log }
  tiers: { premium: { requests: 9, window: 1h, algorithm: sliding_window_log } }
";
    let files = [("keys.csv", "key,tier\nknown,premium\n")];
    let proxy = TestGateway::with(&[upstream.url()], policy, &files, ResourceLimits::default());
    let known = proxy.get_with("/", &[("x-api-key", "known")]).await;
    assert_eq!(known.number("x-ratelimit-limit"), 9);
    let invented = proxy.get_with("/", &[("x-api-key", "invented-1")]).await;
    assert_eq!((invented.number("x-ratelimit-limit"), invented.number("x-ratelimit-remaining")), (2, 1));
    assert_eq!(proxy.get_with("/", &[("x-api-key", "invented-2")]).await.number("x-ratelimit-remaining"), 0);
    assert_eq!(proxy.get("/").await.status, 429, "all of them are one address");
    assert_eq!(proxy.get_with("/", &[("x-api-key", "known")]).await.number("x-ratelimit-remaining"), 7);
}

/// Whom an operator bans, until then.
fn ban(subject: &str, until: Timestamp) -> Ban {
    let subject = Subject::parse(subject, 64).unwrap();
    Ban { subject, reason: "abuse".to_owned(), since: Timestamp::ZERO, until: Some(until) }
}

#[tokio::test]
async fn a_ban_at_run_time_holds_at_once_for_networks_and_clients_until_it_ends_or_is_taken_back() {
    let rest =
        "clients: { identify_by: [user], user: { header: X-User }, ip: { trusted_proxies: [127.0.0.1] } }";
    let (proxy, _upstream) = proxy(rest, &[]).await;
    let as_user = |name| [("x-user", name)];
    proxy.set_bans(Bans::new([ban("user:bob", Timestamp::MAX), ban("user:eve", Timestamp::from_secs(1))]));
    let answer = proxy.get_with("/", &as_user("bob")).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]), (403, &"banned".into()));
    assert_eq!(proxy.get_with("/", &as_user("eve")).await.status, 200, "hers is over");
    assert_eq!(proxy.get_with("/", &as_user("carol")).await.status, 200);
    proxy.set_bans(Bans::new([ban("127.0.0.0/8", Timestamp::MAX)]));
    assert_eq!(proxy.get_with("/", &as_user("dave")).await.status, 403);
    proxy.set_bans(Bans::default());
    assert_eq!(proxy.get_with("/", &as_user("bob")).await.status, 200, "what was refused was not charged");
}

#[tokio::test]
async fn exempt_client_that_an_operator_bans_gets_403_until_the_ban_is_lifted() {
    let rest = "clients: { exempt: { networks: [127.0.0.1], api_keys_file: friends.txt } }";
    let (proxy, _upstream) = proxy(rest, &[("friends.txt", "friend\n")]).await;
    for subject in ["127.0.0.1", "api_key:friend"] {
        proxy.set_bans(Bans::new([ban(subject, Timestamp::MAX)]));
        assert_eq!(proxy.get_with("/", &[("x-api-key", "friend")]).await.status, 403, "{subject}");
    }
    proxy.set_bans(Bans::default());
    for _ in 0..3 {
        assert_eq!(proxy.get_with("/", &[("x-api-key", "friend")]).await.status, 200);
    }
}
