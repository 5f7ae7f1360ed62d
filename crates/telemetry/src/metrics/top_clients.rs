//! The clients that are rejected most have series of their own; all other clients share the series `other`.
//!
//! Every rejection is counted exactly once: in the series of its client, or in `other` of its rule. Cores look the client
//! up in a small table and count in counters of their own; the table is replaced as a whole. Each scrape decides anew
//! which clients are in the table, from the rejections that the cores have sampled (`sketch`). While there are free
//! series, a client gets one at once.
//!
//! Three invariants hold over any number of scrapes:
//!
//! 1. No series decreases while it is reported, and the sum of all series never decreases.
//! 2. The results of Prometheus' `rate` add up to the number of rejections. Prometheus takes the first value of a
//!    series as its start, so the first value that a scraper sees is zero; the next scrape reports the whole count.
//! 3. Retiring a client loses no count. Its reported count must stay in the sum and must not look like growth: it
//!    moves to `former-…`, a series that gets a new name whenever it grows. Its unreported count moves to `other`.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_policy::ClientName;
use tidegate_store::WeightedItem;

use super::counter::{Counter, per_core};
use super::rules::RuleSlot;
use super::sketch::{TopCandidate, merge, rejections};

/// Most clients with a series of their own.
pub(crate) const MAX_SERIES: usize = 100;
/// Slots of the lookup table. Most are empty, so a lookup usually takes one step.
const TABLE_SLOTS: usize = 512;
/// A candidate replaces a client only with this many rejections more than twice those of the client.
const MIN_REJECTIONS: u64 = 10;
/// A client without rejections for this long is retired.
const EXPIRY: TimeSpan = TimeSpan::from_secs(2 * 60 * 60);

/// The kind of program that reads the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsReader {
    /// A scraper such as Prometheus: it compares each value with the one before.
    Scraper,
    /// A single look, for example with curl.
    OneShot,
}

/// A client with a series of its own, and its counters: one for each core.
#[derive(Debug)]
struct TopClient {
    rule: RuleSlot,
    name: String,
    counters: Box<[CachePadded<Counter>]>,
}

impl TopClient {
    fn total(&self) -> u64 {
        self.counters.iter().map(|counter| counter.get()).sum()
    }
}

/// Whether a rejection was counted in the series of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeriesCount {
    Counted,
    /// The client has no series and may get one.
    SeriesFree,
    /// All series are in use.
    NoneFree,
}

type TableSlot = Option<(u64, Arc<TopClient>)>;

/// Clients by hash, with open addressing.
#[derive(Debug)]
struct TopClientTable {
    slots: Box<[TableSlot]>,
    count: usize,
}

impl TopClientTable {
    fn new<'c>(clients: impl Iterator<Item = (u64, &'c Arc<TopClient>)>) -> Self {
        let mut slots: Box<[_]> = (0..TABLE_SLOTS).map(|_| None).collect();
        let mut count = 0;
        for (hash, client) in clients {
            let free = probe(hash).find(|index| slots.get(*index).is_some_and(Option::is_none));
            if let Some(slot) = free.and_then(|index| slots.get_mut(index)) {
                *slot = Some((hash, Arc::clone(client)));
                count += 1;
            }
        }
        Self { slots, count }
    }

    fn find(&self, hash: u64) -> Option<&TopClient> {
        for index in probe(hash) {
            match self.slots.get(index)? {
                Some((known, client)) if *known == hash => return Some(client),
                Some(_) => {}
                None => return None,
            }
        }
        None
    }
}

/// The slots to look at for a hash, in order.
fn probe(hash: u64) -> impl Iterator<Item = usize> {
    let home = usize::try_from(hash >> 32).unwrap_or_default();
    (0..TABLE_SLOTS).map(move |step| home.wrapping_add(step) % TABLE_SLOTS)
}

/// All clients with a series of their own.
#[derive(Debug)]
pub(crate) struct TopClients {
    table: ArcSwap<TopClientTable>,
    /// Cores only use `try_lock`, so they never wait for a scrape.
    series: Mutex<SeriesList>,
    seed: foldhash::quality::RandomState,
    cores: usize,
}

#[derive(Debug, Default)]
struct SeriesList {
    active: Vec<ClientSeries>,
    /// Retired clients that a core may still count for, each with the total that was collected so far.
    draining: Vec<(Arc<TopClient>, u64)>,
    /// The counts of retired clients by rule.
    retired: BTreeMap<RuleSlot, RetiredCounts>,
    /// Whether a scraper has read the metrics before.
    was_scraped: bool,
}

#[derive(Debug)]
struct ClientSeries {
    hash: u64,
    client: Arc<TopClient>,
    /// The value that the last scrape reported; `None` before the first one.
    reported: Option<u64>,
    /// The total at the last update, and the time of the last update that found a higher total.
    last_total: u64,
    last_growth: Timestamp,
}

/// The counts of the retired clients of one rule.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetiredCounts {
    /// Never reported in a client's series: part of `other`.
    pub(crate) unreported: u64,
    /// Reported before.
    pub(crate) reported: u64,
    /// When `reported` last grew; part of the series' name.
    pub(crate) grown_at: Timestamp,
}

/// The value of one client's series.
#[derive(Debug)]
pub(crate) struct ClientRejections {
    pub(crate) rule: RuleSlot,
    pub(crate) client: String,
    pub(crate) count: u64,
}

impl TopClients {
    pub(crate) fn new(cores: usize) -> Self {
        Self {
            table: ArcSwap::from_pointee(TopClientTable::new(std::iter::empty())),
            series: Mutex::default(),
            seed: foldhash::quality::RandomState::default(),
            cores,
        }
    }

    /// Identifies a client under a rule.
    pub(crate) fn hash(&self, rule: RuleSlot, client: &[u8]) -> u64 {
        self.seed.hash_one((rule, client))
    }

    /// Counts a rejection if the client has a series.
    pub(crate) fn count(&self, core: usize, hash: u64) -> SeriesCount {
        let table = self.table.load();
        match table.find(hash).and_then(|client| client.counters.get(core % self.cores.max(1))) {
            Some(counter) => {
                counter.increment();
                SeriesCount::Counted
            }
            None if table.count < MAX_SERIES => SeriesCount::SeriesFree,
            None => SeriesCount::NoneFree,
        }
    }

    /// Gives a client a series if one is free and the list is not locked. Returns whether it got one.
    pub(crate) fn add_if_free(&self, hash: u64, rule: RuleSlot, client: &[u8], now: Timestamp) -> bool {
        let Ok(mut series) = self.series.try_lock() else { return false };
        let is_added = series.active.len() < MAX_SERIES && series.add(hash, self.client(rule, client), now);
        if is_added {
            self.publish(&series);
        }
        is_added
    }

    /// Decides which clients have a series: retires idle clients, and replaces clients by heavier `candidates`.
    pub(crate) fn update(
        &self,
        candidates: impl Iterator<Item = WeightedItem<TopCandidate>>,
        now: Timestamp,
    ) {
        let mut list = self.lock();
        list.collect_late_counts();
        let mut growth: Vec<u64> = Vec::new();
        for series in &mut list.active {
            let total = series.client.total();
            growth.push(total - series.last_total);
            if total > series.last_total {
                series.last_growth = now;
            }
            series.last_total = total;
        }
        for index in (0..list.active.len()).rev() {
            if list.active[index].last_growth + EXPIRY < now {
                list.retire(index, now);
                growth.remove(index);
            }
        }
        for candidate in merge(candidates) {
            let rejections = rejections(&candidate);
            if rejections == 0 {
                break;
            }
            if list.active.len() >= MAX_SERIES {
                let least = growth.iter().copied().enumerate().min_by_key(|(_, growth)| *growth);
                let Some((index, least)) = least else { break };
                if rejections < MIN_REJECTIONS + 2 * least {
                    break;
                }
                list.retire(index, now);
                growth.remove(index);
            }
            let TopCandidate { hash, rule, client, .. } = &candidate.item;
            if list.add(*hash, self.client(*rule, client), now) {
                growth.push(rejections);
            }
        }
        self.publish(&list);
    }

    /// The values of all clients' series, and the counts of retired clients.
    pub(crate) fn report(
        &self,
        reader: MetricsReader,
    ) -> (Vec<ClientRejections>, BTreeMap<RuleSlot, RetiredCounts>) {
        let mut list = self.lock();
        list.collect_late_counts();
        let is_first = reader == MetricsReader::Scraper && !std::mem::replace(&mut list.was_scraped, true);
        let mut report = Vec::with_capacity(list.active.len());
        for series in &mut list.active {
            let total = series.client.total();
            let count = match (reader, series.reported) {
                // At the very first scrape all series are new to the scraper, so none needs to start at zero.
                (MetricsReader::Scraper, None) if !is_first => 0,
                _ => total,
            };
            if reader == MetricsReader::Scraper {
                series.reported = Some(count);
            }
            let TopClient { rule, name, .. } = &*series.client;
            report.push(ClientRejections { rule: *rule, client: name.clone(), count });
        }
        (report, list.retired.clone())
    }

    fn client(&self, rule: RuleSlot, key: &[u8]) -> Arc<TopClient> {
        let (name, counters) = (ClientName::from_key(key).to_string(), per_core(self.cores));
        Arc::new(TopClient { rule, name, counters })
    }

    fn publish(&self, list: &SeriesList) {
        let clients = list.active.iter().map(|series| (series.hash, &series.client));
        self.table.store(Arc::new(TopClientTable::new(clients)));
    }

    fn lock(&self) -> MutexGuard<'_, SeriesList> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SeriesList {
    /// Adds a series unless one with the same hash or labels exists: Prometheus rejects duplicate series. Returns
    /// whether it was added.
    fn add(&mut self, hash: u64, client: Arc<TopClient>, now: Timestamp) -> bool {
        let is_known = self.active.iter().any(|series| {
            series.hash == hash || (series.client.rule, &series.client.name) == (client.rule, &client.name)
        });
        if !is_known {
            self.active.push(ClientSeries { hash, client, reported: None, last_total: 0, last_growth: now });
        }
        !is_known
    }

    fn retire(&mut self, index: usize, now: Timestamp) {
        let ClientSeries { client, reported, .. } = self.active.remove(index);
        let (total, reported) = (client.total(), reported.unwrap_or_default());
        let retired = self.retired.entry(client.rule).or_default();
        retired.unreported += total - reported;
        retired.reported += reported;
        if reported > 0 {
            retired.grown_at = now;
        }
        self.draining.push((client, total));
    }

    /// Collects what cores have counted with an old table, and drops the clients that no core can count for any more.
    fn collect_late_counts(&mut self) {
        let Self { draining, retired, .. } = self;
        draining.retain_mut(|(client, collected)| {
            // Read before the total: a core that counts after this line still has a reference.
            let is_referenced = Arc::strong_count(client) > 1;
            let total = client.total();
            retired.entry(client.rule).or_default().unreported += total - *collected;
            *collected = total;
            is_referenced
        });
    }
}
