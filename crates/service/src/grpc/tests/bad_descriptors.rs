//! What the gateway would reject with 400 is answered with `OVER_LIMIT`.

use super::*;

const POLICY: &str = "
clients: { identify_by: [user, ip], user: { header: x-user }, ip: { trusted_proxies: [192.0.2.1] } }
rate_limits:
  default: { requests: 2, window: 60, algorithm: fixed_window }
  rules:
    - { name: login, per: [ip, user], requests: 1, window: 60, algorithm: fixed_window }
";

#[tokio::test]
async fn request_that_the_gateway_rejects_with_400_is_over_the_limit() {
    let service = LoopbackService::start(POLICY, "");
    let caller = service.connect().await;
    let long = "a".repeat(70_000);
    for (entries, code) in [
        (&[("path", "/%zz")][..], "bad_path"),
        (&[("path", "/a%00")], "bad_path"),
        (&[("path", "a")], "bad_request"),
        (&[("path", "/a#b")], "bad_request"),
        (&[("path", "/"), ("path", "/a")], "bad_request"),
        (&[("method", "G T")], "bad_request"),
        (&[("method", "")], "bad_request"),
        (&[("host", "a b")], "bad_request"),
        (&[("host", "a"), ("Host", "b")], "bad_request"),
        (&[("remote_address", "bob")], "bad_request"),
        (&[("x-a", "b\n")], "bad_request"),
        (&[("x-a", "b"); 101], "bad_request"),
        (&[("path", &long)], "bad_request"),
        (&[("rule", "default"), ("client", "bob")], "bad_request"),
        (&[("rule", "default"), ("client", "no_kind:bob")], "bad_request"),
        (&[("rule", "default"), ("client", "ip:bob")], "bad_request"),
        (&[("rule", "default")], "bad_request"),
        (&[("rule", "login"), ("client", "user:bob")], "bad_request"),
    ] {
        let reply = caller.ask(&request("tidegate", vec![descriptor(entries)])).await;
        let shown = &entries[..entries.len().min(2)];
        let response = reply.response();
        let codes: Vec<_> = response.statuses.iter().map(|status| status.code).collect();
        assert_eq!((response.overall_code, codes), (OVER_LIMIT, vec![OVER_LIMIT]), "{shown:.100?}");
        let body: serde_json::Value = serde_json::from_slice(&response.raw_body).expect("a body");
        assert_eq!(body["error"], code, "{shown:.100?} {body}");
        let [content_type] = response.response_headers_to_add.as_slice() else { panic!("one header") };
        assert_eq!(
            (content_type.key.as_str(), content_type.value.as_str()),
            ("content-type", "application/json")
        );
    }
}

#[tokio::test]
async fn mistake_of_the_operator_fails_the_call() {
    let service = LoopbackService::start(POLICY, "");
    let caller = service.connect().await;
    let mut with_limit = descriptor(&[("path", "/")]);
    with_limit.limit = Some(super::super::message::LimitOverride { requests_per_unit: 1, unit: 1 });
    for (descriptor, status) in [
        (descriptor(&[("rule", "missing"), ("client", "user:bob")]), 5),
        (descriptor(&[("rule", "default"), ("rule", "login")]), 3),
        (descriptor(&[("rule", "default"), ("path", "/")]), 3),
        (with_limit, 3),
    ] {
        let reply = caller.ask(&request("tidegate", vec![descriptor.clone()])).await;
        assert_eq!((reply.status, reply.body.len()), (status, 0), "{descriptor:?} {reply:?}");
        assert!(!reply.message.is_empty());
    }
}

#[tokio::test]
async fn bad_descriptor_refunds_those_before_it_and_leaves_out_those_after_it() {
    let service = LoopbackService::start(POLICY, "");
    let caller = service.connect().await;
    let bob = descriptor(&[("rule", "default"), ("client", "user:bob")]);
    let call = request("tidegate", vec![bob.clone(), descriptor(&[("path", "/%")]), bob.clone()]);
    for _ in 0..3 {
        let response = caller.ask(&call).await.response();
        let codes: Vec<_> = response.statuses.iter().map(|status| status.code).collect();
        assert_eq!((response.overall_code, codes), (OVER_LIMIT, vec![OK, OVER_LIMIT, OK]));
    }
    // The refunds are made in the background, before the next call of the connection is read.
    for expected in [OK, OK, OVER_LIMIT] {
        let response = caller.ask(&request("tidegate", vec![bob.clone()])).await.response();
        assert_eq!(response.overall_code, expected);
    }
}

#[tokio::test]
async fn rejected_call_refunds_all_its_charges_on_one_leaky_bucket() {
    let policy = "
rate_limits:
  default: { requests: 1, window: 1h, algorithm: leaky_bucket, burst: 4, max_wait: 9h }
  rules: [{ name: never, per: everybody, requests: 1, window: 1h, match: { path: /never } }]
";
    let service = LoopbackService::start(policy, "");
    let caller = service.connect().await;
    let bob = descriptor(&[("rule", "default"), ("client", "user:bob")]);
    let rejected = RateLimitDescriptor { hits_addend: Some(2), ..descriptor(&[("rule", "never")]) };
    let call = request("tidegate", vec![bob.clone(), bob.clone(), bob.clone(), rejected]);
    for _ in 0..3 {
        let response = caller.ask(&call).await.response();
        let codes: Vec<_> = response.statuses.iter().map(|status| status.code).collect();
        assert_eq!(codes, [OK, OK, OK, OVER_LIMIT]);
    }
    for expected in [OK, OK, OK, OK, OVER_LIMIT] {
        let response = caller.ask(&request("tidegate", vec![bob.clone()])).await.response();
        assert_eq!(response.overall_code, expected);
    }
}

#[tokio::test]
async fn hits_of_a_request_that_the_policy_prices_are_over_the_limit() {
    let service = LoopbackService::start(POLICY, "");
    let caller = service.connect().await;
    for (hits, code) in [(Some(0), OVER_LIMIT), (Some(2), OVER_LIMIT), (Some(1), OK)] {
        let mut described = descriptor(&[("path", "/")]);
        described.hits_addend = hits;
        let response = caller.ask(&request("tidegate", vec![described])).await.response();
        assert_eq!(response.overall_code, code, "{hits:?}");
    }
}

#[tokio::test]
async fn value_that_is_not_utf8_is_counted_as_it_is() {
    let envoy = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: path, value: '/a/*', rate_limit: { unit: minute, requests_per_unit: 1 } }
";
    let service = LoopbackService::start(POLICY, envoy);
    let caller = service.connect().await;
    let code = async |domain, entries: &[(&str, &[u8])]| {
        caller.ask(&request(domain, vec![descriptor(entries)])).await.response().overall_code
    };
    for value in [&b"\xe9"[..], b"\xe8", b"\xff"] {
        assert_eq!(code("d", &[("user", value)]).await, OK, "{value:?}");
        assert_eq!(code("d", &[("user", value)]).await, OVER_LIMIT, "{value:?}");
    }
    assert_eq!(code("d", &[("path", b"/a/\xff")]).await, OK);
    assert_eq!(code("d", &[("path", b"/a/\xff")]).await, OVER_LIMIT);
    // In a request, as the gateway reads it: a header may have such bytes, a path may not.
    let user = |name: &'static [u8]| [("remote_address", &b"192.0.2.1"[..]), ("x-user", name)];
    assert_eq!(code("tidegate", &user(b"\xe9")).await, OK);
    assert_eq!(code("tidegate", &[("path", b"/\xff")]).await, OVER_LIMIT);
    assert_eq!(code("tidegate", &[("rule", b"default"), ("client", b"user:\xff")]).await, OVER_LIMIT);
}
