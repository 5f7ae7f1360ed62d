//! The kinds of configurations that the reference server documents load and decide as documented.

use tidegate_core::TimeSpan;
use tidegate_telemetry::Protocol;

use super::client::{GrpcClient, RlsResponse, descriptor, request};
use super::{OK, OVER_LIMIT};
use crate::fixture::TestService;

/// All configurations; each domain is a file.
const CONFIG: &str = "
domain: database
descriptors:
  - { key: database, value: users, rate_limit: { unit: second, requests_per_unit: 5 } }
  - { key: database, value: default, rate_limit: { unit: second, requests_per_unit: 5 } }
---
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - { key: to_number, rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: to_number, rate_limit: { unit: day, requests_per_unit: 3 } }
---
domain: per_ip
descriptors:
  - { key: remote_address, rate_limit: { unit: second, requests_per_unit: 2 } }
  - { key: remote_address, value: 50.0.0.5, rate_limit: { unit: second, requests_per_unit: 0 } }
---
domain: depth
descriptors:
  - { key: key, value: value, rate_limit: { unit: second, requests_per_unit: 1 } }
---
domain: internal
descriptors:
  - { key: ldap, rate_limit: { unlimited: true } }
  - { key: azure, rate_limit: { unit: minute, requests_per_unit: 100 } }
---
domain: shadow
descriptors:
  - key: service
    descriptors:
      - { key: user, value: a, rate_limit: { unit: second, requests_per_unit: 1 }, shadow_mode: true }
      - { key: user, value: b, rate_limit: { unit: second, requests_per_unit: 1 } }
---
domain: replaces
descriptors:
  - key: one
    descriptors:
      - { key: user, rate_limit: { name: specific, unit: second, requests_per_unit: 1 } }
  - key: two
    descriptors:
      - { key: user, rate_limit: { unit: second, requests_per_unit: 3, replaces: [{ name: specific }] } }
---
domain: quotas
descriptors:
  - { key: generic, rate_limit: { unit: hour, requests_per_unit: 8 } }
  - key: service
    value: service_1
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
    metadata: { service_with_quota: { name: service_1 } }
  - key: service
    value: service_2
    quota_mode: true
    rate_limit: { unit: hour, requests_per_unit: 2 }
    metadata: { service_with_quota: { name: service_2 } }
  - { key: service, value: none, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 0 } }
---
domain: detailed
descriptors:
  - { key: key1, detailed_metric: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: key1, value: value1, value_to_metric: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
---
domain: wildcards
descriptors:
  - { key: path, value: '/api/*/action', rate_limit: { unit: minute, requests_per_unit: 1 } }
---
domain: shared
descriptors:
  - { key: files, value: 'files/*', share_threshold: true, rate_limit: { unit: hour, requests_per_unit: 2 } }
  - { key: own, value: 'files/*', share_threshold: false, rate_limit: { unit: hour, requests_per_unit: 1 } }
";

struct Documented {
    service: TestService,
    client: GrpcClient,
}

impl Documented {
    async fn start() -> Self {
        let service = TestService::start_envoy(CONFIG);
        let client = GrpcClient::connect(service.address(Protocol::Grpc)).await;
        Self { service, client }
    }

    async fn ask(&mut self, domain: &str, descriptors: &[&[(&str, &str)]]) -> RlsResponse {
        let descriptors = descriptors.iter().map(|entries| descriptor(entries)).collect();
        self.client.should_rate_limit(&request(domain, descriptors)).await
    }

    /// How many of `calls` equal calls with one descriptor are admitted.
    async fn admitted(&mut self, domain: &str, entries: &[(&str, &str)], calls: usize) -> usize {
        let mut admitted = 0;
        for _ in 0..calls {
            admitted += usize::from(self.ask(domain, &[entries]).await.overall_code == OK);
        }
        admitted
    }
}

#[tokio::test]
async fn documented_values_have_counters_of_their_own_until_the_unit_ends() {
    let mut test = Documented::start().await;
    assert_eq!(test.admitted("database", &[("database", "users")], 7).await, 5);
    assert_eq!(test.admitted("database", &[("database", "default")], 7).await, 5);
    assert_eq!(test.admitted("database", &[("database", "other")], 7).await, 7, "no limit");
    test.service.clock.advance(TimeSpan::from_secs(1));
    assert_eq!(test.admitted("database", &[("database", "users")], 7).await, 5);
}

#[tokio::test]
async fn documented_nested_and_overall_limits_are_one_decision() {
    let mut test = Documented::start().await;
    let both: [&[(&str, &str)]; 2] =
        [&[("message_type", "marketing"), ("to_number", "1")], &[("to_number", "1")]];
    for _ in 0..2 {
        assert_eq!(test.ask("messaging", &both).await.overall_code, OK);
    }
    for _ in 0..5 {
        let response = test.ask("messaging", &both).await;
        assert_eq!(response.overall_code, OVER_LIMIT);
        assert_eq!((response.statuses[0].code, response.statuses[1].code), (OVER_LIMIT, OK));
        assert_eq!(response.statuses[1].limit_remaining, 1, "a rejected hit charges nothing");
    }
    assert_eq!(test.admitted("messaging", &[("to_number", "1")], 3).await, 1);
}

#[tokio::test]
async fn documented_exact_value_of_zero_requests_rejects_always() {
    let mut test = Documented::start().await;
    assert_eq!(test.admitted("per_ip", &[("remote_address", "50.0.0.1")], 3).await, 2);
    assert_eq!(test.admitted("per_ip", &[("remote_address", "50.0.0.5")], 3).await, 0);
    let both: [&[(&str, &str)]; 2] = [&[("remote_address", "50.0.0.7")], &[("remote_address", "50.0.0.5")]];
    for _ in 0..3 {
        let response = test.ask("per_ip", &both).await;
        assert_eq!((response.overall_code, response.statuses[0].limit_remaining), (OVER_LIMIT, 2));
        assert!(response.headers.iter().all(|header| header.key != "retry-after"));
    }
}

#[tokio::test]
async fn documented_depth_of_configuration_must_equal_that_of_the_descriptor() {
    let mut test = Documented::start().await;
    assert_eq!(test.admitted("depth", &[("key", "value"), ("subkey", "x")], 3).await, 3);
    assert_eq!(test.admitted("depth", &[("key", "value")], 3).await, 1);
    assert_eq!(test.admitted("unknown", &[("key", "value")], 3).await, 3);
}

#[tokio::test]
async fn documented_unlimited_descriptor_has_the_largest_remaining() {
    let mut test = Documented::start().await;
    let response = test.ask("internal", &[&[("ldap", "x")], &[("azure", "x")], &[("none", "x")]]).await;
    let remaining: Vec<_> = response.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!((response.overall_code, remaining), (OK, vec![u32::MAX, 99, 0]));
    assert!(response.statuses[2].current_limit.is_none());
}

#[tokio::test]
async fn documented_shadow_mode_counts_and_admits() {
    let mut test = Documented::start().await;
    assert_eq!(test.admitted("shadow", &[("service", "s"), ("user", "a")], 3).await, 3);
    assert_eq!(test.admitted("shadow", &[("service", "s"), ("user", "b")], 3).await, 1);
    let metrics = test.service.metrics();
    let shadow = "rate_limit_shadow_exceeded_total{rule=\"envoy:shadow/service/user=a\"} 2";
    assert!(metrics.contains(shadow), "{metrics}");
}

#[tokio::test]
async fn documented_quotas_reject_only_if_all_are_exceeded() {
    let mut test = Documented::start().await;
    let (one, two, none) = ([("service", "service_1")], [("service", "service_2")], [("service", "none")]);
    let all: [&[(&str, &str)]; 4] = [&[("generic", "a")], &one, &two, &none];
    let codes =
        |response: &RlsResponse| response.statuses.iter().map(|status| status.code).collect::<Vec<_>>();
    let first = test.ask("quotas", &all).await;
    assert_eq!((first.overall_code, codes(&first)), (OK, vec![OK, OK, OK, OVER_LIMIT]));
    let second = test.ask("quotas", &all).await;
    assert_eq!((second.overall_code, codes(&second)), (OK, vec![OK, OVER_LIMIT, OK, OVER_LIMIT]));
    for _ in 0..5 {
        let over = test.ask("quotas", &all).await;
        assert_eq!(
            (over.overall_code, codes(&over)),
            (OVER_LIMIT, vec![OK, OVER_LIMIT, OVER_LIMIT, OVER_LIMIT])
        );
        assert_eq!(over.statuses[0].limit_remaining, 6, "a rejected hit charges nothing");
        let retry_after = over.headers.iter().find(|header| header.key == "retry-after");
        // The first quota has room again in the next minute, the second one in the next hour.
        assert!(
            retry_after.is_some_and(|header| header.value.parse::<u64>().is_ok_and(|seconds| seconds <= 66))
        );
    }
    test.service.clock.advance(TimeSpan::from_secs(60));
    let again = test.ask("quotas", &all).await;
    assert_eq!((again.overall_code, codes(&again)), (OK, vec![OK, OK, OVER_LIMIT, OVER_LIMIT]));
    assert_eq!(test.admitted("quotas", &two, 2).await, 0, "a single quota rejects like any limit");
    assert_eq!(test.admitted("quotas", &none, 2).await, 0);
    test.service.clock.advance(TimeSpan::from_secs(3_600));
    assert_eq!(test.admitted("quotas", &two, 3).await, 2);
}

#[tokio::test]
async fn documented_replaced_limit_is_neither_checked_nor_charged() {
    let mut test = Documented::start().await;
    let both: [&[(&str, &str)]; 2] = [&[("one", "x"), ("user", "u")], &[("two", "x"), ("user", "u")]];
    for _ in 0..3 {
        assert_eq!(test.ask("replaces", &both).await.overall_code, OK);
    }
    assert_eq!(test.ask("replaces", &both).await.overall_code, OVER_LIMIT);
    assert_eq!(test.admitted("replaces", &[("one", "x"), ("user", "u")], 2).await, 1);
}

#[tokio::test]
async fn documented_metric_options_do_not_change_limits() {
    let mut test = Documented::start().await;
    assert_eq!(test.admitted("detailed", &[("key1", "a")], 3).await, 1);
    assert_eq!(test.admitted("detailed", &[("key1", "b")], 3).await, 1);
    assert_eq!(test.admitted("detailed", &[("key1", "value1")], 3).await, 2);
}

#[tokio::test]
async fn documented_wildcards_match_and_share_only_with_share_threshold() {
    let mut test = Documented::start().await;
    assert_eq!(test.admitted("wildcards", &[("path", "/api/1/action")], 2).await, 1);
    assert_eq!(test.admitted("wildcards", &[("path", "/api/2/action")], 2).await, 1);
    assert_eq!(test.admitted("wildcards", &[("path", "/api/1/other")], 2).await, 2);
    assert_eq!(test.admitted("shared", &[("files", "files/a")], 1).await, 1);
    assert_eq!(test.admitted("shared", &[("files", "files/b")], 2).await, 1);
    assert_eq!(test.admitted("shared", &[("own", "files/a")], 2).await, 1);
    assert_eq!(test.admitted("shared", &[("own", "files/b")], 2).await, 1);
}
