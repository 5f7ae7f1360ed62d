//! The keys with the most requests, from a small sample of all decisions.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tidegate_core::{CounterKey, OwnedKey, RuleId, Timestamp};

use crate::space_saving::SpaceSaving;

/// One decision in this many is sampled.
const SAMPLE: u64 = 1_024;
/// Keys kept per rule. A key with more than one in this many requests is among them.
const KEYS_PER_RULE: usize = 64;
/// Rules kept, so that rules of earlier policies do not accumulate.
const MAX_RULES: usize = 1_024;

/// A key with many requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeavyKey {
    /// The rule and the client.
    pub key: OwnedKey,
    /// Estimated number of admitted requests.
    pub admitted: u64,
    /// Estimated number of rejected requests.
    pub rejected: u64,
}

/// A sketch of the heaviest keys per rule, over the sampled decisions.
#[derive(Debug, Default)]
pub(super) struct HeavyHitters {
    rules: Mutex<HashMap<RuleId, RuleKeys>>,
}

/// The keys of one rule.
#[derive(Debug, Default)]
struct RuleKeys {
    /// Recorded decisions, including those of the rule that this one replaced.
    weight: u64,
    keys: SpaceSaving<KeyCounts, KEYS_PER_RULE>,
}

#[derive(Debug)]
struct KeyCounts {
    client: Box<[u8]>,
    admitted: u64,
    rejected: u64,
}

impl HeavyHitters {
    /// Records this decision if it is in the sample.
    #[expect(clippy::inline_always, reason = "two instructions of every decision")]
    #[inline(always)]
    pub(super) fn sample(&self, key: &CounterKey<'_>, hash: u64, now: Timestamp, passes: bool) {
        // The low bits of the time are nearly random; the hash keeps decisions of one instant independent.
        if (now.as_micros() ^ hash).is_multiple_of(SAMPLE) {
            // A copy, so that the caller's key need not be in memory for decisions outside the sample.
            let key = *key;
            self.record(&key, passes);
        }
    }

    #[cold]
    fn record(&self, key: &CounterKey<'_>, passes: bool) {
        // Statistics never wait for a lock.
        let Ok(mut rules) = self.rules.try_lock() else { return };
        if rules.len() >= MAX_RULES && !rules.contains_key(&key.rule) {
            replace_lightest(&mut rules, key.rule);
        }
        let RuleKeys { weight, keys } = rules.entry(key.rule).or_default();
        *weight += 1;
        let counts = keys.record(
            1,
            |known| *known.client == *key.client,
            || KeyCounts { client: key.client.into(), admitted: 0, rejected: 0 },
        );
        if passes { counts.admitted += 1 } else { counts.rejected += 1 }
    }

    pub(super) fn heaviest(&self) -> Vec<HeavyKey> {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut heaviest: Vec<_> = rules
            .iter()
            .flat_map(|(rule, of_rule)| of_rule.keys.iter().map(|one| (*rule, &one.item)))
            .map(|(rule, one)| HeavyKey {
                key: CounterKey::new(rule, &one.client).into(),
                admitted: one.admitted * SAMPLE,
                rejected: one.rejected * SAMPLE,
            })
            .collect();
        heaviest.sort_by_key(|key| std::cmp::Reverse(key.admitted + key.rejected));
        heaviest
    }
}

/// Replaces the rule with the fewest recorded decisions.
fn replace_lightest(rules: &mut HashMap<RuleId, RuleKeys>, rule: RuleId) {
    let Some((lightest, weight)) =
        rules.iter().map(|(rule, keys)| (*rule, keys.weight)).min_by_key(|(_, weight)| *weight)
    else {
        return;
    };
    rules.remove(&lightest);
    rules.insert(rule, RuleKeys { weight, keys: SpaceSaving::default() });
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const RULE: RuleId = RuleId::named("default");

    #[test]
    fn heavy_hitters_with_one_heavy_key_among_many_light_ones_reports_it() {
        let hitters = HeavyHitters::default();
        for n in 0_u64..1_000_000 {
            let now = Timestamp::from_micros(n);
            hitters.sample(
                &CounterKey::new(RULE, &n.to_be_bytes()),
                n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                now,
                true,
            );
            if n % 10 == 0 {
                hitters.sample(
                    &CounterKey::new(RULE, b"abuser"),
                    77,
                    Timestamp::from_micros(n / 10),
                    n % 20 == 0,
                );
            }
        }
        let heaviest = hitters.heaviest();
        assert_eq!(&*heaviest[0].key.client, b"abuser");
        let requests = heaviest[0].admitted + heaviest[0].rejected;
        assert!((90_000..=110_000).contains(&requests), "100,000 were estimated as {requests}");
        assert!(heaviest.len() <= KEYS_PER_RULE);
    }

    #[test]
    fn heavy_hitters_with_too_many_rules_drops_idle_ones_and_keeps_a_busy_one() {
        let hitters = HeavyHitters::default();
        for n in 0..10_000 {
            let rule = RuleId::named(&format!("rule-{n}"));
            hitters.record(&CounterKey::new(rule, b"idle"), true);
            hitters.record(&CounterKey::new(RULE, b"busy"), true);
        }
        let heaviest = hitters.heaviest();
        assert_eq!(heaviest.len(), MAX_RULES);
        assert_eq!((&*heaviest[0].key.client, heaviest[0].admitted), (&b"busy"[..], 10_000 * SAMPLE));
    }
}
