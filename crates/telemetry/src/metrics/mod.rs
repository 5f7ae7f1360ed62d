//! What is counted, and how it is told.
//!
//! Every core counts for itself, in memory that no other core writes; who reads takes no lock that a core could wait
//! for. Names and labels stand in `docs/operations.md`.

mod counter;
mod exposition;
mod histogram;
mod process;
mod rules;
mod sketch;
mod top_clients;
mod upstreams;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_utils::CachePadded;
use tidegate_core::{RuleId, Timestamp};
use tidegate_policy::Plan;

pub(crate) use counter::Counter;
use counter::for_each_core;
pub use exposition::{Exposition, Family, MetricKind};
use histogram::{Histogram, Scale};
pub use rules::RuleSlots;
use rules::{ByRule, Registry};
use sketch::{Sampler, Sketch};
pub use top_clients::MetricsReader;
use top_clients::Offenders;
use upstreams::Upstreams;
pub use upstreams::{AttemptResult, UpstreamCounts};

/// What was decided about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionKind {
    /// It is admitted.
    Admitted,
    /// A limit rejects it.
    Rejected,
    /// It is never limited.
    Exempt,
    /// Its client or network is banned.
    Banned,
    /// The store gave no answer.
    StoreFailed,
}

impl DecisionKind {
    const ALL: [Self; 5] = [Self::Admitted, Self::Rejected, Self::Exempt, Self::Banned, Self::StoreFailed];

    /// As metrics, logs and traces call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Rejected => "rejected",
            Self::Exempt => "exempt",
            Self::Banned => "banned",
            Self::StoreFailed => "store_failed",
        }
    }
}

/// Statuses by class, and those who left before they were answered.
const RESPONSES: usize = 6;
const GONE: usize = 5;

/// Counts of one core.
#[derive(Debug, Default)]
struct Shard {
    requests: [Counter; DecisionKind::ALL.len()],
    latency: Histogram,
    responses: [Counter; RESPONSES],
    accepted: Counter,
    refused_connections: Counter,
    by_rule: ByRule,
    sampler: Sampler,
    sketch: Mutex<Sketch>,
}

/// All that is counted.
#[derive(Debug)]
pub struct Metrics {
    cores: Box<[CachePadded<Shard>]>,
    next: AtomicUsize,
    offenders: Offenders,
    rules: Mutex<Registry>,
    upstreams: Upstreams,
    started: Timestamp,
}

impl Metrics {
    /// Counters for so many cores, all zero. `now` is when the process started.
    pub fn new(cores: usize, now: Timestamp) -> Arc<Self> {
        let cores = for_each_core(cores);
        let offenders = Offenders::new(cores.len());
        let (next, rules, upstreams) = (AtomicUsize::new(0), Mutex::default(), Upstreams::default());
        Arc::new(Self { cores, next, offenders, rules, upstreams, started: now })
    }

    /// What one core counts with.
    pub fn meter(self: &Arc<Self>) -> MetricsHandle {
        let core = self.next.fetch_add(1, Ordering::Relaxed) % self.cores.len().max(1);
        MetricsHandle { metrics: Arc::clone(self), core }
    }

    /// Makes room for the rules of a policy. Rules of the same name go on counting where they were.
    pub fn apply(&self, plan: &Plan) -> RuleSlots {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).apply(plan)
    }

    /// Where the tries of the upstream called `name` are counted.
    pub fn upstream(&self, name: &str) -> Arc<UpstreamCounts> {
        self.upstreams.named(name, self.cores.len())
    }

    /// Everything as text, up to what others add.
    pub fn page(&self, reader: MetricsReader, now: Timestamp) -> Exposition {
        // A core that finds its sketch taken goes on without.
        let sketches =
            self.shards().map(|shard| shard.sketch.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.offenders.compare(sketches.flatten(), now);
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut page = Exposition::with_capacity((32 << 10) + rules.len() * 200);
        self.write_decisions(&mut page);
        self.write_exceeded(&mut page, &rules, reader);
        self.write_rules(&mut page, &rules);
        drop(rules);
        self.write_gateway(&mut page);
        self.upstreams.write(&mut page);
        #[expect(clippy::cast_precision_loss, reason = "microseconds since 1970 fit")]
        process::write(&mut page, self.started.as_micros() as f64 / 1e6);
        page
    }

    fn shards(&self) -> impl Iterator<Item = &Shard> + Clone {
        self.cores.iter().map(|core| &**core)
    }

    fn sum(&self, which: impl Fn(&Shard) -> &Counter) -> u64 {
        self.shards().map(|shard| which(shard).get()).sum()
    }

    fn write_decisions(&self, page: &mut Exposition) {
        let mut family = page.family(
            "rate_limit_requests_total",
            MetricKind::Counter,
            "Requests that were decided about, each once, by what was decided.",
        );
        for (at, decided) in DecisionKind::ALL.into_iter().enumerate() {
            family.sample(&[("decision", decided.name())], self.sum(|shard| &shard.requests[at]));
        }
        let mut family = page.family(
            "rate_limit_latency",
            MetricKind::Histogram,
            "How long decisions took, matching included, in milliseconds.",
        );
        histogram::write(&mut family, Scale::Decision, &[], self.shards().map(|shard| &shard.latency));
    }

    fn write_exceeded(&self, page: &mut Exposition, rules: &Registry, reader: MetricsReader) {
        let mut family = page.family("rate_limit_exceeded_total", MetricKind::Counter, "Requests refused by a rule. The clients refused most are named, at most 100 series; the rest is `other`.");
        let (offenders, left) = self.offenders.show(reader);
        for one in &offenders {
            let labels = [("client_id", one.client.as_str()), ("rule", rules.name(one.rule))];
            family.sample(&labels, one.count);
        }
        for (slot, left) in left.iter().filter(|(_, left)| left.seen > 0) {
            let client = format!("former-{}", left.since.as_micros());
            family.sample(&[("client_id", &client), ("rule", rules.name(*slot))], left.seen);
        }
        for (slot, known) in rules.iter() {
            let counted: u64 =
                self.shards().map(|shard| shard.by_rule.get(slot, |counts| &counts.exceeded)).sum();
            let count = counted + left.get(&slot).map_or(0, |left| left.unseen);
            if count > 0 || known.limit.is_some() {
                family.sample(&[("client_id", "other"), ("rule", &known.name)], count);
            }
        }
    }

    fn write_rules(&self, page: &mut Exposition, rules: &Registry) {
        let mut family = page.family(
            "rate_limit_shadow_exceeded_total",
            MetricKind::Counter,
            "Requests that a rule would have refused if it were enforced.",
        );
        for (slot, known) in rules.iter() {
            let count: u64 =
                self.shards().map(|shard| shard.by_rule.get(slot, |counts| &counts.shadow)).sum();
            if count > 0 {
                family.sample(&[("rule", &known.name)], count);
            }
        }
        let mut family =
            page.family("rate_limit_limit", MetricKind::Gauge, "The limit of each rule: units per window.");
        for (_, known) in rules.iter() {
            if let Some((requests, window)) = &known.limit {
                family.sample(&[("rule", &known.name), ("window", window)], requests);
            }
        }
    }

    fn write_gateway(&self, page: &mut Exposition) {
        let mut family = page.family(
            "tidegate_responses_total",
            MetricKind::Counter,
            "Answers to clients by class of their status; `gone` left before theirs.",
        );
        for at in 0..=GONE {
            let code = if at == GONE { "gone" } else { upstreams::class_name(at) };
            family.sample(&[("code", code)], self.sum(|shard| &shard.responses[at]));
        }
        let accepted = self.sum(|shard| &shard.accepted);
        page.single(
            "tidegate_connections_accepted_total",
            MetricKind::Counter,
            "Connections of clients that were let in.",
            accepted,
        );
        let refused = self.sum(|shard| &shard.refused_connections);
        page.single(
            "tidegate_connections_refused_total",
            MetricKind::Counter,
            "Connections of clients that found no room.",
            refused,
        );
    }
}

/// What one core counts with. Nothing here waits or allocates, but for the sample of refusals.
#[derive(Debug)]
pub struct MetricsHandle {
    metrics: Arc<Metrics>,
    core: usize,
}

impl MetricsHandle {
    fn shard(&self) -> &Shard {
        // The position is one of the list's.
        &self.metrics.cores[self.core]
    }

    /// A request was decided about, after so long.
    pub fn decided(&self, decided: DecisionKind, nanos: u64) {
        let shard = self.shard();
        shard.requests[decided as usize].one();
        shard.latency.observe(nanos);
    }

    /// A rule has refused a request of `client` (the bytes of its key).
    pub fn refused(&self, slots: &RuleSlots, rule: RuleId, client: &[u8], now: Timestamp) {
        let (shard, offenders, slot) = (self.shard(), &self.metrics.offenders, slots.of(rule));
        let hash = offenders.hash(slot, client);
        if offenders.count(self.core, hash) {
            return;
        }
        shard.by_rule.count(slot, |counts| &counts.exceeded);
        let Some(weight) = shard.sampler.weight(now) else { return };
        if !offenders.name_if_free(hash, slot, client, now)
            && let Ok(mut sketch) = shard.sketch.try_lock()
        {
            sketch.note(hash, slot, client, weight);
        }
    }

    /// A rule would have refused a request if it were enforced.
    pub fn would_reject(&self, slots: &RuleSlots, rule: RuleId) {
        self.shard().by_rule.count(slots.of(rule), |counts| &counts.shadow);
    }

    /// A client was answered with this status; `None` if it left before.
    pub fn responded(&self, status: Option<u16>) {
        self.shard().responses[status.map_or(GONE, upstreams::class)].one();
    }

    /// A connection was let in, or found no room.
    pub fn connected(&self, is_let_in: bool) {
        let shard = self.shard();
        if is_let_in { shard.accepted.one() } else { shard.refused_connections.one() }
    }

    /// An upstream was asked, and this came of it after so long.
    pub fn tried(&self, upstream: &UpstreamCounts, result: AttemptResult, nanos: u64) {
        upstream.tried(self.core, result, nanos);
    }
}

#[cfg(test)]
mod tests;
