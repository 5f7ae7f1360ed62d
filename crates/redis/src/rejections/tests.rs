use tidegate_core::{Algorithm, Cost, Limit, Outcome, RuleId, Spec};

use super::*;

const RULE: RuleId = RuleId::named("default");
const SENT: Timestamp = Timestamp::from_secs(1_000);
const RECEIVED: Timestamp = Timestamp::from_micros(1_000_001_000);

fn limit(requests: u64) -> Limit {
    Limit::new(Algorithm::FixedWindow, Spec::new(requests, TimeSpan::from_secs(10))).unwrap()
}

fn check<'a>(client: &'a [u8], limit: &'a Limit) -> Check<'a> {
    Check::new(CounterKey::new(RULE, client), limit)
}

fn rejected(checks: &[Check<'_>], retry_after: TimeSpan) -> Decision {
    let outcome = |check: &Check<'_>| {
        Outcome::new(Verdict::NotUntil { retry_after }, check.limit.capacity(), 0, TimeSpan::from_secs(10))
    };
    Decision::new(Timestamp::from_secs(5), checks, checks.iter().map(outcome).collect())
}

fn source(cache: &RejectionCache, name: &'static [u8]) -> RejectionSource<'static> {
    RejectionSource {
        position: 0,
        name,
        life: LONGEST_LIFE,
        generation: cache.generation(),
        sent: SENT,
        received: RECEIVED,
    }
}

fn active() -> RejectionCache {
    let cache = RejectionCache::new();
    cache.resume();
    cache
}

fn after(millis: u64) -> Timestamp {
    RECEIVED + TimeSpan::from_millis(millis)
}

#[test]
fn cached_rejection_ages_and_ends_before_redis_would_admit() {
    let (cache, limit) = (active(), limit(5));
    let checks = [check(b"client", &limit)];
    cache.insert(&checks, &rejected(&checks, TimeSpan::from_secs(10)), source(&cache, b"name"));
    let decision = cache.find(&checks, after(4_000)).unwrap();
    assert_eq!(decision.verdict, Verdict::NotUntil { retry_after: TimeSpan::from_secs(6) });
    assert_eq!(decision.at, Timestamp::from_secs(9));
    assert_eq!(decision.outcomes[0].reset_after, TimeSpan::from_secs(6));
    assert!(cache.find(&checks, SENT + TimeSpan::from_millis(9_990)).is_some());
    assert!(cache.find(&checks, SENT + TimeSpan::from_millis(9_999)).is_none(), "clocks drift");
    assert_eq!(cache.served(), 2);
}

/// What remains, and when a retry succeeds, is known only as long as nothing else is admitted.
#[test]
fn cached_rejection_of_several_units_is_asked_again_after_a_second() {
    let (cache, limit) = (active(), limit(5));
    for (cost, is_found) in [(1, true), (2, false), (6, false)] {
        let checks = [check(b"client", &limit).cost(Cost::new(cost))];
        cache.insert(&checks, &rejected(&checks, TimeSpan::from_secs(10)), source(&cache, b"name"));
        assert!(cache.find(&checks, SENT + TimeSpan::from_millis(999)).is_some(), "{cost}");
        assert_eq!(cache.find(&checks, SENT + TimeSpan::from_secs(1)).is_some(), is_found, "{cost}");
    }
}

#[test]
fn cached_rejection_holds_for_the_same_cost_only() {
    let (cache, limit) = (active(), limit(5));
    let checks = [check(b"client", &limit).cost(Cost::new(3))];
    cache.insert(&checks, &rejected(&checks, TimeSpan::from_secs(10)), source(&cache, b"name"));
    let found = |cost| cache.find(&[check(b"client", &limit).cost(Cost::new(cost))], after(1)).is_some();
    assert_eq!([2, 3, 5, 6].map(found), [false, true, false, false], "a larger cost has to wait longer");
    // Each cost has an entry of its own.
    let larger = [check(b"client", &limit).cost(Cost::new(5))];
    cache.insert(&larger, &rejected(&larger, TimeSpan::from_secs(30)), source(&cache, b"name"));
    assert_eq!([3, 4, 5].map(found), [true, false, true]);
}

#[test]
fn cached_rejection_is_found_only_by_the_same_checks() {
    let (cache, five, six) = (active(), limit(5), limit(6));
    let checks = [check(b"client", &five), check(b"other", &five)];
    cache.insert(&checks, &rejected(&checks, TimeSpan::from_secs(10)), source(&cache, b"name"));
    assert!(cache.find(&checks, after(1)).is_some());
    for others in [
        vec![check(b"client", &five)],
        vec![check(b"client", &six), check(b"other", &five)],
        vec![check(b"client", &five), check(b"other", &six)],
        vec![check(b"client", &five).role(Role::Advisory), check(b"other", &five)],
        vec![check(b"client", &five), check(b"other", &five).cost(Cost::new(2))],
        vec![check(b"third", &five), check(b"other", &five)],
    ] {
        assert!(cache.find(&others, after(1)).is_none(), "{others:?}");
    }
    let alone = [check(b"client", &five)];
    cache.insert(&alone, &rejected(&alone, TimeSpan::from_secs(10)), source(&cache, b"name"));
    assert!(cache.find(&alone, after(1)).is_some() && cache.find(&checks, after(1)).is_some());
    assert_eq!(cache.len(), 1);
}

#[test]
fn forgotten_counter_is_gone_and_a_late_reply_is_not_kept() {
    let (cache, limit) = (active(), limit(5));
    let (checks, others) = ([check(b"client", &limit)], [check(b"other", &limit)]);
    let rejection = rejected(&checks, TimeSpan::from_secs(10));
    cache.insert(&checks, &rejection, source(&cache, b"name"));
    cache.insert(&others, &rejection, source(&cache, b"other"));
    let asked = source(&cache, b"name");
    cache.forget(b"name");
    assert!(cache.find(&checks, after(1)).is_none());
    assert!(cache.find(&others, after(1)).is_some());
    cache.insert(&checks, &rejection, asked);
    assert!(cache.find(&checks, after(1)).is_none(), "Redis was asked before the counter changed");
    cache.insert(&checks, &rejection, source(&cache, b"name"));
    assert!(cache.find(&checks, after(1)).is_some());
}

#[test]
fn reply_older_than_the_recent_changes_is_not_kept() {
    let (cache, limit) = (active(), limit(5));
    let checks = [check(b"client", &limit)];
    let asked = source(&cache, b"name");
    for n in 0..=RECENT_CAP {
        cache.forget(&n.to_be_bytes());
    }
    cache.insert(&checks, &rejected(&checks, TimeSpan::from_secs(10)), asked);
    assert_eq!(cache.len(), 0);
}

#[test]
fn suspended_cache_is_empty_and_keeps_nothing() {
    let (cache, limit) = (active(), limit(5));
    let checks = [check(b"client", &limit)];
    let rejection = rejected(&checks, TimeSpan::from_secs(10));
    cache.insert(&checks, &rejection, source(&cache, b"name"));
    let asked = source(&cache, b"name");
    cache.suspend();
    cache.insert(&checks, &rejection, source(&cache, b"name"));
    assert_eq!((cache.len(), cache.find(&checks, after(1))), (0, None));
    cache.resume();
    cache.insert(&checks, &rejection, asked);
    assert_eq!(cache.len(), 0, "a message may have been missed since the question");
    cache.insert(&checks, &rejection, source(&cache, b"name"));
    assert_eq!(cache.len(), 1);
}

#[test]
fn flood_of_keys_keeps_the_cache_within_its_cap() {
    let (cache, limit) = (active(), limit(5));
    for n in 0..(SHARDS * SHARD_CAP * 5 / 4) as u64 {
        let client = n.to_be_bytes();
        let checks = [check(&client, &limit)];
        let source = RejectionSource { name: &client, ..source(&cache, b"") };
        cache.insert(&checks, &rejected(&checks, TimeSpan::from_secs(1 + n % 9)), source);
    }
    assert!(cache.len() <= SHARDS * SHARD_CAP, "{}", cache.len());
    assert!(cache.len() > SHARDS * SHARD_CAP * 9 / 10, "{}", cache.len());
}

#[test]
fn never_is_repeated_for_a_bounded_time() {
    let (cache, limit) = (active(), limit(5));
    let checks = [check(b"client", &limit).cost(Cost::new(9))];
    let mut decision = rejected(&checks, TimeSpan::ZERO);
    decision.outcomes[0].verdict = Verdict::Never;
    cache.insert(&checks, &decision, source(&cache, b"name"));
    assert_eq!(cache.find(&checks, after(900)).unwrap().verdict, Verdict::Never);
    assert!(cache.find(&checks, after(1_000)).is_none());
}
