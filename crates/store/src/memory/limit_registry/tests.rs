#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use tidegate_core::{Algorithm, Spec, TimeSpan};

use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn limit(requests: u64) -> Limit {
    Limit::new(Algorithm::FixedWindow, Spec::new(requests, TimeSpan::from_secs(1))).expect("a valid limit")
}

fn sweep(limits: &LimitRegistry, is_live: impl Fn(u16) -> bool) {
    limits.retire_unpinned();
    limits.free_retired(is_live, &Budget::new(0), NOW);
}

#[test]
fn limit_numbers_are_distinct_and_stable_until_all_are_in_use() {
    let limits = LimitRegistry::with_max_unpinned(MAX_LIMITS);
    let max = MAX_LIMITS as u64;
    let numbers: Vec<_> = (1..=max).map(|n| limits.find_or_add(&limit(n)).unwrap()).collect();
    let distinct: HashSet<_> = numbers.iter().copied().collect();
    assert_eq!(distinct.len(), numbers.len());
    assert!(!distinct.contains(&0) && !distinct.contains(&CARRIED));
    assert_eq!(limits.find_or_add(&limit(max + 1)), None);
    assert_eq!(limits.unpinned_and_assigned(), (MAX_LIMITS, MAX_LIMITS));
    for (n, number) in (1..=max).zip(numbers) {
        assert_eq!(limits.find(&limit(n)), Some(number));
        assert_eq!(limits.limit(number).as_deref(), Some(&limit(n)));
        assert!(limits.belongs_to(number, &limit(n)) && !limits.belongs_to(number, &limit(n + 1)));
    }
}

#[test]
fn unpinned_limits_get_half_of_the_numbers_and_retained_ones_the_rest() {
    let limits = LimitRegistry::new();
    let max = MAX_UNPINNED as u64;
    assert!((1..=max).all(|n| limits.find_or_add(&limit(n)).is_some()));
    assert_eq!(limits.find_or_add(&limit(max + 1)), None);
    let (pinned, _) = limits.retain(&[limit(1), limit(max + 2)]).unwrap();
    assert!(limits.find_or_add(&limit(max + 1)).is_some(), "one of the first is pinned now");
    assert_eq!(limits.find_or_add(&limit(max + 3)), None);
    drop(pinned);
    assert_eq!(limits.unpinned_and_assigned().0, MAX_UNPINNED + 2);
    let rest: Vec<_> = (0..MAX_LIMITS - MAX_UNPINNED - 2).map(|n| limit(1_000 + n as u64)).collect();
    assert!(limits.retain(&rest).is_ok());
}

#[test]
fn unused_limit_numbers_are_freed_by_a_sweep() {
    let limits = LimitRegistry::new();
    let numbers: Vec<_> = (1..=3).map(|n| limits.find_or_add(&limit(n)).unwrap()).collect();
    let (pinned, _) = limits.retain(&[limit(1)]).unwrap();
    sweep(&limits, |number| number == numbers[1]);
    assert_eq!(limits.find(&limit(1)), Some(numbers[0]), "pinned");
    assert_eq!(limits.find(&limit(2)), Some(numbers[1]), "a counter uses it");
    assert_eq!((limits.find_or_revive(&limit(3)), limits.in_use()), (None, 2));
    drop(pinned);
    sweep(&limits, |_| false);
    assert_eq!(limits.in_use(), 0);
}

#[test]
fn retired_number_looked_up_again_is_not_freed() {
    let limits = LimitRegistry::new();
    let number = limits.find_or_add(&limit(1)).unwrap();
    limits.retire_unpinned();
    assert!(limits.is_retired(number) && limits.find(&limit(1)).is_none());
    assert_eq!(limits.find_or_revive(&limit(1)), Some(number));
    limits.free_retired(|_| false, &Budget::new(0), NOW);
    assert_eq!(limits.find(&limit(1)), Some(number));
}

#[test]
fn retain_beyond_the_maximum_is_rejected_and_changes_nothing() {
    let limits = LimitRegistry::new();
    let max = MAX_LIMITS as u64;
    let (_half, new) = limits.retain(&(1..=max / 2).map(limit).collect::<Vec<_>>()).unwrap();
    assert_eq!(new, MAX_LIMITS / 2);
    // The same limit twice counts once.
    let too_many: Vec<_> = (2..=max + 1).chain([max + 1]).map(limit).collect();
    let error = limits.retain(&too_many).unwrap_err().to_string();
    assert!(error.contains(&format!("{} of at most {max} are in use", max / 2)), "{error}");
    assert!(error.contains(&format!("{} more are needed", max / 2 + 1)), "{error}");
    assert_eq!(limits.in_use(), MAX_LIMITS / 2);
    assert_eq!(limits.find_or_revive(&limit(max + 1)), None);
    let (_all, new) = limits.retain(&(1..=max).map(limit).collect::<Vec<_>>()).unwrap();
    assert_eq!(new, MAX_LIMITS - MAX_LIMITS / 2);
}

#[test]
fn limit_search_after_many_sweeps_stays_short() {
    let limits = LimitRegistry::new();
    for n in 0..1_000 {
        let _ = limits.find_or_add(&limit(n + 1));
        if n % 10 == 0 {
            sweep(&limits, |_| false);
            assert!(limits.fingerprints.iter().all(|found| found.load(Ordering::Relaxed) == 0));
        }
    }
}
