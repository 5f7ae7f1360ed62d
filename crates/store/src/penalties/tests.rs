use tidegate_core::{Penalty, RuleId, TimeSpan, Timestamp};

use super::*;

fn penalty() -> Penalty {
    Penalty::new(2, TimeSpan::from_secs(60), TimeSpan::from_secs(3_600), TimeSpan::from_secs(10)).unwrap()
}

fn key(client: &[u8]) -> CounterKey<'_> {
    CounterKey::new(RuleId::named("login"), client)
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(1_000_000 + seconds)
}

fn lock_out(penalties: &Penalties, client: &[u8], now: Timestamp) -> Option<TimeSpan> {
    penalties.record_violation(key(client), &penalty(), now);
    penalties.record_violation(key(client), &penalty(), now)
}

#[test]
fn client_is_locked_out_only_under_the_rule_it_violated() {
    let penalties = Penalties::default();
    assert_eq!(penalties.record_violation(key(b"mallory"), &penalty(), at(0)), None);
    assert_eq!(penalties.record_violation(key(b"mallory"), &penalty(), at(1)), Some(TimeSpan::from_secs(60)));
    assert_eq!(penalties.lock_out(key(b"mallory"), at(31)), Some(TimeSpan::from_secs(30)));
    assert_eq!(penalties.lock_out(key(b"mallory"), at(61)), None);
    assert_eq!(penalties.lock_out(key(b"alice"), at(1)), None);
    assert_eq!(penalties.lock_out(CounterKey::new(RuleId::named("other"), b"mallory"), at(1)), None);
    assert_eq!(penalties.locked_out(at(1)).len(), 1);
    assert_eq!(penalties.locked_out(at(61)).len(), 0);
    assert_eq!(penalties.len(), 1, "its level has not decayed yet");
}

#[test]
fn flood_of_violations_evicts_no_client_that_is_locked_out() {
    let penalties = Penalties::with_cap(640);
    for n in 0_u32..100 {
        assert!(lock_out(&penalties, format!("locked-{n}").as_bytes(), at(0)).is_some());
    }
    for n in 0_u32..20_000 {
        penalties.record_violation(key(&n.to_be_bytes()), &penalty(), at(1));
    }
    assert!(penalties.len() <= 640, "{}", penalties.len());
    for n in 0_u32..100 {
        assert!(penalties.lock_out(key(format!("locked-{n}").as_bytes()), at(2)).is_some(), "{n}");
    }
}

#[test]
fn table_full_of_lock_outs_records_no_other_client_until_they_expire() {
    let penalties = Penalties::with_cap(64);
    for n in 0_u32..2_000 {
        lock_out(&penalties, &n.to_be_bytes(), at(0));
    }
    assert_eq!(penalties.len(), 64);
    assert!(penalties.unrecorded() > 0);
    assert_eq!(lock_out(&penalties, b"late", at(30)), None);
    assert!(lock_out(&penalties, b"late", at(10_000)).is_some(), "those before are expires_at");
}

#[test]
fn table_full_of_lock_outs_still_locks_out_a_new_offender_and_keeps_the_hardest() {
    let penalties = Penalties::with_cap(640);
    for n in 0_u32..20 {
        let client = format!("hard-{n}");
        lock_out(&penalties, client.as_bytes(), at(0));
        assert_eq!(lock_out(&penalties, client.as_bytes(), at(60)), Some(TimeSpan::from_secs(120)));
    }
    // As from the networks of a /48: more first lock-outs than the table has room for.
    for n in 0_u32..7_000 {
        lock_out(&penalties, &n.to_be_bytes(), at(61));
    }
    assert!(penalties.len() <= 640);
    assert_eq!(lock_out(&penalties, b"late", at(62)), Some(TimeSpan::from_secs(60)));
    assert!(penalties.lock_out(key(b"late"), at(63)).is_some());
    for n in 0_u32..20 {
        assert!(penalties.lock_out(key(format!("hard-{n}").as_bytes()), at(62)).is_some(), "{n}");
    }
    assert!(penalties.dropped_lock_outs() > 5_000, "{}", penalties.dropped_lock_outs());
}

#[test]
fn repeat_offender_is_evicted_after_first_time_offenders() {
    let penalties = Penalties::with_cap(640);
    lock_out(&penalties, b"again", at(0));
    // The lock-out is over, its level is not expires_at.
    for n in 0_u32..2_000 {
        penalties.record_violation(key(&n.to_be_bytes()), &penalty(), at(61));
    }
    assert_eq!(lock_out(&penalties, b"again", at(61)), Some(TimeSpan::from_secs(120)));
}

#[test]
fn long_client_names_stay_within_the_cap() {
    let penalties = Penalties::with_cap(64);
    let long = |n: u32| [n.to_be_bytes().as_slice(), &[b'x'; 4_000]].concat();
    for n in 0..500 {
        penalties.record_violation(key(&long(n)), &penalty(), at(0));
    }
    assert!(penalties.len() <= 64);
    assert_eq!(lock_out(&penalties, &[b'x'; 5_000], at(0)), None, "too long to be recorded");
}

#[test]
fn snapshot_restores_lock_outs_without_expired_entries() {
    let before = Penalties::default();
    lock_out(&before, b"mallory", at(0));
    before.record_violation(key(b"clumsy"), &penalty(), at(0));
    assert_eq!(before.snapshot(at(1)).len(), 2);
    let saved = before.snapshot(at(11));
    assert_eq!(saved.len(), 1, "one violation is expires_at after ten seconds");
    let after = Penalties::default();
    after.restore(saved, at(20));
    assert_eq!(after.lock_out(key(b"mallory"), at(20)), Some(TimeSpan::from_secs(40)));
    assert_eq!(lock_out(&after, b"mallory", at(60)), Some(TimeSpan::from_secs(120)));
}

#[test]
fn restore_after_clock_went_back_a_year_does_not_extend_the_lock_out() {
    let before = Penalties::default();
    lock_out(&before, b"mallory", at(40_000_000));
    let after = Penalties::default();
    after.restore(before.snapshot(at(40_000_000)), at(0));
    assert_eq!(after.lock_out(key(b"mallory"), at(0)), Some(TimeSpan::from_secs(60)));
    assert_eq!(after.snapshot(at(200)).len(), 0, "and all of it is expires_at in time");
}

#[test]
fn restore_does_not_replace_newer_entries() {
    let penalties = Penalties::default();
    penalties.record_violation(key(b"mallory"), &penalty(), at(0));
    let saved = penalties.snapshot(at(0));
    lock_out(&penalties, b"mallory", at(1));
    penalties.restore(saved, at(2));
    assert!(penalties.lock_out(key(b"mallory"), at(2)).is_some());
}

#[test]
fn take_changes_returns_every_change() {
    let penalties = Penalties::default();
    assert_eq!(penalties.take_changes(), PenaltyChanges::default());
    let version = penalties.version();
    lock_out(&penalties, b"mallory", at(0));
    assert!(penalties.version() > version);
    let changes = penalties.take_changes();
    assert_eq!((changes.set.len(), changes.removed.len()), (1, 0));
    assert_eq!(changes.set[0].record.level, 1);
    // During a lock-out nothing changes.
    penalties.record_violation(key(b"mallory"), &penalty(), at(1));
    assert_eq!(penalties.take_changes(), PenaltyChanges::default());
    assert!(penalties.remove(key(b"mallory")) && !penalties.remove(key(b"mallory")));
    assert_eq!(penalties.lock_out(key(b"mallory"), at(1)), None);
    let changes = penalties.take_changes();
    assert_eq!((changes.set.len(), changes.removed.len(), changes.is_partial), (0, 1, false));
    assert_eq!(&*changes.removed[0].client, b"mallory");
}

#[test]
fn take_changes_with_too_many_removals_is_partial() {
    let penalties = Penalties::with_cap(64);
    for n in 0_u32..2_000 {
        penalties.record_violation(key(&n.to_be_bytes()), &penalty(), at(0));
    }
    let changes = penalties.take_changes();
    assert!(changes.is_partial && changes.removed.len() <= 64 && changes.set.len() <= 64);
}

#[test]
fn penalties_debug_output_hides_the_client() {
    let penalties = Penalties::default();
    lock_out(&penalties, b"sk_live_secret", at(0));
    let shown = format!("{:?} {penalties:?}", (penalties.snapshot(at(0)), penalties.take_changes()));
    assert!(!shown.contains("secret") && !shown.contains("115, 107"), "{shown}");
}

#[test]
fn penalties_merge_keeps_the_more_severe_state_in_any_order() {
    let penalty =
        Penalty::new(2, TimeSpan::from_secs(60), TimeSpan::from_secs(600), TimeSpan::from_secs(60)).unwrap();
    let key = CounterKey::new(RuleId::named("login"), b"eve");
    let now = Timestamp::from_secs(1_000);
    let (one, two) = (Penalties::default(), Penalties::default());
    one.record_violation(key, &penalty, now);
    two.record_violation(key, &penalty, now);
    two.record_violation(key, &penalty, now);
    let (mild, severe) = (one.find(key).unwrap(), two.find(key).unwrap());
    assert!(one.merge(&severe, now) && !two.merge(&mild, now));
    assert!(!one.merge(&severe, now), "merging again changes nothing");
    assert_eq!(one.find(key), two.find(key));
    assert_eq!(one.lock_out(key, now), Some(TimeSpan::from_secs(60)));
}

#[test]
fn penalties_listener_hears_violations_of_this_node_but_none_during_a_lock_out() {
    let penalty =
        Penalty::new(2, TimeSpan::from_secs(60), TimeSpan::from_secs(60), TimeSpan::from_secs(60)).unwrap();
    let key = CounterKey::new(RuleId::named("login"), b"eve");
    let now = Timestamp::from_secs(1_000);
    let penalties = Penalties::default();
    let (sender, reported) = std::sync::mpsc::channel();
    penalties.on_violation(Box::new(move |entry| sender.send(entry.record.violations).unwrap()));
    penalties.count_violation(key, &penalty, now);
    assert!(penalties.record_violation(key, &penalty, now).is_some(), "the second violation in total");
    assert!(penalties.record_violation(key, &penalty, now).is_some());
    assert_eq!(reported.try_iter().collect::<Vec<_>>(), [0]);
}
