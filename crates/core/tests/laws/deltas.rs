//! Copies of a counter that exchange their changes.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Cost, CounterDelta, CounterState, Spec, TimeSpan};

use crate::generate::{GeneratedLimit, any_limit, forward, limit_of, replay, start};

fn limit_with_deltas() -> impl Strategy<Value = GeneratedLimit> {
    let algorithms = [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingCounter];
    // Nodes do not exchange changes of a bucket that lends: what a unit costs depends on the level.
    let without_lending = |generated: GeneratedLimit| generated.with(Spec { borrow: None, ..generated.spec });
    proptest::sample::select(algorithms.to_vec()).prop_flat_map(limit_of).prop_map(without_lending)
}

proptest! {
    #[test]
    fn copy_with_the_deltas_of_one_node_equals_its_own_state(
        generated in limit_with_deltas(),
        start in start(),
        arrivals in forward(),
        actions in proptest::collection::vec(0_u8..6, 60),
    ) {
        let limit = &generated.limit;
        let (mut own, mut copy, mut delta) = Default::default();
        let mut charged = None;
        for ((now, cost), action) in replay(&generated, start, &arrivals).into_iter().zip(actions) {
            match (action, charged.take()) {
                (0, _) => {
                    limit.merge(&mut copy, &delta, now);
                    delta = CounterDelta::Empty;
                }
                (1, Some((at, cost))) => {
                    limit.refund_with_delta(&mut own, &mut delta, at, now, cost);
                }
                _ if limit.evaluate(&own, now, cost).verdict.is_pass() && cost > Cost::ZERO => {
                    limit.charge_with_delta(&mut own, &mut delta, now, cost);
                    charged = Some((now, cost));
                }
                _ => {}
            }
            let mut merged = copy.clone();
            limit.merge(&mut merged, &delta, now);
            for cost in [Cost::ZERO, Cost::ONE, cost] {
                prop_assert_eq!(limit.evaluate(&merged, now, cost), limit.evaluate(&own, now, cost));
            }
        }
    }

    #[test]
    fn deltas_of_several_nodes_never_lose_a_charge(
        generated in limit_with_deltas(),
        start in start(),
        arrivals in forward(),
        picks in proptest::collection::vec((0_usize..3, 0_u8..4), 60),
    ) {
        let limit = &generated.limit;
        let (mut exact, mut merged) = (CounterState::default(), CounterState::default());
        let mut nodes = vec![(CounterState::default(), CounterDelta::default()); 3];
        let mut last = start;
        for ((now, cost), (node, action)) in replay(&generated, start, &arrivals).into_iter().zip(picks) {
            let cost = Cost::new(cost.get().min(1_000));
            limit.charge(&mut exact, now, cost);
            let (state, delta) = &mut nodes[node];
            limit.charge_with_delta(state, delta, now, cost);
            if action == 0 {
                limit.merge(&mut merged, &std::mem::take(delta), now);
            }
            last = now;
        }
        for (_, delta) in &nodes {
            limit.merge(&mut merged, delta, last);
        }
        let windows_only = generated.limit.algorithm() != Algorithm::TokenBucket;
        let span = limit.memory_span();
        if windows_only {
            prop_assert_eq!(limit.used(&merged, last), limit.used(&exact, last));
        } else if last.since(start) < span {
            prop_assert!(limit.used(&merged, last) >= limit.used(&exact, last));
        }
        if windows_only {
            prop_assert_eq!(limit.used(&merged, last + span + TimeSpan::from_secs(1)), 0);
        }
    }

    #[test]
    fn state_from_its_numbers_is_the_same_state(
        generated in any_limit(),
        start in start(),
        arrivals in forward(),
    ) {
        let limit = &generated.limit;
        let mut state = CounterState::default();
        for (now, cost) in replay(&generated, start, &arrivals) {
            limit.charge(&mut state, now, cost);
            match limit.state_numbers(&state) {
                None => prop_assert_eq!(limit.algorithm(), Algorithm::SlidingLog),
                Some(numbers) if cost > Cost::ZERO => {
                    prop_assert_eq!(&limit.state_from_numbers(numbers), &state);
                    prop_assert!(numbers.iter().all(|number| *number <= 1 << 53));
                }
                Some(_) => {}
            }
        }
    }

    #[test]
    fn used_units_and_remaining_units_add_up_to_the_capacity(
        generated in any_limit(),
        start in start(),
        arrivals in forward(),
    ) {
        prop_assume!(generated.limit.algorithm() != Algorithm::LeakyBucket);
        let limit = &generated.limit;
        let mut state = CounterState::default();
        for (now, cost) in replay(&generated, start, &arrivals) {
            limit.charge(&mut state, now, cost);
            let remaining = limit.evaluate(&state, now, Cost::ZERO).remaining;
            prop_assert_eq!(remaining, limit.capacity().saturating_sub(limit.used(&state, now)));
        }
    }
}

#[test]
fn delta_of_an_earlier_window_is_charged_to_that_window() {
    use tidegate_core::{Limit, Timestamp};
    let minute = |n: u64| Timestamp::from_secs(60 * n);
    for (algorithm, used) in [(Algorithm::FixedWindow, 0), (Algorithm::SlidingCounter, 4)] {
        let limit = Limit::new(algorithm, Spec::new(10, TimeSpan::from_secs(60))).unwrap();
        let (mut own, mut delta) = Default::default();
        limit.charge_with_delta(&mut own, &mut delta, minute(100), Cost::new(4));
        let mut next = CounterState::default();
        limit.charge(&mut next, minute(101), Cost::new(3));
        limit.merge(&mut next, &delta, minute(101));
        assert_eq!(limit.used(&next, minute(101)), 3 + used, "{algorithm}");
        let mut later = CounterState::default();
        limit.charge(&mut later, minute(102), Cost::new(3));
        limit.merge(&mut later, &delta, minute(102));
        assert_eq!(limit.used(&later, minute(102)), 3, "{algorithm}");
    }
    let limit = Limit::new(Algorithm::TokenBucket, Spec::new(10, TimeSpan::from_secs(60))).unwrap();
    let (mut own, mut delta) = Default::default();
    limit.charge_with_delta(&mut own, &mut delta, minute(100), Cost::new(4));
    let mut state = CounterState::default();
    limit.charge(&mut state, minute(101), Cost::new(3));
    limit.merge(&mut state, &delta, minute(101));
    assert_eq!(limit.used(&state, minute(101)), 3, "the charge has drained");
}
