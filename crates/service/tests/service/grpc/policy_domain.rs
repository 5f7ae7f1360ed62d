//! Descriptors that name rules and requests of the policy.

use tidegate_telemetry::Protocol;
use tidegate_testkit::wait::eventually;

use super::client::{GrpcClient, RLS, descriptor, message, request};
use super::{OK, OVER_LIMIT};
use crate::fixture::TestService;

const POLICY: &str = "
clients: { identify_by: [user, ip], user: { header: x-user }, ip: { trusted_proxies: [192.0.2.1] } }
rate_limits:
  default: { requests: 2, window: 60, algorithm: fixed_window }
  endpoints:
    /login: { requests: 1, window: 60, algorithm: fixed_window }
bans: { networks: [203.0.113.0/24] }
";

#[tokio::test]
async fn policy_domain_rule_and_request_share_one_counter() {
    let service = TestService::start(POLICY);
    let mut client = GrpcClient::connect(service.address(Protocol::Grpc)).await;
    let rule = request("tidegate", vec![descriptor(&[("rule", "default"), ("client", "user:bob")])]);
    let facts = [("method", "GET"), ("path", "/a"), ("remote_address", "192.0.2.1"), ("x-user", "bob")];
    let facts = request("tidegate", vec![descriptor(&facts)]);
    let response = client.should_rate_limit(&rule).await;
    assert_eq!((response.overall_code, response.statuses[0].limit_remaining), (OK, 1));
    assert_eq!(response.statuses[0].current_limit.as_ref().map(|limit| limit.name.as_str()), Some("default"));
    assert_eq!(client.should_rate_limit(&facts).await.statuses[0].limit_remaining, 0);
    assert_eq!(client.should_rate_limit(&rule).await.overall_code, OVER_LIMIT);
    assert_eq!(client.should_rate_limit(&facts).await.overall_code, OVER_LIMIT);
}

#[tokio::test]
async fn policy_domain_rejection_refunds_earlier_descriptors() {
    let service = TestService::start(POLICY);
    let mut client = GrpcClient::connect(service.address(Protocol::Grpc)).await;
    let bob = descriptor(&[("rule", "default"), ("client", "user:bob")]);
    let mut all = descriptor(&[("rule", "default"), ("client", "user:eve")]);
    all.hits_addend = Some(3);
    let response = client.should_rate_limit(&request("tidegate", vec![bob.clone(), all, bob.clone()])).await;
    let codes: Vec<_> = response.statuses.iter().map(|status| status.code).collect();
    assert_eq!((response.overall_code, codes), (OVER_LIMIT, vec![OK, OVER_LIMIT, OK]));
    // The refund is made in the background.
    let call = request("tidegate", vec![bob]);
    for _ in 0..2 {
        assert_eq!(client.should_rate_limit(&call).await.overall_code, OK);
    }
    assert_eq!(client.should_rate_limit(&call).await.overall_code, OVER_LIMIT);
}

#[tokio::test]
async fn policy_domain_rejected_calls_that_arrive_together_leave_a_leaky_bucket_unchanged() {
    let service = TestService::start(
        "rate_limits:
  global: { requests: 1, window: 1h, algorithm: leaky_bucket, burst: 100, max_wait: 100h }
  default: { requests: 1, window: 1h, algorithm: fixed_window }",
    );
    let client = GrpcClient::connect(service.address(Protocol::Grpc)).await;
    let mut bob = descriptor(&[("rule", "default"), ("client", "user:bob")]);
    bob.hits_addend = Some(2);
    let rejected = request("tidegate", vec![descriptor(&[("rule", "global")]), bob]);
    let call = |_| {
        let (mut client, rejected) = (client.concurrent(), rejected.clone());
        tokio::spawn(async move { client.should_rate_limit(&rejected).await })
    };
    for reply in (0..20).map(call).collect::<Vec<_>>() {
        assert_eq!(reply.await.unwrap().overall_code, OVER_LIMIT);
    }
    let is_empty = || service.post_json("/v1/peek", r#"{"rule":"global"}"#, 200)["wait"] == 0;
    eventually("the bucket that all clients share is empty", is_empty).await;
}

#[tokio::test]
async fn policy_domain_request_is_normalised_and_checked_like_one_of_the_gateway() {
    let service = TestService::start(POLICY);
    let mut client = GrpcClient::connect(service.address(Protocol::Grpc)).await;
    let mut code = async |path: &str, address: &str| {
        let call = request("tidegate", vec![descriptor(&[("path", path), ("remote_address", address)])]);
        client.should_rate_limit(&call).await.overall_code
    };
    assert_eq!(code("/login", "198.51.100.1").await, OK);
    assert_eq!(code("/a/../LOGIN?x=1", "198.51.100.1").await, OVER_LIMIT);
    assert_eq!(code("/a", "203.0.113.9").await, OVER_LIMIT, "a banned network");
    for (entries, code) in [(&[("rule", "missing")][..], 5), (&[("rule", "default"), ("path", "/")], 3)] {
        let call = message(&request("tidegate", vec![descriptor(entries)]));
        assert_eq!(client.call(RLS, &[], call).await.code(), code, "{entries:?}");
    }
    for entries in [
        &[("rule", "default"), ("client", "bob")][..],
        &[("path", "/"), ("path", "/a")],
        &[("path", "/%zz")],
        &[("method", "get")],
        &[("remote_address", "bob")],
        &[("bad header", "x")],
        &[("method", "G T")],
        &[("path", "/a#b")],
        &[("path", "http://a/")],
        &[("host", "a.example"), ("Host", "b.example")],
        &[("x-a", "b"); 101],
    ] {
        let call = request("tidegate", vec![descriptor(entries)]);
        assert_eq!(client.should_rate_limit(&call).await.overall_code, OVER_LIMIT, "{entries:?}");
    }
}

#[tokio::test]
async fn policy_domain_headers_are_read_as_by_the_gateway() {
    let service = TestService::start(
        "
clients: { identify_by: [api_key, ip], api_key: { header: x-api-key } }
rate_limits:
  default: { requests: 2, window: 60, algorithm: fixed_window }
  rules:
    - name: original
      match: { header: { x-original-url: /admin } }
      requests: 1
      window: 60
",
    );
    let mut client = GrpcClient::connect(service.address(Protocol::Grpc)).await;
    let mut code = async |entries: &[(&str, &str)]| {
        client.should_rate_limit(&request("tidegate", vec![descriptor(entries)])).await.overall_code
    };
    // White space around a key does not make another client.
    assert_eq!(code(&[("x-api-key", "KEY")]).await, OK);
    assert_eq!(code(&[("X-Api-Key", " KEY\t")]).await, OK);
    assert_eq!(code(&[("x-api-key", "KEY ")]).await, OVER_LIMIT);
    // A header that only a trusted proxy may send is not seen.
    for _ in 0..2 {
        assert_eq!(code(&[("remote_address", "198.51.100.1"), ("x-original-url", "/admin")]).await, OK);
    }
}

#[tokio::test]
async fn policy_domain_rule_needs_the_identities_that_it_counts() {
    let service = TestService::start(
        "
clients: { identify_by: [ip], user: { header: x-user }, ip: { trusted_proxies: [192.0.2.1] } }
rate_limits:
  rules:
    - { name: login, per: [ip, user], requests: 1, window: 60, algorithm: fixed_window }
    - { name: all, per: everybody, requests: 9, window: 60, algorithm: fixed_window }
",
    );
    let mut client = GrpcClient::connect(service.address(Protocol::Grpc)).await;
    let (ip, user) = (("client", "ip:198.51.100.1"), ("client", "user:bob"));
    for entries in [
        &[("rule", "login")][..],
        &[("rule", "login"), ip],
        &[("rule", "login"), user],
        &[("rule", "login"), ip, ip],
        &[("rule", "login"), ip, user, ("client", "tenant:a")],
        &[("rule", "login"), ip, ("client", "bob")],
    ] {
        let call = request("tidegate", vec![descriptor(entries)]);
        assert_eq!(client.should_rate_limit(&call).await.overall_code, OVER_LIMIT, "{entries:?}");
    }
    let two = [("rule", "login"), ("rule", "all"), ip, user];
    let two = message(&request("tidegate", vec![descriptor(&two)]));
    assert_eq!(client.call(RLS, &[], two).await.code(), 3);
    // A request and the named rule have one counter, in any order of the identities.
    let headers = [("remote_address", "192.0.2.1"), ("x-forwarded-for", "198.51.100.1"), ("x-user", "bob")];
    let response = client.should_rate_limit(&request("tidegate", vec![descriptor(&headers)])).await;
    assert_eq!(response.overall_code, OK);
    let named = request("tidegate", vec![descriptor(&[user, ("rule", "login"), ip])]);
    assert_eq!(client.should_rate_limit(&named).await.overall_code, OVER_LIMIT);
    let all = request("tidegate", vec![descriptor(&[("rule", "all")])]);
    assert_eq!(client.should_rate_limit(&all).await.statuses[0].limit_remaining, 7);
}
