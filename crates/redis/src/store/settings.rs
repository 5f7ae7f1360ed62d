//! How the store handles each rule.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use foldhash::fast::FixedState;
use tidegate_core::{Check, Coordination, Limit, RuleId, StoreFailureMode};
use tidegate_store::RuleSettings;

use crate::config::RedisConfig;
use crate::support::supports;

/// The coordination and the failure mode of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuleModes {
    pub(super) coordination: Coordination,
    pub(super) on_failure: StoreFailureMode,
}

type ModesByRule = HashMap<RuleId, RuleModes, FixedState>;

/// The modes of all rules. Rules without settings have those of the configuration.
#[derive(Debug)]
pub(super) struct SettingsTable {
    configured: RuleModes,
    rules: ArcSwap<ModesByRule>,
}

impl SettingsTable {
    pub(super) fn new(config: &RedisConfig) -> Self {
        let configured = RuleModes { coordination: config.coordination, on_failure: config.on_store_failure };
        Self { configured, rules: ArcSwap::default() }
    }

    /// Replaces all settings. Returns whether the coordination of a rule has changed.
    pub(super) fn apply(&self, rules: &[RuleSettings]) -> bool {
        let modes = |rule: &RuleSettings| {
            let modes = RuleModes { coordination: rule.coordination, on_failure: rule.on_store_failure };
            (rule.rule, modes)
        };
        let rules: ModesByRule =
            rules.iter().map(modes).filter(|(_, modes)| *modes != self.configured).collect();
        let (before, after) = (self.rules.load_full(), Arc::new(rules));
        self.rules.store(Arc::clone(&after));
        let coordination =
            |modes: &ModesByRule, rule| modes.get(rule).unwrap_or(&self.configured).coordination;
        let mut known = before.keys().chain(after.keys());
        known.any(|rule| coordination(&before, rule) != coordination(&after, rule))
    }

    /// The modes of a rule.
    pub(super) fn of(&self, rule: RuleId) -> RuleModes {
        let rules = self.rules.load();
        if rules.is_empty() { self.configured } else { rules.get(&rule).copied().unwrap_or(self.configured) }
    }

    /// How nodes share `limit` under a rule. The limits of a policy are checked when it is loaded; others, such as those that
    /// requests carry, are decided in Redis if the rule's coordination does not support them.
    #[inline]
    pub(super) fn coordination(&self, rule: RuleId, limit: &Limit) -> Coordination {
        let coordination = self.of(rule).coordination;
        if supports(coordination, limit) { coordination } else { Coordination::Central }
    }

    /// The coordination of all `checks`, if it is the same.
    pub(super) fn coordination_of(&self, checks: &[Check<'_>]) -> Option<Coordination> {
        let [first, rest @ ..] = checks else { return Some(self.configured.coordination) };
        let coordination = self.coordination(first.key.rule, first.limit);
        let is_same = |check: &Check<'_>| self.coordination(check.key.rule, check.limit) == coordination;
        rest.iter().all(is_same).then_some(coordination)
    }
}
