//! API keys that nobody has verified free no request from the limit of its address.

use tidegate_testkit::server::RecordingServer;

use super::{over_both, over_http1, over_http2};
use crate::fixture::{ResourceLimits, TestGateway, hourly, policy_before};

fn served(upstream: &RecordingServer, clients: &str, files: &[(&str, &str)]) -> TestGateway {
    let more = format!("clients: {{ {clients} }}\nrate_limits: {{ default: {{ {} }} }}", hourly(10));
    TestGateway::with_files(&policy_before(&[upstream], &more), files)
}

#[tokio::test]
async fn invented_keys_without_keys_file_share_the_limit_of_their_address() {
    let upstream = RecordingServer::start().await;
    let written = served(&upstream, "identify_by: [api_key, ip]", &[]);
    let default = TestGateway::with_limit(&[&upstream], 10, ResourceLimits::default());
    for served in [written, default] {
        for turn in 0..5 {
            let key = format!("invented-{turn}");
            for (response, left) in over_both(&served, &[("x-api-key", &key)]).await.iter().zip([9, 8]) {
                assert_eq!((response.status, response.remaining()), (200, left - 2 * turn), "{key}");
            }
        }
        for response in over_both(&served, &[("x-api-key", "one-more")]).await {
            assert_eq!(response.status, 429);
        }
    }
}

#[tokio::test]
async fn unverified_key_falls_through_to_the_next_identity() {
    let upstream = RecordingServer::start().await;
    let served = served(&upstream, "identify_by: [api_key, cookie, ip], cookie: { name: session }", &[]);
    let ask = |key: &'static str, cookie: &'static str| {
        let served = &served;
        async move { over_http1(served, &[("x-api-key", key), ("cookie", cookie)]).await.remaining() }
    };
    assert_eq!(ask("a", "session=1").await, 9);
    assert_eq!(ask("b", "session=1").await, 8);
    assert_eq!(ask("a", "session=2").await, 9);
}

#[tokio::test]
async fn every_key_is_a_client_if_the_policy_says_verify_none() {
    let upstream = RecordingServer::start().await;
    let served = served(&upstream, "api_key: { header: X-Key, verify: none }", &[]);
    for key in ["a", "b", "c"] {
        for (response, left) in over_both(&served, &[("x-key", key)]).await.iter().zip([9, 8]) {
            assert_eq!(response.remaining(), left, "{key}");
        }
    }
    assert_eq!(served.get_raw("/").await.remaining(), 9);
}

#[tokio::test]
async fn exempt_and_banned_keys_are_found_without_keys_file() {
    let upstream = RecordingServer::start().await;
    let served = served(&upstream, "exempt: { api_keys_file: friends.txt }", &[("friends.txt", "friend\n")]);
    for response in over_both(&served, &[("x-api-key", "friend")]).await {
        assert_eq!((response.status, response.header("x-ratelimit-remaining")), (200, None));
    }
    assert_eq!(over_http2(&served, &[("x-api-key", "foe")]).await.remaining(), 9);
    served.ban("api_key:foe");
    for response in over_both(&served, &[("x-api-key", "foe")]).await {
        assert_eq!(response.status, 403);
    }
}
