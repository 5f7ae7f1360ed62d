//! Hits, overrides, extensions and reloads of descriptors.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tidegate_core::TimeSpan;
use tidegate_telemetry::Protocol;

use super::client::{GrpcClient, RLS, RlsDescriptor, RlsOverride, descriptor, message, request};
use super::{OK, OVER_LIMIT};
use crate::fixture::TestService;

const CONFIG: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - { key: burst, rate_limit: { unit: minute, unit_multiplier: 2, requests_per_unit: 4, algorithm: token_bucket } }
";

async fn start(config: &str) -> (TestService, GrpcClient) {
    let service = TestService::start_envoy(config);
    let client = GrpcClient::connect(service.address(Protocol::Grpc)).await;
    (service, client)
}

#[tokio::test]
async fn hits_of_the_descriptor_replace_those_of_the_request() {
    let (_service, mut client) = start(CONFIG).await;
    let mut call = request("d", vec![descriptor(&[("user", "bob")])]);
    let mut remaining = async |call: &_| {
        let response = client.should_rate_limit(call).await;
        (response.overall_code, response.statuses[0].limit_remaining)
    };
    assert_eq!(remaining(&call).await, (OK, 9), "no hits are one hit");
    call.hits_addend = 3;
    assert_eq!(remaining(&call).await, (OK, 6));
    call.descriptors[0].hits_addend = Some(0);
    assert_eq!(remaining(&call).await, (OK, 6), "0 peeks");
    call.descriptors[0].hits_addend = Some(7);
    assert_eq!(remaining(&call).await, (OVER_LIMIT, 6));
    call.descriptors[0].hits_addend = Some(6);
    assert_eq!(remaining(&call).await, (OK, 0));
}

#[tokio::test]
async fn limit_of_zero_has_the_end_of_its_window() {
    let config =
        "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: minute, requests_per_unit: 0 } }]";
    let (service, mut client) = start(config).await;
    let mut carried = descriptor(&[("user", "bob")]);
    carried.limit = Some(RlsOverride { requests_per_unit: 0, unit: 2 });
    let call = request("d", vec![descriptor(&[("user", "bob")]), carried]);
    // 1,700,000,000 is 20 seconds after the start of a minute.
    for seconds in [40, 35, 60] {
        let response = client.should_rate_limit(&call).await;
        assert_eq!(response.overall_code, OVER_LIMIT);
        for status in &response.statuses {
            let reset = status.duration_until_reset.map(|reset| reset.seconds);
            assert_eq!((status.code, reset), (OVER_LIMIT, Some(seconds)));
        }
        assert!(response.headers.iter().all(|header| header.key != "retry-after"), "it never admits");
        service.clock.advance(TimeSpan::from_secs(if seconds == 40 { 5 } else { 35 }));
    }
}

#[tokio::test]
async fn unlimited_descriptor_that_another_replaces_stays_unlimited() {
    let config = "
domain: d
descriptors:
  - { key: free, rate_limit: { unlimited: true, name: free } }
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 5, name: user } }
  - { key: vip, rate_limit: { unit: minute, requests_per_unit: 10, replaces: [{ name: free }, { name: user }] } }
";
    let (_service, mut client) = start(config).await;
    let descriptors = ["free", "user", "vip"].map(|key| descriptor(&[(key, "bob")]));
    let response = client.should_rate_limit(&request("d", descriptors.to_vec())).await;
    let remaining: Vec<_> = response.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!(remaining, [u32::MAX, 0, 9]);
}

#[tokio::test]
async fn override_of_a_request_replaces_the_configured_limit() {
    let (_service, mut client) = start(CONFIG).await;
    let with_limit = |requests_per_unit, unit| {
        let mut descriptor = descriptor(&[("user", "bob")]);
        descriptor.limit = Some(RlsOverride { requests_per_unit, unit });
        descriptor
    };
    let call = request("d", vec![with_limit(2, 3)]);
    for code in [OK, OK, OVER_LIMIT] {
        let response = client.should_rate_limit(&call).await;
        assert_eq!(response.overall_code, code);
        let limit = response.statuses[0].current_limit.clone().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit), (2, 3));
    }
    let configured = request("d", vec![descriptor(&[("user", "bob")])]);
    assert_eq!(client.should_rate_limit(&configured).await.statuses[0].limit_remaining, 9);
    let different = request("d", vec![with_limit(1, 1), with_limit(5, 2), with_limit(0, 2)]);
    assert_eq!(client.should_rate_limit(&different).await.statuses.len(), 3);
    for unit in [0, 8, -1] {
        let call = message(&request("d", vec![with_limit(1, unit)]));
        assert_eq!(client.call(RLS, &[], call).await.code(), 3, "{unit}");
    }
}

#[tokio::test]
async fn extension_token_bucket_refills_within_its_window() {
    let (service, mut client) = start(CONFIG).await;
    let call = request("d", vec![descriptor(&[("burst", "x")])]);
    for _ in 0..4 {
        assert_eq!(client.should_rate_limit(&call).await.overall_code, OK);
    }
    let response = client.should_rate_limit(&call).await;
    assert_eq!(response.statuses[0].duration_until_reset.map(|reset| reset.seconds), Some(30));
    service.clock.advance(TimeSpan::from_secs(30));
    assert_eq!(client.should_rate_limit(&call).await.overall_code, OK);
    assert_eq!(client.should_rate_limit(&call).await.overall_code, OVER_LIMIT);
}

#[tokio::test]
async fn reload_applies_new_limits_and_keeps_counters() {
    let (service, mut client) = start(CONFIG).await;
    let mut call = request("d", vec![descriptor(&[("user", "bob")])]);
    call.hits_addend = 8;
    assert_eq!(client.should_rate_limit(&call).await.statuses[0].limit_remaining, 2);
    service.apply_envoy(
        "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: minute, requests_per_unit: 20 } }]",
    );
    assert_eq!(client.should_rate_limit(&call).await.statuses[0].limit_remaining, 4);
    service.apply_envoy("domain: other");
    assert_eq!(client.should_rate_limit(&call).await.statuses[0].current_limit, None);
}

/// One descriptor: its key, and the limit that it carries.
fn descriptors() -> impl Strategy<Value = Vec<(String, Option<(u32, i32)>)>> {
    let key = prop_oneof!["user", "burst", "other"];
    proptest::collection::vec((key, proptest::option::of((0_u32..3, 1_i32..8))), 1..20)
}

#[test]
fn statuses_have_the_length_and_order_of_the_descriptors() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_service, client) = runtime.block_on(start(CONFIG));
    let client = std::cell::RefCell::new(client);
    let law = |cases: Vec<(String, Option<(u32, i32)>)>| {
        let descriptor = |(key, limit): &(String, Option<(u32, i32)>)| {
            let limit = limit.map(|(requests_per_unit, unit)| RlsOverride { requests_per_unit, unit });
            RlsDescriptor { limit, ..descriptor(&[(key, "v")]) }
        };
        let call = request("d", cases.iter().map(descriptor).collect());
        let response = runtime.block_on(client.borrow_mut().should_rate_limit(&call));
        prop_assert_eq!(response.statuses.len(), cases.len());
        for ((key, limit), status) in cases.iter().zip(&response.statuses) {
            let expected = match (limit, key.as_str()) {
                (Some((requests, _)), _) => Some(*requests),
                (None, "user") => Some(10),
                (None, "burst") => Some(4),
                _ => None,
            };
            let found = status.current_limit.as_ref().map(|limit| limit.requests_per_unit);
            prop_assert_eq!(found, expected);
        }
        let is_over = response.statuses.iter().any(|status| status.code == OVER_LIMIT);
        prop_assert_eq!(response.overall_code == OVER_LIMIT, is_over);
        Ok(())
    };
    TestRunner::new(ProptestConfig::with_cases(64)).run(&descriptors(), law).unwrap();
}
