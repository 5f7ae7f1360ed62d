//! The checks of a decision, grouped by what decides them.

use smallvec::{SmallVec, smallvec};
use tidegate_core::{Check, Coordination, Decision, Outcome, Outcomes, TimeSpan, Timestamp, Verdict};

/// What decides a check. Decisions of this node come first, so that most rejections need no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Decider {
    Static,
    Sync,
    Lease,
    Central,
    /// A share of the limit, while Redis fails.
    Fallback,
    /// Nothing: the check passes.
    Nothing,
}

impl From<Coordination> for Decider {
    fn from(coordination: Coordination) -> Self {
        match coordination {
            Coordination::Static => Self::Static,
            Coordination::Sync => Self::Sync,
            Coordination::Lease => Self::Lease,
            Coordination::Central => Self::Central,
        }
    }
}

/// Checks with the same decider. All checks of a rule with the same algorithm, and so of a counter, are in one group.
#[derive(Clone, Debug)]
pub(super) struct Group<'a> {
    pub(super) decider: Decider,
    /// The places of the checks in the decision.
    pub(super) positions: SmallVec<[usize; 4]>,
    pub(super) checks: SmallVec<[Check<'a>; 4]>,
}

impl Group<'_> {
    /// The checks at these places in the group.
    pub(super) fn part(&self, places: &[usize]) -> Self {
        let positions = places.iter().filter_map(|place| self.positions.get(*place)).copied().collect();
        let checks = places.iter().filter_map(|place| self.checks.get(*place)).copied().collect();
        Self { decider: self.decider, positions, checks }
    }
}

pub(super) type Groups<'a> = SmallVec<[Group<'a>; 2]>;

/// Groups checks and their positions; the decider that is asked first is last.
pub(super) fn group<'a>(
    checks: impl Iterator<Item = (usize, Check<'a>)>,
    decider: impl Fn(&Check<'a>) -> Decider,
) -> Groups<'a> {
    let mut groups = Groups::new();
    for (position, check) in checks {
        let decider = decider(&check);
        let index = groups.iter().position(|group| group.decider == decider).unwrap_or_else(|| {
            groups.push(Group { decider, positions: SmallVec::new(), checks: SmallVec::new() });
            groups.len() - 1
        });
        if let Some(group) = groups.get_mut(index) {
            group.positions.push(position);
            group.checks.push(check);
        }
    }
    groups.sort_unstable_by_key(|group| std::cmp::Reverse(group.decider));
    groups
}

/// Puts the decisions of groups together.
///
/// The time is the earliest of theirs. The clocks of this node and of Redis may differ, so each check keeps the time of its
/// own charge: a refund needs it.
pub(super) fn assemble<'d>(
    checks: &[Check<'_>],
    parts: impl Iterator<Item = (&'d [usize], &'d Decision)>,
) -> Decision {
    let mut outcomes: Outcomes = checks.iter().map(unlimited).collect();
    let mut charged: SmallVec<[Option<Timestamp>; 4]> = smallvec![None; checks.len()];
    let mut at = Timestamp::MAX;
    for (positions, decision) in parts {
        at = at.min(decision.at);
        for (index, (position, outcome)) in positions.iter().zip(&decision.outcomes).enumerate() {
            if let (Some(place), Some(time)) = (outcomes.get_mut(*position), charged.get_mut(*position)) {
                (*place, *time) = (*outcome, decision.charge_time(index));
            }
        }
    }
    Decision::new(at, checks, outcomes).with_charge_times(charged)
}

/// The outcome of a check that nothing limits.
pub(super) fn unlimited(check: &Check<'_>) -> Outcome {
    let limit = check.limit.capacity();
    Outcome::new(Verdict::PASS, limit, limit, TimeSpan::ZERO)
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, CounterKey, Limit, RuleId, Spec};

    use super::*;

    #[test]
    fn groups_are_taken_from_the_end_in_the_order_of_their_deciders() {
        let limit = Limit::new(Algorithm::FixedWindow, Spec::new(5, TimeSpan::from_secs(1))).unwrap();
        let rules = ["central", "static", "lease", "other"].map(RuleId::named);
        let checks = rules.map(|rule| Check::new(CounterKey::new(rule, b""), &limit));
        let decider = |check: &Check<'_>| match rules.iter().position(|rule| *rule == check.key.rule) {
            Some(1) => Decider::Static,
            Some(2) => Decider::Lease,
            _ => Decider::Central,
        };
        let mut groups = group(checks.iter().copied().enumerate(), decider);
        let order: Vec<_> = std::iter::from_fn(|| groups.pop())
            .map(|group| (group.decider, group.positions.to_vec()))
            .collect();
        assert_eq!(
            order,
            [(Decider::Static, vec![1]), (Decider::Lease, vec![2]), (Decider::Central, vec![0, 3])]
        );
    }
}
