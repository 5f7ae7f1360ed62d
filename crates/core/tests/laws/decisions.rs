//! One decision over several checks: all or nothing.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidegate_core::{
    Check, Cost, CounterKey, CounterState, Decision, Ledger, Limit, Outcome, Role, RuleId, TimeSpan,
    Timestamp, Verdict, decide, peek,
};

use crate::generate::{GeneratedLimit, any_limit, start};
use crate::refunds::can_refund;

type States = BTreeMap<RuleId, CounterState>;

struct MapLedger<'a> {
    checks: &'a [Check<'a>],
    now: Timestamp,
    states: States,
}

impl Ledger for MapLedger<'_> {
    fn evaluate(&self, check: usize, cost: Cost) -> Outcome {
        let check = &self.checks[check];
        let state = self.states.get(&check.key.rule).cloned().unwrap_or_default();
        check.limit.evaluate(&state, self.now, cost)
    }

    fn charge(&mut self, check: usize, cost: Cost) {
        let check = &self.checks[check];
        check.limit.charge(self.states.entry(check.key.rule).or_default(), self.now, cost);
    }
}

const RULES: [RuleId; 4] =
    [RuleId::named("global"), RuleId::named("tenant"), RuleId::named("default"), RuleId::named("search")];

fn checks_of<'a>(limits: &'a [Limit], specs: &[(usize, u64, Role)]) -> Vec<Check<'a>> {
    let check = |&(rule, cost, role): &(usize, u64, Role)| {
        Check::new(CounterKey::new(RULES[rule], b"client"), &limits[rule]).cost(Cost::new(cost)).role(role)
    };
    specs.iter().map(check).collect()
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![4 => Just(Role::Binding), 2 => Just(Role::Advisory), 1 => Just(Role::Overage)]
}

fn check_specs() -> impl Strategy<Value = Vec<(usize, u64, Role)>> {
    proptest::collection::vec((0..RULES.len(), 0_u64..=4, role()), 0..6)
}

/// Few requests per limit, so that many decisions reject.
fn limits() -> impl Strategy<Value = Vec<Limit>> {
    let tight = |generated: GeneratedLimit| {
        let spec = tidegate_core::Spec { requests: generated.spec.requests.min(7), ..generated.spec };
        Limit::new(generated.limit.algorithm(), spec).unwrap()
    };
    proptest::collection::vec(any_limit().prop_map(tight), RULES.len())
}

proptest! {
    #[test]
    fn decision_charges_all_binding_and_fitting_advisory_checks_or_nothing(
        limits in limits(), start in start(),
        requests in proptest::collection::vec((check_specs(), 0_u64..2_000_000), 1..12),
    ) {
        let mut states = States::new();
        let mut now = start;
        for (specs, gap) in requests {
            now = now + TimeSpan::from_micros(gap);
            let checks = checks_of(&limits, &specs);
            let mut ledger = MapLedger { checks: &checks, now, states: states.clone() };
            let peeked = peek(&checks, now, &ledger);
            let decision = decide(&checks, now, &mut ledger);

            prop_assert_eq!(peeked.verdict, decision.verdict);
            prop_assert_eq!(peeked.rejected_by, decision.rejected_by);
            let binding = || checks.iter().zip(&decision.outcomes).filter(|(check, _)| check.role == Role::Binding);
            prop_assert_eq!(decision.passes(), binding().all(|(_, outcome)| outcome.verdict.is_pass()));

            let mut expected = states.clone();
            for (check, outcome) in checks.iter().zip(&decision.outcomes) {
                let charged = outcome.verdict.is_pass() || check.role == Role::Overage;
                if decision.passes() && charged && check.cost > Cost::ZERO {
                    check.limit.charge(expected.entry(check.key.rule).or_default(), now, check.cost);
                }
            }
            prop_assert_eq!(&ledger.states, &expected);
            for (position, outcome) in decision.outcomes.iter().enumerate() {
                prop_assert_eq!(outcome.remaining, ledger.evaluate(position, Cost::ZERO).remaining);
            }
            if !decision.passes() {
                prop_assert_eq!(&ledger.states, &states, "a rejected decision charges nothing");
                prop_assert_eq!(&peeked, &decision);
            }
            states = ledger.states;
        }
    }

    #[test]
    fn decision_verdict_and_rejecting_check_are_those_with_the_longest_retry_after(
        limits in limits(), start in start(), specs in check_specs()
    ) {
        let spent: Vec<_> = (0..RULES.len()).map(|rule| (rule, limits[rule].capacity(), Role::Overage)).collect();
        let checks = checks_of(&limits, &spent);
        let mut ledger = MapLedger { checks: &checks, now: start, states: States::new() };
        decide(&checks, start, &mut ledger);

        let checks = checks_of(&limits, &specs);
        let mut ledger = MapLedger { checks: &checks, now: start, states: ledger.states };
        let decision = decide(&checks, start, &mut ledger);
        let rejecting: Vec<_> = checks
            .iter()
            .zip(&decision.outcomes)
            .enumerate()
            .filter(|(_, (check, outcome))| check.role == Role::Binding && !outcome.verdict.is_pass())
            .map(|(position, (_, outcome))| (position, outcome.verdict))
            .collect();
        // Of several the last is the greatest: reversed, that is the first in the order of the checks.
        let expected = rejecting.iter().rev().max_by_key(|(_, verdict)| match verdict {
            Verdict::NotUntil { retry_after } => *retry_after,
            _ => TimeSpan::MAX,
        });
        prop_assert_eq!(decision.rejected_by, expected.map(|(position, _)| *position));
        if let Some((_, verdict)) = expected {
            prop_assert_eq!(decision.verdict, *verdict);
        }
    }

    #[test]
    fn decision_refunded_at_once_is_undone(limits in limits(), start in start(), specs in check_specs()) {
        if !limits.iter().all(can_refund) {
            return Ok(());
        }
        let checks = checks_of(&limits, &specs);
        let mut ledger = MapLedger { checks: &checks, now: start, states: States::new() };
        let before = peek(&checks, start, &ledger);
        let decision = decide(&checks, start, &mut ledger);
        for refund in &decision.refunds(&checks) {
            let state = ledger.states.get_mut(&refund.key.rule).unwrap();
            refund.limit.refund(state, refund.charged, start, refund.cost);
        }
        prop_assert_eq!(peek(&checks, start, &ledger), before);
    }
}

fn fixed(requests: u64) -> Limit {
    let spec = tidegate_core::Spec::new(requests, TimeSpan::from_secs(60));
    Limit::new(tidegate_core::Algorithm::FixedWindow, spec).unwrap()
}

fn decide_fresh(checks: &[Check<'_>]) -> Decision {
    let now = Timestamp::from_secs(1_700_000_000);
    decide(checks, now, &mut MapLedger { checks, now, states: States::new() })
}

#[test]
fn retry_after_of_a_shared_key_adds_binding_checks_but_not_advisory_ones() {
    let spec = tidegate_core::Spec::new(10, TimeSpan::from_secs(60));
    let bucket = Limit::new(tidegate_core::Algorithm::TokenBucket, spec).unwrap();
    let limits = [bucket; 4];
    let now = Timestamp::from_secs(1_700_000_000);
    let spent = checks_of(&limits, &[(0, 9, Role::Binding)]);
    let mut ledger = MapLedger { checks: &spent, now, states: States::new() };
    decide(&spent, now, &mut ledger);
    let checks = checks_of(&limits, &[(0, 2, Role::Binding), (0, 1, Role::Binding)]);
    let decision = decide(&checks, now, &mut MapLedger { checks: &checks, now, states: ledger.states });
    assert_eq!(decision.verdict, Verdict::NotUntil { retry_after: TimeSpan::from_secs(12) });
    let checks = checks_of(&limits, &[(0, 6, Role::Advisory), (0, 6, Role::Binding)]);
    assert_eq!(decide_fresh(&checks).verdict, Verdict::PASS);
}

#[test]
fn two_checks_on_one_key_add_up() {
    let limits = [fixed(3), fixed(3), fixed(3), fixed(3)];
    let twice = |first, second| checks_of(&limits, &[(0, first, Role::Binding), (0, second, Role::Binding)]);
    assert!(decide_fresh(&twice(1, 2)).passes());
    let decision = decide_fresh(&twice(2, 2));
    assert_eq!((decision.verdict, decision.rejected_by), (Verdict::Never, Some(1)));
}

#[test]
fn fitting_check_of_a_rejected_decision_keeps_its_remaining_units() {
    let limits = [fixed(10), fixed(1), fixed(3), fixed(3)];
    let checks = checks_of(&limits, &[(0, 4, Role::Binding), (1, 2, Role::Binding)]);
    let decision = decide_fresh(&checks);
    assert_eq!((decision.passes(), decision.rejected_by), (false, Some(1)));
    assert_eq!(decision.outcomes[0].remaining, 10);
}

#[test]
fn advisory_check_with_a_wait_does_not_delay_the_request() {
    let spec = tidegate_core::Spec::new(10, TimeSpan::from_secs(1));
    let leaky = Limit::new(tidegate_core::Algorithm::LeakyBucket, spec).unwrap();
    let limits = [leaky, fixed(5), fixed(5), fixed(5)];
    let specs = [(0, 1, Role::Advisory), (0, 1, Role::Advisory), (1, 1, Role::Binding)];
    assert_eq!(decide_fresh(&checks_of(&limits, &specs)).verdict, Verdict::PASS);
}

#[test]
fn decision_without_checks_is_admitted() {
    assert!(decide_fresh(&[]).passes());
}
