//! gRPC itself: framing, statuses, authentication, deadlines, health, reflection, stopping.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use tidegate_telemetry::Protocol;
use tidegate_testkit::wait::within;

use super::client::{GrpcClient, RLS, descriptor, message, request};
use super::{OK, OVER_LIMIT};
use crate::fixture::TestService;

const CONFIG: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 2 } }
";

async fn connect(service: &TestService) -> GrpcClient {
    GrpcClient::connect(service.address(Protocol::Grpc)).await
}

fn call_of(user: &str) -> Bytes {
    message(&request("d", vec![descriptor(&[("user", user)])]))
}

#[tokio::test]
async fn rls_call_over_the_limit_is_answered_with_status_and_headers() {
    let service = TestService::start_envoy(CONFIG);
    let mut client = connect(&service).await;
    let call = request("d", vec![descriptor(&[("user", "bob")])]);
    for remaining in [1, 0] {
        let response = client.should_rate_limit(&call).await;
        assert_eq!((response.overall_code, response.statuses.len()), (OK, 1));
        assert_eq!(response.statuses[0].limit_remaining, remaining);
    }
    let response = client.should_rate_limit(&call).await;
    assert_eq!((response.overall_code, response.statuses[0].code), (OVER_LIMIT, OVER_LIMIT));
    let limit = response.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit), (2, 2));
    // 1,700,000,000 is 20 seconds after the start of a minute.
    assert_eq!(response.statuses[0].duration_until_reset.map(|reset| reset.seconds), Some(40));
    let header = |name: &str| {
        let found = response.headers.iter().find(|header| header.key == name);
        found.map(|header| header.value.clone()).unwrap_or_default()
    };
    assert_eq!(header("x-ratelimit-limit"), "2");
    assert_eq!(header("ratelimit"), "\"user\";r=0;t=40");
    let retry_after: u64 = header("retry-after").parse().unwrap();
    assert!((40..=44).contains(&retry_after), "{retry_after}");
    let metrics = service.metrics();
    assert!(
        metrics.contains("rate_limit_requests_total{decision=\"rejected\",protocol=\"grpc\"} 1"),
        "{metrics}"
    );
    assert!(metrics.contains("rule=\"envoy:d/user\""), "{metrics}");
    assert!(!metrics.contains("bob"), "values of descriptors are not in metrics");
}

#[tokio::test]
async fn grpc_compressed_message_is_refused_with_the_accepted_encoding() {
    let service = TestService::start_envoy(CONFIG);
    let mut client = connect(&service).await;
    let reply = client.call(RLS, &[("grpc-encoding", "gzip")], Bytes::from_static(&[1, 0, 0, 0, 1, 0])).await;
    assert_eq!(reply.code(), 12, "{reply:?}");
    assert_eq!(reply.trailers["grpc-accept-encoding"], "identity", "{reply:?}");
}

#[tokio::test]
async fn grpc_invalid_calls_get_their_statuses() {
    let service = TestService::start_envoy(CONFIG);
    let mut client = connect(&service).await;
    for (path, body, code) in [
        ("/envoy.service.ratelimit.v3.RateLimitService/Other", call_of("a"), 12),
        ("/", call_of("a"), 12),
        (RLS, Bytes::from_static(&[1, 0, 0, 0, 0]), 12),
        (RLS, Bytes::from_static(&[0, 0, 0, 0, 5, 1]), 13),
        (RLS, Bytes::from_static(&[0, 0, 0, 0, 1, 255]), 13),
        (RLS, Bytes::new(), 13),
        (RLS, [call_of("a"), call_of("a")].concat().into(), 13),
        (RLS, message(&request("", vec![descriptor(&[("user", "a")])])), 2),
        (RLS, message(&request("d", Vec::new())), 2),
        (RLS, message(&request("d", vec![descriptor(&[]); 129])), 3),
        (RLS, message(&request("d", vec![descriptor(&[("", ""); 1025])])), 3),
    ] {
        let reply = client.call(path, &[], body).await;
        assert_eq!((reply.status.as_u16(), reply.code()), (200, code), "{path} {reply:?}");
        assert!(reply.body.is_empty());
    }
    let reply = client.call(RLS, &[("content-type", "application/json")], call_of("a")).await;
    assert_eq!(reply.status.as_u16(), 415);
    assert_eq!(client.send("GET", RLS, &[], Bytes::new()).await.status.as_u16(), 405);
    let reply = client.call(RLS, &[("content-type", "application/grpc+proto")], call_of("a")).await;
    assert_eq!(reply.code(), 0, "the connection still works");
}

#[tokio::test]
async fn grpc_connection_serves_more_bytes_than_its_window() {
    let service = TestService::start_envoy(CONFIG);
    let mut client = connect(&service).await;
    // 40 messages of 60 KiB are more than twice the window: each call gives its part back.
    let long = "a".repeat(60 << 10);
    for number in 0..40 {
        let reply = client.call(RLS, &[], call_of(&long)).await;
        let response: super::client::RlsResponse = reply.message();
        assert_eq!(response.overall_code, if number < 2 { OK } else { OVER_LIMIT });
    }
}

#[tokio::test]
async fn grpc_calls_that_are_cancelled_give_the_window_back() {
    let service = TestService::start_envoy(CONFIG);
    let mut client = connect(&service).await;
    let long = call_of(&"a".repeat(60 << 10));
    let mut begun = Vec::new();
    // Together a little less than the window of 1 MiB.
    for _ in 0..17 {
        begun.push(client.begin(long.slice(..60 << 10)).await);
    }
    assert_eq!(client.call(RLS, &[], call_of("a")).await.code(), 0, "a small call has room");
    for mut stream in begun {
        stream.send_reset(h2::Reason::CANCEL);
    }
    assert_eq!(client.call(RLS, &[], long).await.code(), 0);
}

#[tokio::test]
async fn grpc_timeout_that_has_passed_decides_nothing() {
    let service = TestService::start_envoy(CONFIG);
    let mut client = connect(&service).await;
    let reply = client.call(RLS, &[("grpc-timeout", "0m")], call_of("a")).await;
    assert_eq!(reply.code(), 4);
    let reply = client.call(RLS, &[("grpc-timeout", "1S")], call_of("a")).await;
    let response: super::client::RlsResponse = reply.message();
    assert_eq!(response.statuses[0].limit_remaining, 1, "the late call was not charged");
}

#[tokio::test]
async fn grpc_token_is_required_for_calls_but_not_for_health_checks() {
    let files = BTreeMap::from([("token".to_owned(), b"0123456789abcdef".to_vec())]);
    let policy = "service: { grpc: { address: '127.0.0.1:1', token_file: token } }\nrate_limits: {}";
    let service = TestService::start_with_files(policy, &files);
    let mut client = connect(&service).await;
    for headers in [&[][..], &[("authorization", "Bearer wrong")], &[("authorization", "0123456789abcdef")]] {
        assert_eq!(client.call(RLS, headers, call_of("a")).await.code(), 16, "{headers:?}");
    }
    let right = [("authorization", "Bearer 0123456789abcdef")];
    assert_eq!(client.call(RLS, &right, call_of("a")).await.code(), 0);
    let health = client.call("/grpc.health.v1.Health/Check", &[], Bytes::from_static(&[0; 5])).await;
    assert_eq!(health.code(), 0);
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    assert_eq!(client.call(reflection, &[], Bytes::from_static(&[0; 5])).await.code(), 16);
}

#[derive(Clone, PartialEq, Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

#[tokio::test]
async fn health_check_knows_its_services_and_watch_ends_when_the_service_stops() {
    let service = TestService::start_envoy(CONFIG);
    let mut client = connect(&service).await;
    for (name, code) in [("", 0), ("envoy.service.ratelimit.v3.RateLimitService", 0), ("other", 5)] {
        let call = message(&HealthRequest { service: name.to_owned() });
        let reply = client.call("/grpc.health.v1.Health/Check", &[], call).await;
        assert_eq!(reply.code(), code, "{name}");
        if code == 0 {
            assert_eq!(reply.message::<HealthResponse>().status, 1);
        }
    }
    let watching = client.call("/grpc.health.v1.Health/Watch", &[], Bytes::from_static(&[0; 5]));
    let (reply, ()) = tokio::join!(watching, async {
        // Another connection shows that the watch has begun or will be refused; either way it ends.
        connect(&service).await.call(RLS, &[], call_of("a")).await;
        service.begin_stop();
    });
    // Both statuses, or none if the service stopped before the call arrived.
    assert!(reply.body.ends_with(&[0, 0, 0, 0, 2, 8, 2]), "{reply:?}");
    assert_eq!(reply.code(), 0);
    within("the connection ends", client.connection).await.unwrap().unwrap();
}

#[derive(Clone, PartialEq, Message)]
struct ReflectionQuestion {
    #[prost(string, tag = "4")]
    symbol: String,
    #[prost(string, tag = "7")]
    list: String,
}

#[tokio::test]
async fn reflection_lists_services_and_returns_files() {
    let service = TestService::start_envoy(CONFIG);
    let mut client = connect(&service).await;
    for version in ["v1", "v1alpha"] {
        let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        let list = ReflectionQuestion { symbol: String::new(), list: "*".to_owned() };
        let symbol = "envoy.service.ratelimit.v3.RateLimitService".to_owned();
        let files = ReflectionQuestion { symbol, list: String::new() };
        let reply = client.call(&path, &[], [message(&list), message(&files)].concat().into()).await;
        assert_eq!(reply.code(), 0);
        let text = String::from_utf8_lossy(&reply.body);
        for expected in ["grpc.health.v1.Health", "ShouldRateLimit", "google/protobuf/duration.proto"] {
            assert!(text.contains(expected), "{expected}");
        }
    }
}
