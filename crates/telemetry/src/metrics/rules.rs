//! Counters by rule: of each core, for rules that come and go.

use std::collections::HashMap;
use std::sync::OnceLock;

use tidegate_core::RuleId;
use tidegate_policy::{Plan, span_text};

use super::counter::Counter;

/// Rules of one chunk. A chunk is taken when one of its rules is first counted.
const CHUNK: usize = 512;
/// So many rules, over all policies that a process ever sees, are told apart.
const MOST: usize = 128 * CHUNK;
/// Rules beyond that are counted together.
const BEYOND: RuleSlot = RuleSlot(0);
const BEYOND_NAME: &str = "(further rules)";

/// Where a rule is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RuleSlot(u32);

/// What is counted of a rule.
#[derive(Debug, Default)]
pub(crate) struct RuleCounts {
    /// Refused requests whose client has no series of its own.
    pub(crate) exceeded: Counter,
    /// Requests that would have been refused if the rule were enforced.
    pub(crate) shadow: Counter,
}

/// Counts of one core. They never move, so whoever reads them disturbs nobody.
#[derive(Debug)]
pub(crate) struct ByRule {
    chunks: Box<[OnceLock<Box<[RuleCounts]>>]>,
}

impl Default for ByRule {
    fn default() -> Self {
        Self { chunks: (0..MOST / CHUNK).map(|_| OnceLock::new()).collect() }
    }
}

impl ByRule {
    pub(crate) fn count(&self, slot: RuleSlot, which: impl FnOnce(&RuleCounts) -> &Counter) {
        let Some(chunk) = self.chunks.get(slot.0 as usize / CHUNK) else { return };
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| RuleCounts::default()).collect());
        if let Some(counts) = chunk.get(slot.0 as usize % CHUNK) {
            which(counts).one();
        }
    }

    pub(crate) fn get(&self, slot: RuleSlot, which: impl FnOnce(&RuleCounts) -> &Counter) -> u64 {
        let chunk = self.chunks.get(slot.0 as usize / CHUNK).and_then(OnceLock::get);
        chunk.and_then(|chunk| chunk.get(slot.0 as usize % CHUNK)).map_or(0, |counts| which(counts).get())
    }
}

/// Where the rules of one policy are counted.
#[derive(Debug, Default)]
pub struct RuleSlots {
    by_id: HashMap<RuleId, RuleSlot, foldhash::fast::RandomState>,
}

impl RuleSlots {
    pub(crate) fn of(&self, rule: RuleId) -> RuleSlot {
        self.by_id.get(&rule).copied().unwrap_or(BEYOND)
    }
}

/// All rules that a process has seen.
#[derive(Debug)]
pub(crate) struct Registry {
    known: Vec<KnownRules>,
    by_id: HashMap<RuleId, RuleSlot, foldhash::fast::RandomState>,
}

/// A rule by its slot.
#[derive(Debug)]
pub(crate) struct KnownRules {
    pub(crate) name: String,
    /// Its limit and window, if the policy in force has it.
    pub(crate) limit: Option<(u64, String)>,
}

impl Default for Registry {
    fn default() -> Self {
        let beyond = KnownRules { name: BEYOND_NAME.to_owned(), limit: None };
        Self { known: vec![beyond], by_id: HashMap::default() }
    }
}

impl Registry {
    /// Makes room for the rules of `plan`; those of an earlier one keep their counts.
    pub(crate) fn apply(&mut self, plan: &Plan) -> RuleSlots {
        for known in &mut self.known {
            known.limit = None;
        }
        let mut slots = RuleSlots::default();
        let limits = &plan.rate_limits;
        let rates = limits.iter().map(|rule| (rule.id, &rule.name, rule.requests, span_text(rule.window)));
        // No window: so many at once.
        let at_once = limits.concurrent.iter();
        let at_once = at_once.map(|rule| (rule.id, &rule.name, u64::from(rule.concurrent), String::new()));
        for (id, name, limit, window) in rates.chain(at_once) {
            let slot = match self.by_id.get(&id) {
                Some(slot) => *slot,
                None if self.known.len() < MOST => {
                    let slot = RuleSlot(u32::try_from(self.known.len()).unwrap_or_default());
                    self.by_id.insert(id, slot);
                    self.known.push(KnownRules { name: name.clone(), limit: None });
                    slot
                }
                None => BEYOND,
            };
            if let Some(known) = self.known.get_mut(slot.0 as usize).filter(|_| slot != BEYOND) {
                known.limit = Some((limit, window));
            }
            slots.by_id.insert(id, slot);
        }
        slots
    }

    /// Every rule with its slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RuleSlot, &KnownRules)> {
        (0..).map(RuleSlot).zip(&self.known)
    }

    pub(crate) fn name(&self, slot: RuleSlot) -> &str {
        self.known.get(slot.0 as usize).map_or(BEYOND_NAME, |known| &known.name)
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }
}
