//! One decision over several checks: all or nothing.

use smallvec::SmallVec;

use crate::key::CounterKey;
use crate::limit::{Cost, Limit};
use crate::time::{TimeSpan, Timestamp};

/// How a check affects the decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Rejects the request if it does not fit.
    #[default]
    Binding,
    /// Never rejects, and is charged only if it fits (shadow mode).
    Advisory,
    /// Never rejects, and is charged even if it does not fit.
    Overage,
    /// Never rejects, and is charged only if it fits: otherwise an action takes the place of the rejection.
    Action,
}

impl Role {
    /// Whether the limit is enforced: clients are told about it.
    pub const fn is_enforced(self) -> bool {
        !matches!(self, Self::Advisory)
    }
}

/// One check: may this key spend this cost of this limit?
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// The counter. Within one decision all checks of a key have the same limit.
    pub key: CounterKey<'a>,
    /// The limit, unless the store has an override for the key.
    pub limit: &'a Limit,
    /// The cost of the request.
    pub cost: Cost,
    /// How the outcome affects the decision.
    pub role: Role,
}

impl<'a> Check<'a> {
    /// A binding check of cost 1.
    pub const fn new(key: CounterKey<'a>, limit: &'a Limit) -> Self {
        Self { key, limit, cost: Cost::ONE, role: Role::Binding }
    }

    /// Returns the check with another cost.
    pub const fn cost(self, cost: Cost) -> Self {
        Self { cost, ..self }
    }

    /// Returns the check with another role.
    pub const fn role(self, role: Role) -> Self {
        Self { role, ..self }
    }
}

/// Whether a request is admitted: now, later, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Admitted, after `wait` (zero except for a leaky bucket).
    Pass {
        /// How long to delay the request.
        wait: TimeSpan,
    },
    /// Rejected for now.
    NotUntil {
        /// The time until the first tick at which the same cost is admitted.
        retry_after: TimeSpan,
    },
    /// The cost exceeds the limit and is never admitted.
    Never,
}

impl Verdict {
    /// Admitted without a wait.
    pub const PASS: Self = Self::Pass { wait: TimeSpan::ZERO };

    /// Whether the request is admitted.
    pub const fn is_pass(self) -> bool {
        matches!(self, Self::Pass { .. })
    }

    /// The time until the same cost is admitted; `None` if it is admitted now, or never.
    pub const fn retry_after(self) -> Option<TimeSpan> {
        match self {
            Self::NotUntil { retry_after } => Some(retry_after),
            Self::Pass { .. } | Self::Never => None,
        }
    }
}

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outcome {
    /// Whether the cost fits.
    pub verdict: Verdict,
    /// The limit that applied: the largest cost that can fit.
    pub limit: u64,
    /// Units left after the decision; at least 1 exactly if one more unit would be admitted.
    pub remaining: u64,
    /// The time until the key's state equals that of an unused key (fixed window: until the window ends).
    pub reset_after: TimeSpan,
    /// When it was charged, relative to the decision.
    pub charged: ChargeOffset,
}

impl Outcome {
    /// An outcome of a counter that is charged at the time of the decision.
    #[inline]
    pub const fn new(verdict: Verdict, limit: u64, remaining: u64, reset_after: TimeSpan) -> Self {
        Self { verdict, limit, remaining, reset_after, charged: ChargeOffset::ZERO }
    }
}

/// The time of a check's charge minus the time of its decision, in microseconds.
///
/// It is zero unless a store has counters with several clocks. It is part of each outcome, so that no decision has to be
/// dropped for the rare ones: a list of times in `Decision` doubled the time of an ordinary decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChargeOffset(i64);

impl ChargeOffset {
    /// Charged at the time of the decision.
    pub const ZERO: Self = Self(0);
    /// Passed without a charge.
    const UNCHARGED: Self = Self(i64::MIN);

    /// The offset of a charge at `charged` (`None` if nothing was charged) in a decision at `at`.
    fn new(at: Timestamp, charged: Option<Timestamp>) -> Self {
        let micros = |time: Timestamp| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        charged.map_or(Self::UNCHARGED, |charged| Self(micros(charged).saturating_sub(micros(at))))
    }

    /// The time of the charge in a decision at `at`; `None` if nothing was charged.
    fn after(self, at: Timestamp) -> Option<Timestamp> {
        let span = TimeSpan::from_micros(self.0.unsigned_abs());
        match self {
            Self::UNCHARGED => None,
            Self(0..) => Some(at + span),
            Self(_) => Some(at - span),
        }
    }
}

/// The outcomes of a decision, in the order of its checks. Up to four need no allocation.
pub type Outcomes = SmallVec<[Outcome; 4]>;

/// The result of all checks of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The time of the decision, by the store's clock.
    pub at: Timestamp,
    /// Whether the request is admitted: the longest wait of the binding checks, or the longest `retry_after` of those
    /// that reject; `Never` counts as the longest.
    pub verdict: Verdict,
    /// The position of the check that sets the verdict of a rejection: the binding one with the longest `retry_after`; of several,
    /// the first.
    pub rejected_by: Option<usize>,
    /// The outcomes, one per check.
    pub outcomes: Outcomes,
}

impl Decision {
    /// Derives the decision from the `outcomes` of `checks`.
    pub fn new(at: Timestamp, checks: &[Check<'_>], outcomes: Outcomes) -> Self {
        let mut verdict = Verdict::PASS;
        let mut rejected_by = None;
        for (position, (check, outcome)) in checks.iter().zip(&outcomes).enumerate() {
            if check.role == Role::Binding {
                let so_far = verdict;
                verdict = stricter(verdict, outcome.verdict);
                if !outcome.verdict.is_pass() && (rejected_by.is_none() || verdict != so_far) {
                    rejected_by = Some(position);
                }
            }
        }
        Self { at, verdict, rejected_by, outcomes }
    }

    /// The decision over no checks: admitted.
    #[inline]
    pub fn of_none(at: Timestamp) -> Self {
        let outcomes = Outcomes::new();
        Self { at, verdict: Verdict::PASS, rejected_by: None, outcomes }
    }

    /// The decision over a single check in this role.
    #[expect(clippy::inline_always, reason = "a decision is large and is best built in place")]
    #[inline(always)]
    pub fn of_one(at: Timestamp, role: Role, outcome: Outcome) -> Self {
        let mut decision = Self::of_none(at);
        decision.add_one(role, outcome);
        decision
    }

    /// Turns a decision over no checks into one over a single check.
    #[expect(clippy::inline_always, reason = "see of_one")]
    #[inline(always)]
    pub fn add_one(&mut self, role: Role, outcome: Outcome) {
        if role == Role::Binding {
            self.verdict = outcome.verdict;
            self.rejected_by = if outcome.verdict.is_pass() { None } else { Some(0) };
        }
        self.outcomes.push(outcome);
    }

    /// Whether the request is admitted.
    pub const fn passes(&self) -> bool {
        self.verdict.is_pass()
    }

    /// Returns the decision with the time at which each check was charged; `None` for a check that passes without a charge.
    /// A store whose counters have several clocks, or which does not count everything, needs this for exact refunds.
    #[must_use]
    pub fn with_charge_times(mut self, times: impl IntoIterator<Item = Option<Timestamp>>) -> Self {
        for (outcome, charged) in self.outcomes.iter_mut().zip(times) {
            outcome.charged = ChargeOffset::new(self.at, charged);
        }
        self
    }

    /// The time at which the check at `position` was charged, if it passes and charges anything.
    pub fn charge_time(&self, position: usize) -> Option<Timestamp> {
        self.outcomes.get(position)?.charged.after(self.at)
    }

    /// When the check at `position`, which is `check`, was scheduled: the time of its charge and its wait. `None` if nothing was
    /// charged.
    pub fn charged_at(&self, position: usize, check: &Check<'_>) -> Option<Timestamp> {
        let at = self.charge_time(position).filter(|_| self.passes())?;
        match self.outcomes.get(position)?.verdict {
            Verdict::Pass { wait } => Some(at + wait),
            _ if check.role == Role::Overage => Some(at),
            _ => None,
        }
    }

    /// The refunds for a request that was not served after all: everything that this decision charged, one per key. Pass
    /// them to a store's `refund`.
    pub fn refunds<'a>(&self, checks: &[Check<'a>]) -> Refunds<'a> {
        let mut refunds = Refunds::new();
        for (position, check) in checks.iter().enumerate().filter(|(_, check)| check.cost != Cost::ZERO) {
            let Some(charged) = self.charged_at(position, check) else { continue };
            if let Some(refund) = refunds.iter_mut().find(|refund| refund.key == check.key) {
                refund.cost = refund.cost.plus(check.cost);
            } else {
                let (key, limit, cost) = (check.key, check.limit, check.cost);
                refunds.push(Refund { key, limit, cost, charged });
            }
        }
        refunds
    }
}

/// Units to give back.
#[derive(Clone, Copy, Debug)]
pub struct Refund<'a> {
    /// The counter.
    pub key: CounterKey<'a>,
    /// The limit it was charged under.
    pub limit: &'a Limit,
    /// The units to give back.
    pub cost: Cost,
    /// When the charged request was scheduled: the time of its decision plus its `wait`.
    pub charged: Timestamp,
}

/// The refunds of a decision. Up to four need no allocation.
pub type Refunds<'a> = SmallVec<[Refund<'a>; 4]>;

/// Access to the counters of a decision's checks, by position.
///
/// Every store in this process decides through [`decide`] over its own ledger, so the all-or-nothing logic exists once.
pub trait Ledger {
    /// Evaluates `cost` on the counter of check number `check` without changing it.
    fn evaluate(&self, check: usize, cost: Cost) -> Outcome;

    /// Charges `cost` to the counter of check number `check`.
    fn charge(&mut self, check: usize, cost: Cost);
}

/// Decides all `checks` at `now` and charges either everything due or nothing.
///
/// The request is admitted iff every binding check fits. Several checks on one key add up: each binding check on top of
/// the earlier binding ones, the others on top of all binding ones.
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
        // The outcome assumes that a fitting check was charged alone and any other was not; otherwise read the counter again.
        let fits = outcome.verdict.is_pass();
        if fits != (charges && is_charged(check, outcome)) || shares_key(checks, check) {
            *outcome = Outcome { verdict: outcome.verdict, ..ledger.evaluate(position, Cost::ZERO) };
        }
    }
    decision
}

/// Evaluates all `checks` at `now` without charging; `remaining` is the current value.
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

/// The other costs charged to the key of the check at `position`: for a binding check the earlier binding ones, for any
/// other check all binding ones (they come first) and the earlier others that are charged.
fn pending_cost(checks: &[Check<'_>], outcomes: &[Outcome], position: usize) -> Cost {
    let Some(check) = checks.get(position).filter(|check| shares_key(checks, check)) else {
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

/// Whether an admitting decision charges this check.
fn is_charged(check: &Check<'_>, outcome: &Outcome) -> bool {
    outcome.verdict.is_pass() || check.role == Role::Overage
}

fn shares_key(checks: &[Check<'_>], check: &Check<'_>) -> bool {
    checks.len() > 1 && checks.iter().filter(|other| other.key == check.key).count() > 1
}

fn stricter(a: Verdict, b: Verdict) -> Verdict {
    use Verdict::{Never, NotUntil, Pass};
    match (a, b) {
        (Never, _) | (_, Never) => Never,
        (NotUntil { retry_after: x }, NotUntil { retry_after: y }) => NotUntil { retry_after: x.max(y) },
        (NotUntil { retry_after }, _) | (_, NotUntil { retry_after }) => NotUntil { retry_after },
        (Pass { wait: x }, Pass { wait: y }) => Pass { wait: x.max(y) },
    }
}
