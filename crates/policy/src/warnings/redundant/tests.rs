use tidegate_core::{Borrow, Cost, CounterState, Limit, RuleId, Spec, TimeSpan, Timestamp};

use proptest::prelude::*;

use super::*;
use crate::plan::ExceedAction;

fn rule(algorithm: Algorithm, spec: Spec) -> Option<Rule> {
    let limit = Limit::new(algorithm, spec).ok()?;
    let Spec { requests, window, burst, max_wait, borrow } = spec;
    Some(Rule {
        name: "r".to_owned(),
        id: RuleId::named("r"),
        limit,
        requests,
        window,
        burst,
        max_wait,
        quota: crate::plan::Quota::new(&limit, &spec),
        mode: Mode::Enforce,
        is_reported: true,
        penalty: None,
        on_exceed: borrow.map_or(ExceedAction::Reject, ExceedAction::Borrow),
        rejection: None,
        sharing: None,
        line: 1,
    })
}

fn rules(max: u64) -> impl Strategy<Value = Rule> {
    let borrow = proptest::option::of((1..max, 1..4_u64).prop_map(|(units, repay)| Borrow { units, repay }));
    let max_wait = proptest::option::of(0..9_000_u64);
    let spec = (0..5_usize, 1..max, 1..12_u64, proptest::option::of(1..max), max_wait, borrow);
    spec.prop_filter_map("invalid limit", |(algorithm, requests, secs, burst, max_wait, borrow)| {
        let algorithm = *Algorithm::ALL.get(algorithm)?;
        let supports_burst = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let burst = burst.filter(|_| supports_burst);
        let max_wait = max_wait.filter(|_| algorithm == Algorithm::LeakyBucket).map(TimeSpan::from_millis);
        let borrow = borrow.filter(|_| algorithm == Algorithm::TokenBucket);
        rule(algorithm, Spec { burst, max_wait, borrow, ..Spec::new(requests, TimeSpan::from_secs(secs)) })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, max_global_rejects: 100_000, ..ProptestConfig::default() })]

    #[test]
    fn redundant_limit_admits_everything_the_stricter_one_admits(
        tight in rules(8),
        loose in rules(60),
        gaps in proptest::collection::vec(prop_oneof![Just(0_u64), 0..3_000_u64, 0..20_000_u64], 1..200),
    ) {
        prop_assume!(is_stricter(&tight, &loose));
        let (mut first, mut second) = (CounterState::default(), CounterState::default());
        let mut now = Timestamp::from_secs(1_700_000_000);
        for gap in gaps {
            now = now + TimeSpan::from_millis(gap);
            if tight.limit.step(&mut first, now, Cost::ONE).verdict.is_pass() {
                let verdict = loose.limit.step(&mut second, now, Cost::ONE).verdict;
                prop_assert!(verdict.is_pass(), "{} admits what {} rejects", tight.describe(), loose.describe());
            }
        }
    }
}

#[test]
fn is_stricter_detects_typical_cases() {
    let of =
        |algorithm, requests, secs| rule(algorithm, Spec::new(requests, TimeSpan::from_secs(secs))).unwrap();
    let counter = |requests, secs| of(Algorithm::SlidingCounter, requests, secs);
    assert!(is_stricter(&counter(10, 60), &counter(100, 60)));
    assert!(is_stricter(&counter(10, 60), &counter(1_000, 60)));
    assert!(!is_stricter(&counter(100, 60), &counter(10, 60)));
    assert!(!is_stricter(&counter(100, 3_600), &counter(30, 60)));
    assert!(is_stricter(&of(Algorithm::TokenBucket, 1, 1), &of(Algorithm::TokenBucket, 10, 1)));
}
