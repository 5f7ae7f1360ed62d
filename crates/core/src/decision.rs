//! One decision over several checks: all or nothing.

use smallvec::SmallVec;

use crate::key::CounterKey;
use crate::limit::{Cost, Limit};
use crate::time::{TimeSpan, Timestamp};

/// What a check can do to the decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Refuses the request if it does not fit.
    #[default]
    Binding,
    /// Watches: never refuses, and is charged only where it fits.
    Advisory,
    /// Counts: never refuses, and is charged even where it does not fit.
    Overage,
}

/// One question: may this key spend this much of this limit?
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// Whose counter. Within one decision a key stands for one limit.
    pub key: CounterKey<'a>,
    /// The limit it counts against, unless the store holds an override for the key.
    pub limit: &'a Limit,
    /// What the request costs.
    pub cost: Cost,
    /// What the answer can do.
    pub role: Role,
}

impl<'a> Check<'a> {
    /// A binding check of cost 1.
    pub const fn new(key: CounterKey<'a>, limit: &'a Limit) -> Self {
        Self { key, limit, cost: Cost::ONE, role: Role::Binding }
    }

    /// The same check at another cost.
    pub const fn cost(self, cost: Cost) -> Self {
        Self { cost, ..self }
    }

    /// The same check in another role.
    pub const fn role(self, role: Role) -> Self {
        Self { role, ..self }
    }
}

/// Whether something may pass: now, later, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It may pass, after `wait` (zero but for a leaky bucket).
    Pass {
        /// How long to hold it before it passes.
        wait: TimeSpan,
    },
    /// It may not pass yet.
    NotUntil {
        /// When the same cost would pass, the first tick and not one earlier.
        retry_after: TimeSpan,
    },
    /// It is larger than the limit and will not pass at any time.
    Never,
}

impl Verdict {
    /// Passes at once.
    pub const PASS: Self = Self::Pass { wait: TimeSpan::ZERO };

    /// Whether it may pass.
    pub const fn is_pass(self) -> bool {
        matches!(self, Self::Pass { .. })
    }
}

/// The answer to one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outcome {
    /// Whether the cost fits.
    pub verdict: Verdict,
    /// The limit in force: the largest cost that could ever fit.
    pub limit: u64,
    /// What is left after the decision; at least 1 exactly when one more unit would pass.
    pub remaining: u64,
    /// How long until the key is as good as never seen (a fixed window: until its end).
    pub reset_after: TimeSpan,
}

/// The outcomes of a decision, in the order of its checks. Up to four need no allocation.
pub type Outcomes = SmallVec<[Outcome; 4]>;

/// The answer to all checks of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The time at which it was taken, by the store's clock.
    pub at: Timestamp,
    /// Whether the request passes: the longest wait of the binding checks, or the longest `retry_after` of
    /// those that refuse, `Never` being the longest.
    pub verdict: Verdict,
    /// Which check refused: the first binding one that does not fit.
    pub rejected_by: Option<usize>,
    /// The answers, one per check.
    pub outcomes: Outcomes,
}

impl Decision {
    /// The decision that follows from the `outcomes` of `checks`.
    pub fn new(at: Timestamp, checks: &[Check<'_>], outcomes: Outcomes) -> Self {
        let mut verdict = Verdict::PASS;
        let mut rejected_by = None;
        for (position, (check, outcome)) in checks.iter().zip(&outcomes).enumerate() {
            if check.role == Role::Binding {
                verdict = longest(verdict, outcome.verdict);
                if !outcome.verdict.is_pass() && rejected_by.is_none() {
                    rejected_by = Some(position);
                }
            }
        }
        Self { at, verdict, rejected_by, outcomes }
    }

    /// The decision over no checks at all: it passes.
    #[inline]
    pub fn of_none(at: Timestamp) -> Self {
        Self { at, verdict: Verdict::PASS, rejected_by: None, outcomes: Outcomes::new() }
    }

    /// The decision that follows from the `outcome` of a single check in this role.
    #[expect(clippy::inline_always, reason = "a decision is large: it is best made where it is wanted")]
    #[inline(always)]
    pub fn of_one(at: Timestamp, role: Role, outcome: Outcome) -> Self {
        let mut decision = Self::of_none(at);
        decision.add_one(role, outcome);
        decision
    }

    /// Makes a decision over no checks that over a single one.
    #[expect(clippy::inline_always, reason = "see of_one")]
    #[inline(always)]
    pub fn add_one(&mut self, role: Role, outcome: Outcome) {
        if role == Role::Binding {
            self.verdict = outcome.verdict;
            self.rejected_by = if outcome.verdict.is_pass() { None } else { Some(0) };
        }
        self.outcomes.push(outcome);
    }

    /// Whether the request may pass.
    pub const fn passes(&self) -> bool {
        self.verdict.is_pass()
    }

    /// What to hand to a store's `refund` if the request was not served after all: everything that this
    /// decision charged, once per key.
    pub fn refunds<'a>(&self, checks: &[Check<'a>]) -> Refunds<'a> {
        let mut refunds = Refunds::new();
        for (check, outcome) in checks.iter().zip(&self.outcomes) {
            let wait = match outcome.verdict {
                _ if !self.passes() || check.cost == Cost::ZERO => continue,
                Verdict::Pass { wait } => wait,
                _ if check.role == Role::Overage => TimeSpan::ZERO,
                _ => continue,
            };
            match refunds.iter_mut().find(|refund| refund.key == check.key) {
                Some(refund) => refund.cost = refund.cost.plus(check.cost),
                None => refunds.push(Refund {
                    key: check.key,
                    limit: check.limit,
                    cost: check.cost,
                    charged: self.at + wait,
                }),
            }
        }
        refunds
    }
}

/// Units to give back.
#[derive(Clone, Copy, Debug)]
pub struct Refund<'a> {
    /// Whose counter.
    pub key: CounterKey<'a>,
    /// The limit it counts against.
    pub limit: &'a Limit,
    /// How much to give back.
    pub cost: Cost,
    /// When the charged request was to pass: the time of its decision plus its `wait`.
    pub charged: Timestamp,
}

/// The refunds of a decision. Up to four need no allocation.
pub type Refunds<'a> = SmallVec<[Refund<'a>; 4]>;

/// Where a decision reads and writes: the counters of its checks, by their position.
///
/// Every store in this process decides through [`decide`] over its own ledger, so "all or nothing" is
/// written once.
pub trait Ledger {
    /// How `cost` fits the counter of check number `check`, nothing changing.
    fn evaluate(&self, check: usize, cost: Cost) -> Outcome;

    /// Records `cost` at the counter of check number `check`.
    fn charge(&mut self, check: usize, cost: Cost);
}

/// Decides all `checks` at `now`: charges everything that is to be charged, or nothing.
///
/// Passes iff every binding check fits. Several checks on one key are judged together: binding ones first, each on top
/// of the earlier, the others on top of all binding ones.
pub fn decide(checks: &[Check<'_>], now: Timestamp, ledger: &mut impl Ledger) -> Decision {
    let mut decision = evaluate(checks, now, ledger);
    let charges = decision.passes();
    if charges {
        for (position, (check, outcome)) in checks.iter().zip(&decision.outcomes).enumerate() {
            if is_charged(check, outcome) && check.cost > Cost::ZERO {
                ledger.charge(position, check.cost);
            }
        }
    }
    for (position, (check, outcome)) in checks.iter().zip(&mut decision.outcomes).enumerate() {
        // Judged as charged if it fits, as uncharged if not, and on its own: correct whatever is otherwise.
        let fits = outcome.verdict.is_pass();
        if fits != (charges && is_charged(check, outcome)) || shares_its_key(checks, check) {
            *outcome = Outcome { verdict: outcome.verdict, ..ledger.evaluate(position, Cost::ZERO) };
        }
    }
    decision
}

/// Answers all `checks` at `now` and charges nothing; `remaining` is what is left as it is.
pub fn peek(checks: &[Check<'_>], now: Timestamp, ledger: &impl Ledger) -> Decision {
    let mut decision = evaluate(checks, now, ledger);
    for (position, outcome) in decision.outcomes.iter_mut().enumerate() {
        *outcome = Outcome { verdict: outcome.verdict, ..ledger.evaluate(position, Cost::ZERO) };
    }
    decision
}

fn evaluate(checks: &[Check<'_>], now: Timestamp, ledger: &impl Ledger) -> Decision {
    let mut outcomes = Outcomes::new();
    for (position, check) in checks.iter().enumerate() {
        let cost = pending_cost(checks, &outcomes, position).plus(check.cost);
        outcomes.push(ledger.evaluate(position, cost));
    }
    Decision::new(now, checks, outcomes)
}

/// What else is charged to the key of the check at `position`: for a binding check the earlier binding ones,
/// for any other all binding ones (they come first) and the earlier others that are charged.
fn pending_cost(checks: &[Check<'_>], outcomes: &[Outcome], position: usize) -> Cost {
    let Some(check) = checks.get(position).filter(|check| shares_its_key(checks, check)) else {
        return Cost::ZERO;
    };
    let others = checks.iter().enumerate().filter(|(other, _)| *other != position);
    let counted = others.filter(|(other, candidate)| {
        candidate.key == check.key
            && match candidate.role {
                Role::Binding => check.role != Role::Binding || *other < position,
                _ => {
                    check.role != Role::Binding
                        && outcomes.get(*other).is_some_and(|o| is_charged(candidate, o))
                }
            }
    });
    counted.fold(Cost::ZERO, |sum, (_, other)| sum.plus(other.cost))
}

/// Whether a decision that passes charges this check.
fn is_charged(check: &Check<'_>, outcome: &Outcome) -> bool {
    outcome.verdict.is_pass() || check.role == Role::Overage
}

fn shares_its_key(checks: &[Check<'_>], check: &Check<'_>) -> bool {
    checks.len() > 1 && checks.iter().filter(|other| other.key == check.key).count() > 1
}

fn longest(a: Verdict, b: Verdict) -> Verdict {
    use Verdict::{Never, NotUntil, Pass};
    match (a, b) {
        (Never, _) | (_, Never) => Never,
        (NotUntil { retry_after: x }, NotUntil { retry_after: y }) => NotUntil { retry_after: x.max(y) },
        (NotUntil { retry_after }, _) | (_, NotUntil { retry_after }) => NotUntil { retry_after },
        (Pass { wait: x }, Pass { wait: y }) => Pass { wait: x.max(y) },
    }
}
