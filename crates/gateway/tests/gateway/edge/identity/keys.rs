//! Requests with unverified API keys stay under the limit of their address.

use tidegate_testkit::server::RecordingServer;

use super::{over_both, over_http1, over_http2};
use crate::fixture::{ResourceLimits, TestGateway, hourly, policy_before};

fn gateway(upstream: &RecordingServer, clients: &str, files: &[(&str, &str)]) -> TestGateway {
    let more = format!("clients: {{ {clients} }}\nrate_limits: {{ default: {{ {} }} }}", hourly(10));
    TestGateway::with_files(&policy_before(&[upstream], &more), files)
}

#[tokio::test]
async fn invented_api_keys_without_a_keys_file_share_the_limit_of_their_address() {
    let upstream = RecordingServer::start().await;
    let configured = gateway(&upstream, "identify_by: [api_key, ip]", &[]);
    let default = TestGateway::with_limit(&[&upstream], 10, ResourceLimits::default());
    for gateway in [configured, default] {
        for turn in 0..5 {
            let key = format!("invented-{turn}");
            for (response, left) in over_both(&gateway, &[("x-api-key", &key)]).await.iter().zip([9, 8]) {
                assert_eq!((response.status, response.remaining()), (200, left - 2 * turn), "{key}");
            }
        }
        for response in over_both(&gateway, &[("x-api-key", "one-more")]).await {
            assert_eq!(response.status, 429);
        }
    }
}

#[tokio::test]
async fn guessed_keys_that_are_rejected_are_counted_by_address() {
    let upstream = RecordingServer::start().await;
    let more = format!(
        "clients: {{ identify_by: [api_key, ip], tiers: {{ file: keys.csv }}, on_invalid: reject }}\n\
         rate_limits:\n  default: {{ {}, penalty: {{ after: 1, for: 1h }} }}\n  tiers: {{ known: {{ {} }} }}",
        hourly(6),
        hourly(6)
    );
    let gateway = TestGateway::with_files(&policy_before(&[&upstream], &more), &super::KEYS);
    for turn in 0..3 {
        let key = format!("invented-{turn}");
        for response in over_both(&gateway, &[("x-api-key", &key)]).await {
            assert_eq!(response.status, 401, "{key}");
        }
    }
    // Beyond the limit the address is locked out, whatever key it invents, and no other client.
    for response in over_both(&gateway, &[("x-api-key", "invented-3")]).await {
        assert_eq!(response.status, 429);
    }
    assert_eq!(over_http1(&gateway, &[]).await.status, 429);
    assert_eq!(over_http1(&gateway, &[("x-api-key", "k")]).await.remaining(), 5);
    assert_eq!(upstream.requests().len(), 1);
}

#[tokio::test]
async fn guessed_keys_above_a_limit_that_degrades_stay_charged_to_the_others() {
    let upstream = RecordingServer::start().await;
    let more = "clients: { identify_by: [api_key, ip], tiers: { file: keys.csv }, on_invalid: reject }\n\
                rate_limits:\n  default: { requests: 1, window: 1h, on_exceed: degrade }\n  tiers: { known: { requests: 9, window: 1h } }\n  \
                rules: [{ name: guard, per: [ip], requests: 4, window: 1h }]";
    let gateway = TestGateway::with_files(&policy_before(&[&upstream], more), &super::KEYS);
    let mut statuses = Vec::new();
    for turn in 0..6 {
        let key = format!("invented-{turn}");
        statuses.push(over_http1(&gateway, &[("x-api-key", &key)]).await.status);
    }
    assert_eq!(statuses, [401, 401, 401, 401, 429, 429]);
}

#[tokio::test]
async fn unverified_api_key_falls_through_to_the_next_identity() {
    let upstream = RecordingServer::start().await;
    let gateway = gateway(&upstream, "identify_by: [api_key, cookie, ip], cookie: { name: session }", &[]);
    let remaining = |key: &'static str, cookie: &'static str| {
        let gateway = &gateway;
        async move { over_http1(gateway, &[("x-api-key", key), ("cookie", cookie)]).await.remaining() }
    };
    assert_eq!(remaining("a", "session=1").await, 9);
    assert_eq!(remaining("b", "session=1").await, 8);
    assert_eq!(remaining("a", "session=2").await, 9);
}

#[tokio::test]
async fn api_keys_with_verify_none_are_separate_clients() {
    let upstream = RecordingServer::start().await;
    let gateway = gateway(&upstream, "api_key: { header: X-Key, verify: none }", &[]);
    for key in ["a", "b", "c"] {
        for (response, left) in over_both(&gateway, &[("x-key", key)]).await.iter().zip([9, 8]) {
            assert_eq!(response.remaining(), left, "{key}");
        }
    }
    assert_eq!(gateway.get_raw("/").await.remaining(), 9);
}

#[tokio::test]
async fn exempt_and_banned_api_keys_apply_without_a_keys_file() {
    let upstream = RecordingServer::start().await;
    let gateway =
        gateway(&upstream, "exempt: { api_keys_file: friends.txt }", &[("friends.txt", "friend\n")]);
    for response in over_both(&gateway, &[("x-api-key", "friend")]).await {
        assert_eq!((response.status, response.header("x-ratelimit-remaining")), (200, None));
    }
    assert_eq!(over_http2(&gateway, &[("x-api-key", "foe")]).await.remaining(), 9);
    gateway.ban("api_key:foe");
    for response in over_both(&gateway, &[("x-api-key", "foe")]).await {
        assert_eq!(response.status, 403);
    }
}
