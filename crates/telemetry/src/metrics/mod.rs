//! The metrics, and their Prometheus text format.
//!
//! Every core counts in memory that no other core writes, and no reader takes a lock that a core could wait for.
//! `docs/observability.md` lists the names and labels.

mod counter;
mod exposition;
mod histogram;
mod process;
mod protocol;
mod rules;
mod sketch;
mod top_clients;
mod upstreams;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_utils::CachePadded;
use tidegate_core::{ActionKind, DecisionKind, RuleId, Timestamp};
use tidegate_policy::{EnvoyLimits, Plan};

pub(crate) use counter::Counter;
use counter::per_core;
pub use exposition::{Exposition, Family};
use histogram::{Histogram, Scale};
pub use protocol::Protocol;
pub use rules::RuleSlots;
use rules::{RuleCountTable, RuleCounts, RuleRegistry};
use sketch::{Sampler, Sketch};
pub use top_clients::MetricsReader;
use top_clients::{SeriesCount, TopClients};
use upstreams::Upstreams;
pub use upstreams::{AttemptResult, UpstreamCounts};

/// The classes of statuses, and clients that disconnected before the response.
const RESPONSES: usize = 6;
const GONE: usize = 5;

/// The counts of one core.
#[derive(Debug, Default)]
struct MetricShard {
    requests: [Counter; DecisionKind::ALL.len()],
    latency: Histogram,
    responses: [Counter; RESPONSES],
    accepted: Counter,
    closed: Counter,
    rejected_connections: Counter,
    rules: RuleCountTable,
    sampler: Sampler,
    sketch: Mutex<Sketch>,
}

/// All metrics of a process.
#[derive(Debug)]
pub struct Metrics {
    /// One for each core of each protocol, those of a protocol next to each other.
    shards: Box<[CachePadded<MetricShard>]>,
    cores: usize,
    /// How many handles each protocol has.
    handles: [AtomicUsize; Protocol::ALL.len()],
    top_clients: TopClients,
    rules: Mutex<RuleRegistry>,
    upstreams: Upstreams,
    started_at: Timestamp,
}

impl Metrics {
    /// Creates counters for this many cores, all zero. `now` is the start time of the process.
    pub fn new(cores: usize, now: Timestamp) -> Arc<Self> {
        let cores = cores.max(1);
        let shards = per_core(cores * Protocol::ALL.len());
        let top_clients = TopClients::new(shards.len());
        let (handles, rules, upstreams) = (Default::default(), Mutex::default(), Upstreams::default());
        Arc::new(Self { shards, cores, handles, top_clients, rules, upstreams, started_at: now })
    }

    /// A handle for one core to count requests of `protocol` with.
    pub fn handle(self: &Arc<Self>, protocol: Protocol) -> MetricsHandle {
        let taken = self.handles[protocol as usize].fetch_add(1, Ordering::Relaxed);
        let shard = protocol as usize * self.cores + taken % self.cores;
        MetricsHandle { metrics: Arc::clone(self), shard }
    }

    /// Registers the rules of a policy. A rule whose name is known keeps its counts.
    pub fn apply(&self, plan: &Plan) -> RuleSlots {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).apply(plan)
    }

    /// Registers the descriptors of Envoy's rate limit service. A descriptor that is known keeps its counts.
    pub fn apply_envoy(&self, limits: &EnvoyLimits) -> RuleSlots {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).apply_envoy(limits)
    }

    /// Registers a rule that is not configured: each request carries its limit. A rule that is known keeps its counts.
    pub fn register(&self, rule: RuleId, name: &str) -> RuleSlots {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).register(rule, name)
    }

    /// The counts of the upstream called `name`.
    pub fn upstream(&self, name: &str) -> Arc<UpstreamCounts> {
        self.upstreams.get_or_add(name, self.cores)
    }

    /// Writes all metrics. The caller can add families of its own.
    pub fn exposition(&self, reader: MetricsReader, now: Timestamp) -> Exposition {
        // Cores use `try_lock` for their sketch, so they do not wait for this.
        let sketches =
            self.shards().map(|shard| shard.sketch.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.top_clients.update(sketches.flatten(), now);
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut exposition = Exposition::with_capacity((32 << 10) + rules.len() * 200);
        self.write_decisions(&mut exposition);
        self.write_exceeded(&mut exposition, &rules, reader);
        self.write_rules(&mut exposition, &rules);
        drop(rules);
        self.write_connections(&mut exposition);
        self.upstreams.write(&mut exposition);
        #[expect(clippy::cast_precision_loss, reason = "microseconds since 1970 fit")]
        process::write(&mut exposition, self.started_at.as_micros() as f64 / 1e6);
        exposition
    }

    fn shards(&self) -> impl Iterator<Item = &MetricShard> + Clone {
        self.shards.iter().map(|shard| &**shard)
    }

    /// The protocols that are in use, with their counts.
    fn protocols(&self) -> impl Iterator<Item = (Protocol, ProtocolCounts<'_>)> {
        let is_used = |protocol: &Protocol| self.handles[*protocol as usize].load(Ordering::Relaxed) > 0;
        let shards =
            |protocol: Protocol| self.shards.iter().skip(protocol as usize * self.cores).take(self.cores);
        Protocol::ALL
            .into_iter()
            .filter(is_used)
            .map(move |protocol| (protocol, ProtocolCounts(shards(protocol))))
    }

    fn write_decisions(&self, exposition: &mut Exposition) {
        let help = "Requests by decision; each request is counted once.";
        let mut family = exposition.counter("rate_limit_requests_total", help);
        for (protocol, counts) in self.protocols() {
            for (index, decision) in DecisionKind::ALL.into_iter().enumerate() {
                let labels = [("decision", decision.name()), ("protocol", protocol.name())];
                family.sample(&labels, counts.sum(|shard| &shard.requests[index]));
            }
        }
        let help = "Duration of decisions, including rule matching, in milliseconds.";
        let mut family = exposition.histogram("rate_limit_latency", help);
        for (protocol, counts) in self.protocols() {
            let latencies = counts.0.map(|shard| &shard.latency);
            histogram::write(&mut family, Scale::Decision, &[("protocol", protocol.name())], latencies);
        }
    }

    fn write_exceeded(&self, exposition: &mut Exposition, rules: &RuleRegistry, reader: MetricsReader) {
        let help = "Requests rejected by a rule. Up to 100 series name the most rejected clients; all others are `other`.";
        let mut family = exposition.counter("rate_limit_exceeded_total", help);
        let (top_clients, retired) = self.top_clients.report(reader);
        for top in &top_clients {
            let labels = [("client_id", top.client.as_str()), ("rule", rules.name(top.rule))];
            family.sample(&labels, top.count);
        }
        for (slot, retired) in retired.iter().filter(|(_, retired)| retired.reported > 0) {
            let client = format!("former-{}", retired.grown_at.as_micros());
            family.sample(&[("client_id", &client), ("rule", rules.name(*slot))], retired.reported);
        }
        for (slot, rule) in rules.iter() {
            let counted: u64 =
                self.shards().map(|shard| shard.rules.get(slot, |counts| &counts.exceeded)).sum();
            let count = counted + retired.get(&slot).map_or(0, |retired| retired.unreported);
            if count > 0 || rule.limit.is_some() {
                family.sample(&[("client_id", "other"), ("rule", &rule.name)], count);
            }
        }
    }

    fn write_rules(&self, exposition: &mut Exposition, rules: &RuleRegistry) {
        let help = "Requests that a rule in shadow mode would have rejected.";
        let mut family = exposition.counter("rate_limit_shadow_exceeded_total", help);
        for (slot, rule) in rules.iter() {
            let count: u64 = self.shards().map(|shard| shard.rules.get(slot, |counts| &counts.shadow)).sum();
            if count > 0 {
                family.sample(&[("rule", &rule.name)], count);
            }
        }
        self.write_actions(exposition, rules);
        let help =
            "Limit of each active rule, in units per window; without a window, in concurrent requests.";
        let mut family = exposition.gauge("rate_limit_limit", help);
        for (_, rule) in rules.iter() {
            if let Some((requests, window)) = &rule.limit {
                family.sample(&[("rule", &rule.name), ("window", window)], requests);
            }
        }
    }

    fn write_actions(&self, exposition: &mut Exposition, rules: &RuleRegistry) {
        let help = "Requests that a rule delayed, or that got an action in place of a rejection. With `mode=\"shadow\"`: those that would have.";
        let mut family = exposition.counter("rate_limit_actions_total", help);
        for (slot, rule) in rules.iter() {
            for action in ActionKind::ALL {
                let sum = |which: fn(&RuleCounts, usize) -> &Counter| -> u64 {
                    self.shards()
                        .map(|shard| shard.rules.get(slot, |counts| which(counts, action as usize)))
                        .sum()
                };
                let counts: [(&str, u64); 2] = [
                    ("enforce", sum(|counts, action| &counts.actions[action])),
                    ("shadow", sum(|counts, action| &counts.shadow_actions[action])),
                ];
                for (mode, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
                    family.sample(&[("action", action.name()), ("mode", mode), ("rule", &rule.name)], count);
                }
            }
        }
    }

    fn write_connections(&self, exposition: &mut Exposition) {
        let help =
            "Responses to clients by status class; `gone`: the client disconnected before the response.";
        let mut family = exposition.counter("tidegate_responses_total", help);
        // Replies of the Redis protocol have no status.
        for (protocol, counts) in self.protocols().filter(|(protocol, _)| *protocol != Protocol::Resp) {
            for class in 0..=GONE {
                let code = if class == GONE { "gone" } else { upstreams::class_name(class) };
                let labels = [("code", code), ("protocol", protocol.name())];
                family.sample(&labels, counts.sum(|shard| &shard.responses[class]));
            }
        }
        let mut family =
            exposition.counter("tidegate_connections_accepted_total", "Client connections accepted.");
        for (protocol, counts) in self.protocols() {
            family.sample(&[("protocol", protocol.name())], counts.sum(|shard| &shard.accepted));
        }
        let help = "Client connections closed because the connection limit was reached.";
        let mut family = exposition.counter("tidegate_connections_refused_total", help);
        for (protocol, counts) in self.protocols() {
            family.sample(&[("protocol", protocol.name())], counts.sum(|shard| &shard.rejected_connections));
        }
    }
}

impl Metrics {
    /// Writes the numbers of open connections. The gateway counts its own.
    pub fn write_open_connections(&self, exposition: &mut Exposition, gateway: usize) {
        let mut family = exposition.gauge("tidegate_connections_open", "Open client connections.");
        for (protocol, counts) in self.protocols() {
            let closed = counts.sum(|shard| &shard.closed);
            let open = match protocol {
                Protocol::Gateway => gateway as u64,
                // A connection may be closed after `closed` was read.
                _ => counts.sum(|shard| &shard.accepted).saturating_sub(closed),
            };
            family.sample(&[("protocol", protocol.name())], open);
        }
    }
}

/// The counts of all cores of a protocol.
#[derive(Clone, Debug)]
struct ProtocolCounts<'m>(std::iter::Take<std::iter::Skip<std::slice::Iter<'m, CachePadded<MetricShard>>>>);

impl ProtocolCounts<'_> {
    fn sum(&self, which: impl Fn(&MetricShard) -> &Counter) -> u64 {
        self.0.clone().map(|shard| which(shard).get()).sum()
    }
}

/// Counts for one core. No method waits; only the sample of rejections allocates memory.
#[derive(Debug)]
pub struct MetricsHandle {
    metrics: Arc<Metrics>,
    /// The index of its shard; for the gateway, also the number of the core.
    shard: usize,
}

impl MetricsHandle {
    fn shard(&self) -> &MetricShard {
        // `Metrics::handle` chose an index within the list.
        &self.metrics.shards[self.shard]
    }

    /// Counts a decision that took this long.
    pub fn record_decision(&self, decision: DecisionKind, nanos: u64) {
        let shard = self.shard();
        shard.requests[decision as usize].increment();
        shard.latency.observe(nanos);
    }

    /// Counts several decisions that took this long each.
    pub fn record_decisions(&self, decision: DecisionKind, nanos: u64, count: u64) {
        let shard = self.shard();
        shard.requests[decision as usize].add(count);
        shard.latency.observe_many(nanos, count);
    }

    /// Counts a request of `client` (the bytes of its key) that a rule rejected.
    pub fn record_rejection(&self, slots: &RuleSlots, rule: RuleId, client: &[u8], now: Timestamp) {
        let (shard, top_clients, slot) = (self.shard(), &self.metrics.top_clients, slots.of(rule));
        let hash = top_clients.hash(slot, client);
        let count = || top_clients.count(self.shard, hash);
        match count() {
            SeriesCount::Counted => return,
            SeriesCount::SeriesFree => {
                // From the first rejection on, so that clients with as many have the same count.
                let is_added = top_clients.add_if_free(hash, slot, client, now);
                if is_added && count() == SeriesCount::Counted {
                    return;
                }
            }
            SeriesCount::NoneFree => {}
        }
        shard.rules.increment(slot, |counts| &counts.exceeded);
        if let Some(weight) = shard.sampler.weight(now)
            && let Ok(mut sketch) = shard.sketch.try_lock()
        {
            sketch.add(hash, slot, client, weight);
        }
    }

    /// Counts a request that a rule would have rejected if it were enforced.
    pub fn record_shadow_rejection(&self, slots: &RuleSlots, rule: RuleId) {
        self.shard().rules.increment(slots.of(rule), |counts| &counts.shadow);
    }

    /// Counts a request that a rule delayed, or for which it had an action in place of the rejection.
    pub fn record_action(&self, slots: &RuleSlots, rule: RuleId, action: ActionKind) {
        self.shard().rules.increment(slots.of(rule), |counts| &counts.actions[action as usize]);
    }

    /// Counts a request for which a rule would have had this action if it were enforced.
    pub fn record_shadow_action(&self, slots: &RuleSlots, rule: RuleId, action: ActionKind) {
        self.shard().rules.increment(slots.of(rule), |counts| &counts.shadow_actions[action as usize]);
    }

    /// Counts a response with this status; `None` if the client disconnected before it.
    pub fn record_response(&self, status: Option<u16>) {
        self.shard().responses[status.map_or(GONE, upstreams::class)].increment();
    }

    /// Counts a client connection: accepted, or closed because the connection limit was reached.
    pub fn record_connection(&self, is_accepted: bool) {
        let shard = self.shard();
        if is_accepted { shard.accepted.increment() } else { shard.rejected_connections.increment() }
    }

    /// Counts an accepted connection that is closed now.
    pub fn record_closed_connection(&self) {
        self.shard().closed.increment();
    }

    /// Counts an attempt to get a response from an upstream, and how long it took.
    pub fn record_attempt(&self, upstream: &UpstreamCounts, result: AttemptResult, nanos: u64) {
        upstream.record_attempt(self.shard, result, nanos);
    }
}

#[cfg(test)]
mod tests;
