//! What a response reports of the limits of its request, and what operators see of them.

use tidegate_core::{Decision, LimitReport, Role, RuleId, Span, Timestamp};
use tidegate_policy::{ConcurrencyRule, Judged, Matched, Rule};

use crate::lockout::LockOuts;

/// The limits of a request and what they say of it. Nothing is worked out before somebody asks.
#[derive(Debug)]
pub struct Report<'a> {
    pub(crate) at: Timestamp,
    pub(crate) matched: Matched<'a>,
    /// What the limits say; `None` if there are none, or if the store gave no answer.
    pub(crate) decision: Option<Decision>,
    pub(crate) lock_outs: LockOuts,
    /// The concurrency limit that has no permit left.
    pub(crate) exhausted: Option<&'a ConcurrencyRule>,
    /// Concurrency limits in shadow mode that had no permit left.
    pub(crate) shadow: Vec<RuleId>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(matched: Matched<'a>, at: Timestamp) -> Self {
        let (lock_outs, shadow) = (LockOuts::new(), Vec::new());
        Self { at, matched, decision: None, lock_outs, exhausted: None, shadow }
    }

    /// The time of the decision, by the store's clock.
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// The client, as its counters know it. It may be an API key.
    pub fn client(&self) -> &[u8] {
        self.matched.client()
    }

    /// Every limit that can reject the request. Limits in shadow mode are not reported to clients.
    pub fn limits(&self) -> impl Iterator<Item = LimitReport<'a>> {
        let exhausted = self.exhausted.map(exhausted);
        exhausted.into_iter().chain(self.binding().filter_map(|(index, rule)| self.limit(index, rule)))
    }

    /// The names of the limits that reject the request.
    pub fn violated(&self) -> impl Iterator<Item = &'a str> {
        let rates = self.binding().filter(|(index, _)| {
            let outcome = self.decision.as_ref().and_then(|decision| decision.outcomes.get(*index));
            self.lock_out(*index).is_some() || outcome.is_some_and(|outcome| !outcome.verdict.is_pass())
        });
        let exhausted = self.exhausted.map(|rule| rule.name.as_str());
        exhausted.into_iter().chain(rates.map(|(_, rule)| rule.name.as_str()))
    }

    /// The rules in shadow mode that would have rejected the request.
    pub fn shadow_rejections(&self) -> impl Iterator<Item = RuleId> {
        let judged = self.decision.iter().flat_map(|decision| self.matched.judged(decision));
        let rates = judged.filter(Judged::would_refuse).map(|judged| judged.rule.id);
        self.shadow.iter().copied().chain(rates)
    }

    /// The limit that single-valued headers report of an admitted request: the one with the least left of it.
    pub(crate) fn tightest(&self) -> Option<LimitReport<'a>> {
        let index = self.matched.tightest(self.decision.as_ref()?)?;
        self.limit(index, self.matched.rule(index)?)
    }

    /// The limit that the response to a rejected request names: an exhausted concurrency limit, the longest lock-out, or
    /// the first limit that rejects.
    pub(crate) fn rejecting(&self) -> Option<(RuleId, LimitReport<'a>)> {
        if let Some(rule) = self.exhausted {
            return Some((rule.id, exhausted(rule)));
        }
        let longest = self.lock_outs.iter().max_by_key(|(_, left)| *left).map(|(index, _)| *index);
        let index = longest.or_else(|| self.decision.as_ref()?.refused_by)?;
        let rule = self.matched.rule(index)?;
        Some((rule.id, self.limit(index, rule)?))
    }

    /// The checks that can reject the request, by their positions, with their rules.
    fn binding(&self) -> impl Iterator<Item = (usize, &'a Rule)> {
        let checks = self.matched.checks().iter().zip(self.matched.rules()).enumerate();
        let binding = checks.filter(|(_, (check, _))| check.role == Role::Binding);
        binding.map(|(index, (_, rule))| (index, rule))
    }

    fn lock_out(&self, index: usize) -> Option<Span> {
        self.lock_outs.iter().find(|(locked, _)| *locked == index).map(|(_, left)| *left)
    }

    fn limit(&self, index: usize, rule: &'a Rule) -> Option<LimitReport<'a>> {
        let outcome = self.decision.as_ref().and_then(|decision| decision.outcomes.get(index));
        Some(match self.lock_out(index) {
            Some(left) => rule.quota.report_locked_out(&rule.name, outcome, left),
            None => rule.quota.report(&rule.name, outcome?),
        })
    }
}

fn exhausted(rule: &ConcurrencyRule) -> LimitReport<'_> {
    LimitReport::exhausted_concurrency(&rule.name, rule.concurrent)
}
