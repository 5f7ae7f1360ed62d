//! Counters by rule. Reloads add and remove rules; counts stay.

use std::collections::HashMap;
use std::sync::OnceLock;

use tidegate_core::{ActionKind, RuleId};
use tidegate_policy::{EnvoyLimits, Plan, span_text};

use super::counter::Counter;

/// Rules of one chunk. A chunk is allocated when one of its rules is first counted.
const CHUNK_LEN: usize = 512;
/// Most rules with counts of their own, over all policies of a process.
const MAX_RULES: usize = 128 * CHUNK_LEN;
/// All further rules share this slot.
const OVERFLOW: RuleSlot = RuleSlot(0);
const OVERFLOW_NAME: &str = "(further rules)";

/// The index of a rule's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RuleSlot(u32);

/// The counts of a rule.
#[derive(Debug, Default)]
pub(crate) struct RuleCounts {
    /// Rejected requests whose client has no series of its own.
    pub(crate) exceeded: Counter,
    /// Requests that would have been rejected if the rule were enforced.
    pub(crate) shadow: Counter,
    /// Requests by the action that a limit of the rule had, in the order of [`ActionKind::ALL`].
    pub(crate) actions: [Counter; ActionKind::ALL.len()],
    /// Those that it would have had if the rule were enforced.
    pub(crate) shadow_actions: [Counter; ActionKind::ALL.len()],
}

/// The counts of one core by rule. They never move, so readers need no lock.
#[derive(Debug)]
pub(crate) struct RuleCountTable {
    chunks: Box<[OnceLock<Box<[RuleCounts]>>]>,
}

impl Default for RuleCountTable {
    fn default() -> Self {
        Self { chunks: (0..MAX_RULES / CHUNK_LEN).map(|_| OnceLock::new()).collect() }
    }
}

impl RuleCountTable {
    pub(crate) fn increment(&self, slot: RuleSlot, counter: impl FnOnce(&RuleCounts) -> &Counter) {
        let Some(chunk) = self.chunks.get(slot.0 as usize / CHUNK_LEN) else { return };
        let chunk = chunk.get_or_init(|| (0..CHUNK_LEN).map(|_| RuleCounts::default()).collect());
        if let Some(counts) = chunk.get(slot.0 as usize % CHUNK_LEN) {
            counter(counts).increment();
        }
    }

    pub(crate) fn get(&self, slot: RuleSlot, counter: impl FnOnce(&RuleCounts) -> &Counter) -> u64 {
        let chunk = self.chunks.get(slot.0 as usize / CHUNK_LEN).and_then(OnceLock::get);
        chunk
            .and_then(|chunk| chunk.get(slot.0 as usize % CHUNK_LEN))
            .map_or(0, |counts| counter(counts).get())
    }
}

/// The slots of the rules of one policy.
#[derive(Debug, Default)]
pub struct RuleSlots {
    by_id: HashMap<RuleId, RuleSlot, foldhash::fast::RandomState>,
}

impl RuleSlots {
    pub(crate) fn of(&self, rule: RuleId) -> RuleSlot {
        self.by_id.get(&rule).copied().unwrap_or(OVERFLOW)
    }
}

/// All rules since the start of the process.
#[derive(Debug)]
pub(crate) struct RuleRegistry {
    rules: Vec<RuleEntry>,
    by_id: HashMap<RuleId, RuleSlot, foldhash::fast::RandomState>,
}

/// A rule in the registry.
#[derive(Debug)]
pub(crate) struct RuleEntry {
    pub(crate) name: String,
    /// The limit and the window, if the active policy has the rule.
    pub(crate) limit: Option<(u64, String)>,
    source: RuleSource,
}

/// Where a rule is configured. The two are reloaded independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleSource {
    Policy,
    /// The descriptors of Envoy's rate limit service.
    Envoy,
    /// Requests carry the limit.
    Request,
}

impl Default for RuleRegistry {
    fn default() -> Self {
        let overflow = RuleEntry { name: OVERFLOW_NAME.to_owned(), limit: None, source: RuleSource::Policy };
        Self { rules: vec![overflow], by_id: HashMap::default() }
    }
}

impl RuleRegistry {
    /// Registers the rules of `plan`. Rules of an earlier plan keep their counts.
    pub(crate) fn apply(&mut self, plan: &Plan) -> RuleSlots {
        let limits = &plan.rate_limits;
        let rates = limits.iter().map(|rule| (rule.id, &rule.name, rule.requests, span_text(rule.window)));
        // A concurrency limit has no window.
        let concurrent = limits.concurrent.iter();
        let concurrent =
            concurrent.map(|rule| (rule.id, &rule.name, u64::from(rule.concurrent), String::new()));
        self.replace(RuleSource::Policy, rates.chain(concurrent))
    }

    /// Registers the descriptors of `limits`. Those of an earlier configuration keep their counts.
    pub(crate) fn apply_envoy(&mut self, limits: &EnvoyLimits) -> RuleSlots {
        let rates = limits.iter().filter_map(|limit| {
            let rate = limit.rate?;
            Some((limit.rule, &limit.label, u64::from(rate.requests_per_unit), span_text(rate.window)))
        });
        self.replace(RuleSource::Envoy, rates)
    }

    /// Registers a rule whose limit requests carry.
    pub(crate) fn register(&mut self, id: RuleId, name: &str) -> RuleSlots {
        let slot = self.slot(id, name, RuleSource::Request);
        RuleSlots { by_id: std::iter::once((id, slot)).collect() }
    }

    /// The slot of a rule; the common one if there are too many rules.
    fn slot(&mut self, id: RuleId, name: &str, source: RuleSource) -> RuleSlot {
        match self.by_id.get(&id) {
            Some(slot) => *slot,
            None if self.rules.len() < MAX_RULES => {
                let slot = RuleSlot(u32::try_from(self.rules.len()).unwrap_or_default());
                self.by_id.insert(id, slot);
                self.rules.push(RuleEntry { name: name.to_owned(), limit: None, source });
                slot
            }
            None => OVERFLOW,
        }
    }

    /// Registers `rules` in place of all others of `source`.
    fn replace<'r>(
        &mut self,
        source: RuleSource,
        rules: impl Iterator<Item = (RuleId, &'r String, u64, String)>,
    ) -> RuleSlots {
        for rule in self.rules.iter_mut().filter(|rule| rule.source == source) {
            rule.limit = None;
        }
        let mut slots = RuleSlots::default();
        for (id, name, limit, window) in rules {
            let slot = self.slot(id, name, source);
            if let Some(rule) = self.rules.get_mut(slot.0 as usize).filter(|_| slot != OVERFLOW) {
                rule.limit = Some((limit, window));
            }
            slots.by_id.insert(id, slot);
        }
        slots
    }

    /// Every rule with its slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RuleSlot, &RuleEntry)> {
        (0..).map(RuleSlot).zip(&self.rules)
    }

    pub(crate) fn name(&self, slot: RuleSlot) -> &str {
        self.rules.get(slot.0 as usize).map_or(OVERFLOW_NAME, |rule| &rule.name)
    }

    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }
}
