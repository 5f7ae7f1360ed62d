//! Random traces: a few rules, a few clients, and every operation of a store.

use fastrand::Rng;
use tidegate_core::{
    Algorithm, Borrow, Check, Cost, CounterKey, Decision, Limit, Role, RuleId, Spec, TimeSpan, Timestamp,
};

use crate::store::Override;

const RULES: [RuleId; 3] = [RuleId::named("global"), RuleId::named("default"), RuleId::named("search")];
const CLIENTS: usize = 3;
/// The number of decisions kept for refunds.
const REFUNDABLE: usize = 8;

/// A rule and a client, by index.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyIndex {
    rule: usize,
    client: usize,
}

/// One check of a trace; its limit is the rule's at the time of the replay.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckSpec {
    key: KeyIndex,
    cost: Cost,
    role: Role,
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    Decide(Vec<CheckSpec>),
    Batch(Vec<Vec<CheckSpec>>),
    Peek(Vec<CheckSpec>),
    Refund(Box<AdmittedDecision>),
    Reset(KeyIndex),
    Override(KeyIndex, Option<Override>),
    ChangeLimit(usize, Limit),
}

/// An admitting decision with the limits at that time: its refund may come after they changed.
#[derive(Clone, Debug)]
pub(super) struct AdmittedDecision {
    pub(super) specs: Vec<CheckSpec>,
    pub(super) limits: [Limit; RULES.len()],
    pub(super) decision: Decision,
}

pub(super) struct Trace {
    rng: Rng,
    algorithms: &'static [Algorithm],
    limits: [Limit; RULES.len()],
    /// All limits that each rule has had.
    earlier: [Vec<Limit>; RULES.len()],
    clients: [Vec<u8>; CLIENTS],
    refundable: Vec<AdmittedDecision>,
    now: Timestamp,
}

impl Trace {
    pub(super) fn new(algorithms: &'static [Algorithm], seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let limits = std::array::from_fn(|_| random_limit(&mut rng, algorithms));
        let now = Timestamp::from_micros(rng.u64(1_600_000_000_000_000..1_900_000_000_000_000));
        // Client names may contain any bytes.
        let hostile: [&[u8]; CLIENTS] = [b"alice", b"bob:{x}\r\n\0\xff", b""];
        let clients = hostile.map(|name| [name, &seed.to_be_bytes()].concat());
        let earlier = limits.map(|limit| vec![limit]);
        Self { rng, algorithms, limits, earlier, clients, refundable: Vec::new(), now }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    pub(super) fn next_op(&mut self) -> Op {
        self.move_time();
        match self.rng.u32(0..100) {
            0..60 => Op::Decide(self.check_specs()),
            60..68 => Op::Batch((0..self.rng.usize(1..=5)).map(|_| self.check_specs()).collect()),
            68..76 => Op::Peek(self.check_specs()),
            76..86 if !self.refundable.is_empty() => {
                let chosen = self.rng.usize(0..self.refundable.len());
                Op::Refund(Box::new(self.refundable.swap_remove(chosen)))
            }
            76..90 => Op::Reset(self.key_index()),
            90..95 => Op::Override(self.key_index(), self.replacement()),
            _ => {
                let rule = self.rng.usize(0..RULES.len());
                Op::ChangeLimit(rule, self.new_limit(rule))
            }
        }
    }

    pub(super) fn key(&self, key: KeyIndex) -> CounterKey<'_> {
        CounterKey::new(RULES[key.rule], &self.clients[key.client])
    }

    pub(super) fn checks(&self, specs: &[CheckSpec]) -> Vec<Check<'_>> {
        self.checks_under(specs, &self.limits)
    }

    pub(super) fn checks_under<'a>(&'a self, specs: &[CheckSpec], limits: &'a [Limit]) -> Vec<Check<'a>> {
        let check = |specs: &CheckSpec| {
            let limit = &limits[specs.key.rule];
            Check::new(self.key(specs.key), limit).cost(specs.cost).role(specs.role)
        };
        specs.iter().map(check).collect()
    }

    pub(super) fn remember(&mut self, specs: Vec<CheckSpec>, decision: Decision) {
        if decision.passes() {
            self.refundable.push(AdmittedDecision { specs, limits: self.limits, decision });
            if self.refundable.len() > REFUNDABLE {
                self.refundable.remove(0);
            }
        }
    }

    pub(super) fn change(&mut self, rule: usize, limit: Limit) {
        self.limits[rule] = limit;
    }

    /// Moves time by nothing, a little, about a limit's recovery time, or far; sometimes back.
    fn move_time(&mut self) {
        let rng = &mut self.rng;
        let by = match rng.u32(0..20) {
            0..6 => 0,
            6..9 => rng.u64(1..10),
            9..14 => rng.u64(1..2_000_000),
            14..17 => rng.u64(1..200_000_000),
            17 => rng.u64(1..100_000_000_000),
            _ => {
                self.now = self.now - TimeSpan::from_micros(rng.u64(1..5_000_000));
                0
            }
        };
        self.now = self.now + TimeSpan::from_micros(by);
    }

    fn check_specs(&mut self) -> Vec<CheckSpec> {
        let count = if self.rng.u32(0..20) == 0 { 0 } else { self.rng.usize(1..=5) };
        (0..count).map(|_| self.check_spec()).collect()
    }

    fn check_spec(&mut self) -> CheckSpec {
        let key = self.key_index();
        let capacity = self.limits[key.rule].capacity();
        let cost = match self.rng.u32(0..24) {
            0..14 => 1,
            14..16 => 0,
            16..20 => self.rng.u64(1..=5),
            20..22 => self.rng.u64(1..=capacity),
            22 => capacity,
            _ => [capacity.saturating_add(1), 1 << 53, u64::MAX][self.rng.usize(0..3)],
        };
        let role = match self.rng.u32(0..10) {
            0..7 => Role::Binding,
            7 => Role::Advisory,
            8 => Role::Action,
            _ => Role::Overage,
        };
        CheckSpec { key, cost: Cost::new(cost), role }
    }

    /// A limit that the rule has not had: a store that several nodes share may remember earlier limits, because some nodes
    /// may still use them.
    fn new_limit(&mut self, rule: usize) -> Limit {
        loop {
            let limit = random_limit(&mut self.rng, self.algorithms);
            if !self.earlier[rule].contains(&limit) {
                self.earlier[rule].push(limit);
                return limit;
            }
        }
    }

    fn key_index(&mut self) -> KeyIndex {
        KeyIndex { rule: self.rng.usize(0..RULES.len()), client: self.rng.usize(0..CLIENTS) }
    }

    fn replacement(&mut self) -> Option<Override> {
        let until = self.now + TimeSpan::from_micros(self.rng.u64(0..60_000_000));
        self.rng.bool().then(|| Override { limit: random_limit(&mut self.rng, self.algorithms), until })
    }
}

/// A limit of one of the `algorithms` that an operator might write, sometimes extreme.
fn random_limit(rng: &mut Rng, algorithms: &[Algorithm]) -> Limit {
    let algorithm = algorithms[rng.usize(0..algorithms.len())];
    let (requests, window) = match rng.u32(0..12) {
        0 => (1, TimeSpan::from_secs(365 * 86_400)),
        1 => (1_000_000, TimeSpan::from_secs(86_400)),
        2 => (1_000_001, TimeSpan::from_secs(86_400)),
        3 => (10_000_000, TimeSpan::from_secs(1)),
        4 => (rng.u64(1..1_000_000), TimeSpan::from_millis(rng.u64(1..100_000))),
        5..8 => (rng.u64(1..20), TimeSpan::from_millis(rng.u64(1..5_000))),
        _ => (rng.u64(1..20), TimeSpan::from_secs(rng.u64(1..120))),
    };
    let burst = match rng.u32(0..3) {
        0 => None,
        1 => Some(1),
        _ => Some(rng.u64(1..50)),
    };
    let max_wait = match rng.u32(0..4) {
        0 => Some(TimeSpan::MAX),
        1 => Some(TimeSpan::from_millis(rng.u64(0..30_000))),
        _ => None,
    };
    let borrow = (rng.u32(0..3) == 0).then(|| Borrow { units: rng.u64(1..30), repay: rng.u64(1..4) });
    let mut spec = Spec { requests, window, burst, max_wait, borrow };
    // Each of these belongs to one or two algorithms.
    if !matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket) {
        spec.burst = None;
    }
    if algorithm != Algorithm::LeakyBucket {
        spec.max_wait = None;
    }
    if algorithm != Algorithm::TokenBucket {
        spec.borrow = None;
    }
    Limit::new(algorithm, spec).expect("every generated rate has an exact tick")
}
