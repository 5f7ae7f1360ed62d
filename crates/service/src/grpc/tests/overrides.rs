//! Limits that descriptors carry.

use super::super::message::LimitOverride;
use super::*;

const HOUR: i32 = 3;
const DAY: i32 = 4;

async fn start() -> (LoopbackService, TestCaller) {
    let service = LoopbackService::start("rate_limits: {}", "domain: d");
    let caller = service.connect().await;
    (service, caller)
}

/// A descriptor of `user` with a limit and a number of hits.
fn carrying(user: &str, requests_per_unit: u32, unit: i32, hits: u64) -> RateLimitDescriptor {
    let limit = Some(LimitOverride { requests_per_unit, unit });
    RateLimitDescriptor { limit, hits_addend: Some(hits), ..descriptor(&[("user", user)]) }
}

#[tokio::test]
async fn other_descriptors_of_a_call_do_not_change_the_counter_of_a_carried_limit() {
    let (_service, caller) = start().await;
    let one = request("d", vec![carrying("bob", 5, HOUR, 1)]);
    for expected in [OK, OK, OK, OK, OK, OVER_LIMIT] {
        assert_eq!(caller.ask(&one).await.response().overall_code, expected);
    }
    for other in
        [carrying("bob", 1_000, HOUR, 0), carrying("bob", 1_000, DAY, 0), carrying("bob", 0, HOUR, 0)]
    {
        let (own, other) = (carrying("bob", 5, HOUR, 1), other);
        for call in [vec![own.clone(), other.clone()], vec![other, own]] {
            assert_eq!(caller.ask(&request("d", call)).await.response().overall_code, OVER_LIMIT);
        }
    }
}

#[tokio::test]
async fn equal_descriptors_with_different_limits_share_a_counter_under_the_smallest() {
    for order in [[0, 1], [1, 0]] {
        let (_service, caller) = start().await;
        let both = [carrying("bob", 4, HOUR, 1), carrying("bob", 1_000, HOUR, 1)];
        let call = request("d", order.map(|index| both[index].clone()).to_vec());
        for remaining in [2, 0] {
            let response = caller.ask(&call).await.response();
            assert_eq!(response.overall_code, OK);
            let limits = response.statuses.iter().map(|status| {
                (status.current_limit.as_ref().map(|limit| limit.requests_per_unit), status.limit_remaining)
            });
            let expected = order.map(|index| (Some([4, 1_000][index]), remaining));
            assert_eq!(limits.collect::<Vec<_>>(), expected, "each status has its own limit");
        }
        let response = caller.ask(&call).await.response();
        assert_eq!(response.overall_code, OVER_LIMIT);
        let limit = response.response_headers_to_add.iter().find(|header| header.key == "x-ratelimit-limit");
        assert_eq!(limit.map(|header| header.value.as_str()), Some("4"), "the limit that rejects the call");
        // Alone, the larger limit has room: four hits were charged.
        let large = request("d", vec![carrying("bob", 1_000, HOUR, 1)]);
        assert_eq!(caller.ask(&large).await.response().statuses[0].limit_remaining, 995);
    }
}

#[tokio::test]
async fn carried_limits_of_other_clients_and_periods_have_their_own_counters() {
    let (_service, caller) = start().await;
    let call = request(
        "d",
        vec![carrying("bob", 1, HOUR, 1), carrying("bob", 1, DAY, 1), carrying("eve", 1, HOUR, 1)],
    );
    assert_eq!(caller.ask(&call).await.response().overall_code, OK);
    assert_eq!(caller.ask(&call).await.response().overall_code, OVER_LIMIT);
}
