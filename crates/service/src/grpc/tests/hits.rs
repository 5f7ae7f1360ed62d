//! Hits of a leaky bucket: n hits are charged as n, and none as none.

use super::*;

#[tokio::test]
async fn leaky_bucket_charges_all_hits_or_none() {
    let envoy = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 5, algorithm: leaky_bucket } }
  - { key: all, rate_limit: { unit: minute, requests_per_unit: 5 } }
";
    let service = LoopbackService::start("rate_limits: {}", envoy);
    let caller = service.connect().await;
    let ask = async |hits: u64| {
        let user = RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(&[("user", "bob")]) };
        let response = caller.ask(&request("d", vec![user])).await.response();
        (response.overall_code, response.statuses[0].limit_remaining)
    };
    for (hits, expected) in [
        (0, (OK, 5)),
        (4, (OK, 1)),
        (0, (OK, 1)),
        (2, (OVER_LIMIT, 1)),
        (1, (OK, 0)),
        (0, (OK, 0)),
        (1, (OVER_LIMIT, 0)),
        (6, (OVER_LIMIT, 0)),
    ] {
        assert_eq!(ask(hits).await, expected, "{hits}");
    }
    // Reading a used-up bucket does not reject the rest of the call.
    let read = RateLimitDescriptor { hits_addend: Some(0), ..descriptor(&[("user", "bob")]) };
    let response = caller.ask(&request("d", vec![read, descriptor(&[("all", "")])])).await.response();
    assert_eq!((response.overall_code, response.statuses[1].limit_remaining), (OK, 4));
}
