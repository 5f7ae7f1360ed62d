//! The heaviest keys, by a small sample of all decisions.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tidegate_core::{CounterKey, RuleId, Timestamp};

use crate::space_saving::SpaceSaving;

/// One decision of so many is looked at.
const SAMPLE: u64 = 1_024;
/// So many keys are kept per rule: whoever sends more than one in so many requests is among them.
const KEYS_PER_RULE: usize = 64;
/// So many rules are kept, so that those of earlier policies do not pile up.
const MAX_RULES: usize = 1_024;

/// A key that lookups more than most.
#[derive(Clone, PartialEq, Eq)]
pub struct HeavyKey {
    /// The rule it lookups of.
    pub rule: RuleId,
    /// Who lookups.
    pub client: Box<[u8]>,
    /// How often it admitted, about.
    pub admitted: u64,
    /// How often it was rejected, about.
    pub rejected: u64,
}

impl std::fmt::Debug for HeavyKey {
    /// Redacted: a client may be an API key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rule, client, admitted, rejected } = self;
        write!(f, "HeavyKey({rule:?}, {} bytes, {admitted} admitted, {rejected} rejected)", client.len())
    }
}

/// A sketch of its keys for each rule, over the sampled decisions.
#[derive(Debug, Default)]
pub(super) struct HeavyHitters {
    rules: Mutex<HashMap<RuleId, RuleKeys>>,
}

/// The keys of one rule.
#[derive(Debug, Default)]
struct RuleKeys {
    /// How many decisions were recorded, and how many of the rule it replaced.
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
    /// Looks at this decision, if chance will have it.
    #[inline]
    pub(super) fn sample(&self, key: &CounterKey<'_>, hash: u64, now: Timestamp, passes: bool) {
        // The time is as good as random in its low bits, and the hash keeps one instant from choosing all.
        if (now.as_micros() ^ hash).is_multiple_of(SAMPLE) {
            self.record(key, passes);
        }
    }

    #[cold]
    fn record(&self, key: &CounterKey<'_>, passes: bool) {
        // Nobody waits for statistics.
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
                rule,
                client: one.client.clone(),
                admitted: one.admitted * SAMPLE,
                rejected: one.rejected * SAMPLE,
            })
            .collect();
        heaviest.sort_by_key(|key| std::cmp::Reverse(key.admitted + key.rejected));
        heaviest
    }
}

/// Puts a rule in the place of the one that fewest decisions were recorded of.
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
    fn a_heavy_key_is_found_among_many_light_ones() {
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
        assert_eq!(&*heaviest[0].client, b"abuser");
        let asked = heaviest[0].admitted + heaviest[0].rejected;
        assert!((90_000..=110_000).contains(&asked), "100,000 were about {asked}");
        assert!(heaviest.len() <= KEYS_PER_RULE);
    }

    #[test]
    fn rules_of_earlier_policies_are_forgotten_and_a_busy_one_is_not() {
        let hitters = HeavyHitters::default();
        for n in 0..10_000 {
            let rule = RuleId::named(&format!("rule-{n}"));
            hitters.record(&CounterKey::new(rule, b"idle"), true);
            hitters.record(&CounterKey::new(RULE, b"busy"), true);
        }
        let heaviest = hitters.heaviest();
        assert_eq!(heaviest.len(), MAX_RULES);
        assert_eq!((&*heaviest[0].client, heaviest[0].admitted), (&b"busy"[..], 10_000 * SAMPLE));
    }
}
