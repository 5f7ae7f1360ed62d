//! The laws of lock-outs.

use proptest::prelude::*;
use tidegate_core::{Penalty, PenaltyError, PenaltyState, TimeSpan, Timestamp};

const SECOND: u64 = 1_000_000;

fn penalty() -> impl Strategy<Value = Penalty> {
    let span = || prop_oneof![9 => 1..10 * SECOND, 5 => Just(1), 5 => Just(60 * SECOND), 1 => Just(u64::MAX)];
    (1_u32..6, span(), span(), span()).prop_filter_map("valid", |(after, first, more, forget)| {
        let most = TimeSpan::from_micros(first.saturating_add(more));
        Penalty::new(after, TimeSpan::from_micros(first), most, TimeSpan::from_micros(forget)).ok()
    })
}

/// Short, usual and very long gaps; forward only.
fn gaps() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(
        prop_oneof![100 => Just(0), 100 => 1..SECOND, 100 => 1..100 * SECOND, 1 => Just(1 << 52)],
        0..60,
    )
}

/// Any instants in any order.
fn instants() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![any::<u64>(), 0..1_000 * SECOND], 0..60)
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn replay(penalty: &Penalty, start: u64, gaps: &[u64]) -> (PenaltyState, Timestamp) {
    let mut now = at(start);
    let mut record = PenaltyState::default();
    for gap in gaps {
        now = now + TimeSpan::from_micros(*gap);
        record = penalty.violate(record, now);
    }
    (record, now)
}

/// Records violations until a lock-out begins, and returns its length.
fn lock_out(penalty: &Penalty, record: &mut PenaltyState, now: Timestamp) -> TimeSpan {
    for _ in 0..penalty.after() {
        assert_eq!(record.lock_out(now), None);
        *record = penalty.violate(*record, now);
    }
    record.lock_out(now).expect("the client is locked out")
}

proptest! {
    #[test]
    fn lock_out_is_never_shortened_by_a_violation_at_any_time(
        penalty in penalty(), instants in instants()
    ) {
        let mut record = PenaltyState::default();
        for micros in instants {
            let next = penalty.violate(record, at(micros));
            prop_assert!(next.locked_until >= record.locked_until || record.lock_out(at(micros)).is_none());
            if record.lock_out(at(micros)).is_some() {
                prop_assert_eq!(next, record, "violations during a lock-out change nothing");
            }
            record = penalty.settle(next, at(micros));
        }
    }

    #[test]
    fn lock_out_is_at_least_the_first_and_at_most_the_longest(
        penalty in penalty(), start in 0..1_000 * SECOND, gaps in gaps()
    ) {
        let mut now = at(start);
        let mut record = PenaltyState::default();
        for gap in gaps {
            now = now + TimeSpan::from_micros(gap);
            let before = record.lock_out(now);
            record = penalty.violate(record, now);
            if let (None, Some(left)) = (before, record.lock_out(now)) {
                prop_assert!(left <= penalty.longest());
                prop_assert!(left >= penalty.first() || record.locked_until == Timestamp::MAX);
                prop_assert_eq!(left, record.locked_for.min(record.locked_until.since(now)));
            }
        }
    }

    #[test]
    fn consecutive_lock_outs_double_up_to_the_longest(
        after in 1_u32..6, first in 1..10_u64, doublings in 0_u32..20
    ) {
        let most = TimeSpan::from_secs(first << doublings);
        let penalty = Penalty::new(after, TimeSpan::from_secs(first), most, TimeSpan::from_secs(1)).unwrap();
        let (mut record, mut now) = (PenaltyState::default(), at(0));
        for time in 0..doublings + 3 {
            let left = lock_out(&penalty, &mut record, now);
            prop_assert_eq!(left, TimeSpan::from_secs(first << time.min(doublings)));
            now = now + left;
        }
    }

    #[test]
    fn penalty_settled_twice_equals_penalty_settled_once(
        penalty in penalty(), start in 0..1_000 * SECOND, gaps in gaps(),
        first in 0..1_000 * SECOND, second in 0..1_000 * SECOND
    ) {
        let (record, now) = replay(&penalty, start, &gaps);
        let between = now + TimeSpan::from_micros(first);
        let end = between + TimeSpan::from_micros(second);
        prop_assert_eq!(penalty.settle(penalty.settle(record, between), end), penalty.settle(record, end));
    }

    #[test]
    fn good_behaviour_removes_violations_then_levels_then_everything(
        penalty in penalty(), start in 0..1_000 * SECOND, gaps in gaps(), wait in 0..10_000 * SECOND
    ) {
        let (record, now) = replay(&penalty, start, &gaps);
        let forgotten = penalty.expires_at(&record);
        let later = now + TimeSpan::from_micros(wait);
        let settled = penalty.settle(record, later);
        prop_assert!(settled.violations <= record.violations && settled.level <= record.level);
        prop_assert!(settled.level == record.level || settled.violations == 0);
        // At the largest timestamp nothing decays any more.
        if forgotten < Timestamp::MAX {
            prop_assert_eq!(settled == PenaltyState::default(), later >= forgotten);
            prop_assert_eq!(penalty.settle(record, Timestamp::MAX), PenaltyState::default());
        }
    }

    #[test]
    fn expired_penalty_state_behaves_like_a_new_client(
        penalty in penalty(), start in 0..1_000 * SECOND, gaps in gaps(), more in gaps()
    ) {
        let (record, now) = replay(&penalty, start, &gaps);
        let later = penalty.expires_at(&record).max(now);
        if later == Timestamp::MAX {
            return Ok(());
        }
        let again = more.iter().fold((penalty.settle(record, later), later), |(record, now), gap| {
            let now = now + TimeSpan::from_micros(*gap);
            (penalty.violate(record, now), now)
        });
        prop_assert_eq!(again, replay(&penalty, later.as_micros(), &more));
    }

    #[test]
    fn penalty_after_clock_went_back_is_not_longer(
        penalty in penalty(), start in 0..1_000 * SECOND, gaps in gaps(), now in any::<u64>()
    ) {
        let (record, last) = replay(&penalty, start, &gaps);
        let rebased = record.rebase(at(now));
        let left = rebased.lock_out(at(now)).unwrap_or_default();
        prop_assert!(left <= penalty.longest());
        prop_assert_eq!(record.rebase(last), record, "a clock that did not go back changes nothing");
        prop_assert_eq!((rebased.violations, rebased.level), (record.violations, record.level));
    }
}

#[test]
fn third_violation_locks_out_for_one_minute_and_the_next_lock_out_for_two() {
    let minute = TimeSpan::from_secs(60);
    let penalty = Penalty::new(3, minute, TimeSpan::from_secs(86_400), TimeSpan::from_secs(900)).unwrap();
    let mut record = PenaltyState::default();
    for second in 0..2 {
        record = penalty.violate(record, Timestamp::from_secs(second));
        assert_eq!(record.lock_out(Timestamp::from_secs(second)), None);
    }
    record = penalty.violate(record, Timestamp::from_secs(2));
    assert_eq!(record.lock_out(Timestamp::from_secs(2)), Some(minute));
    assert_eq!(record.lock_out(Timestamp::from_secs(62)), None);
    let left = lock_out(&penalty, &mut record, Timestamp::from_secs(62));
    assert_eq!(left, TimeSpan::from_secs(120));
    // The lock-out ends at 182. A quarter of an hour later the second level is forgotten, another one later all.
    assert_eq!(penalty.settle(record, Timestamp::from_secs(182 + 899)).level, 2);
    assert_eq!(penalty.settle(record, Timestamp::from_secs(182 + 900)).level, 1);
    assert_eq!(penalty.settle(record, Timestamp::from_secs(182 + 1_800)), PenaltyState::default());
}

#[test]
fn violations_are_forgotten_before_levels() {
    let penalty =
        Penalty::new(2, TimeSpan::from_secs(10), TimeSpan::from_secs(40), TimeSpan::from_secs(1)).unwrap();
    let mut record = PenaltyState::default();
    let mut now = Timestamp::from_secs(0);
    for _ in 0..2 {
        now = now + lock_out(&penalty, &mut record, now);
    }
    record = penalty.violate(record, now);
    assert_eq!((record.violations, record.level), (1, 2));
    let after = |seconds| {
        let settled = penalty.settle(record, now + TimeSpan::from_secs(seconds));
        (settled.violations, settled.level)
    };
    assert_eq!(after(0), (1, 2));
    assert_eq!(after(1), (0, 2));
    assert_eq!(after(20), (0, 2));
    assert_eq!(after(21), (0, 1));
    assert_eq!(after(31), (0, 0));
}

#[test]
fn penalty_with_invalid_parameters_is_rejected_with_the_reason() {
    let second = TimeSpan::from_secs(1);
    assert_eq!(Penalty::new(0, second, second, second), Err(PenaltyError::ZeroAfter));
    assert_eq!(Penalty::new(1, TimeSpan::ZERO, second, second), Err(PenaltyError::ZeroSpan));
    assert_eq!(Penalty::new(1, second, second, TimeSpan::ZERO), Err(PenaltyError::ZeroSpan));
    let shorter = TimeSpan::from_millis(1);
    let error = Penalty::new(1, second, shorter, second).unwrap_err();
    assert_eq!(error, PenaltyError::LongestBelowFirst { first: second, longest: shorter });
    assert!(error.to_string().contains("shorter than the first"));
}
