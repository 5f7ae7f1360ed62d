//! The clients that are refused most have series of their own; the rest is counted together.
//!
//! Every refusal is counted exactly once: in the series of its client if that has one, else in `other` of its rule.
//! Cores look their client up in a small table that is swapped whole and count in cells of their own; who is in the
//! table is decided when somebody scrapes, from what the cores have sampled (`sketch`). As long as there is room a
//! client gets its series at once.
//!
//! Three laws hold over any number of scrapes, and together they are why this is more than a table:
//!
//! 1. No series ever goes down while it is shown, and the sum of all never does.
//! 2. What Prometheus computes with `rate` adds up to what was refused: nothing twice, nothing left out. Prometheus
//!    takes the first value of a series for its start. So a series begins at zero for a reader that remembers, whatever
//!    was counted meanwhile; the next scrape shows it all.
//! 3. A client that leaves takes nothing along. What its series has shown must stay in the sum, and must not appear as
//!    growth: it goes to `former-…`, a series that gets a new name whenever it grows. What it has not shown yet goes to
//!    `other`.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_policy::ClientName;
use tidegate_store::WeightedItem;

use super::counter::{Counter, for_each_core};
use super::rules::RuleSlot;
use super::sketch::{Candidate, merge, refused};

/// Clients with a series of their own.
pub(crate) const MOST: usize = 100;
/// Places in the table that cores look into: mostly empty, so that a look is one step.
const PLACES: usize = 512;
/// Refusals that a newcomer must have to take another's place, beside twice those of the other.
const WORTH: u64 = 10;
/// A client that was not refused for so long is no offender any more.
const FORGIVEN: TimeSpan = TimeSpan::from_secs(2 * 60 * 60);

/// Who reads the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsReader {
    /// Somebody who compares what it reads with what it read before, as Prometheus does.
    Scraper,
    /// Somebody who looks once.
    Person,
}

/// A client with a series of its own.
#[derive(Debug)]
struct Offender {
    rule: RuleSlot,
    name: String,
    cells: Box<[CachePadded<Counter>]>,
}

impl Offender {
    fn total(&self) -> u64 {
        self.cells.iter().map(|cell| cell.get()).sum()
    }
}

type OffenderSlot = Option<(u64, Arc<Offender>)>;

/// Offenders by hash, with open addressing.
#[derive(Debug)]
struct OffenderTable {
    places: Box<[OffenderSlot]>,
    count: usize,
}

impl OffenderTable {
    fn of<'o>(offenders: impl Iterator<Item = (u64, &'o Arc<Offender>)>) -> Self {
        let mut places: Box<[_]> = (0..PLACES).map(|_| None).collect();
        let mut count = 0;
        for (hash, offender) in offenders {
            let free = walk(hash).find(|at| places.get(*at).is_some_and(Option::is_none));
            if let Some(place) = free.and_then(|at| places.get_mut(at)) {
                *place = Some((hash, Arc::clone(offender)));
                count += 1;
            }
        }
        Self { places, count }
    }

    fn find(&self, hash: u64) -> Option<&Offender> {
        for at in walk(hash) {
            match self.places.get(at)? {
                Some((known, offender)) if *known == hash => return Some(offender),
                Some(_) => {}
                None => return None,
            }
        }
        None
    }
}

/// Where a hash may stand.
fn walk(hash: u64) -> impl Iterator<Item = usize> {
    let home = usize::try_from(hash >> 32).unwrap_or_default();
    (0..PLACES).map(move |step| home.wrapping_add(step) % PLACES)
}

/// All offenders.
#[derive(Debug)]
pub(crate) struct Offenders {
    table: ArcSwap<OffenderTable>,
    /// Who has a series. Cores only ever try to get it.
    naming: Mutex<Naming>,
    seed: foldhash::quality::RandomState,
    cores: usize,
}

#[derive(Debug, Default)]
struct Naming {
    series: Vec<Series>,
    /// Those who have left, until no core can count for them any more, and what was taken over from them.
    leaving: Vec<(Arc<Offender>, u64)>,
    /// By rule, what those who have left leave behind.
    left: BTreeMap<RuleSlot, Departed>,
    /// Whether somebody who remembers has ever looked.
    is_watched: bool,
}

#[derive(Debug)]
struct Series {
    hash: u64,
    offender: Arc<Offender>,
    /// What was last shown to somebody who remembers; `None` if nothing was.
    shown: Option<u64>,
    /// What it was when offenders were last compared, and when it last grew.
    compared: u64,
    grew: Timestamp,
}

/// What is left of those who are gone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Departed {
    /// Not shown yet: part of `other`.
    pub(crate) unseen: u64,
    /// Shown before.
    pub(crate) seen: u64,
    /// When `seen` last grew; part of its name.
    pub(crate) since: Timestamp,
}

/// One line of what is told: a rule, a client, how often.
#[derive(Debug)]
pub(crate) struct Refusals {
    pub(crate) rule: RuleSlot,
    pub(crate) client: String,
    pub(crate) count: u64,
}

impl Offenders {
    pub(crate) fn new(cores: usize) -> Self {
        Self {
            table: ArcSwap::from_pointee(OffenderTable::of(std::iter::empty())),
            naming: Mutex::default(),
            seed: foldhash::quality::RandomState::default(),
            cores,
        }
    }

    /// What a client's refusals by a rule are known by.
    pub(crate) fn hash(&self, rule: RuleSlot, client: &[u8]) -> u64 {
        self.seed.hash_one((rule, client))
    }

    /// Counts a refusal, if its client has a series.
    pub(crate) fn count(&self, core: usize, hash: u64) -> bool {
        let table = self.table.load();
        let cell = table.find(hash).and_then(|offender| offender.cells.get(core % self.cores.max(1)));
        cell.inspect(|cell| cell.one()).is_some()
    }

    /// Gives a client a series, if there is room and nobody is just deciding about it.
    pub(crate) fn name_if_free(&self, hash: u64, rule: RuleSlot, client: &[u8], now: Timestamp) -> bool {
        if self.table.load().count >= MOST {
            return false;
        }
        let Ok(mut naming) = self.naming.try_lock() else { return false };
        let is_named = naming.series.len() < MOST && naming.name(hash, self.offender(rule, client), now);
        if is_named {
            self.publish(&naming);
        }
        is_named
    }

    /// Decides anew who has a series. The heaviest of `candidates` take the places of those who cause less.
    pub(crate) fn compare(&self, candidates: impl Iterator<Item = WeightedItem<Candidate>>, now: Timestamp) {
        let mut naming = self.naming();
        naming.settle();
        let mut activity: Vec<u64> = Vec::new();
        for series in &mut naming.series {
            let total = series.offender.total();
            activity.push(total - series.compared);
            if total > series.compared {
                series.grew = now;
            }
            series.compared = total;
        }
        let before = naming.series.len();
        for at in (0..before).rev() {
            if naming.series[at].grew + FORGIVEN < now {
                naming.retire(at, now);
                activity.remove(at);
            }
        }
        for candidate in merge(candidates) {
            let refused = refused(&candidate);
            if refused == 0 {
                break;
            }
            if naming.series.len() >= MOST {
                let least = activity.iter().copied().enumerate().min_by_key(|(_, activity)| *activity);
                let Some((at, least)) = least else { break };
                if refused < WORTH + 2 * least {
                    break;
                }
                naming.retire(at, now);
                activity.remove(at);
            }
            let Candidate { hash, rule, client, .. } = &candidate.item;
            if naming.name(*hash, self.offender(*rule, client), now) {
                activity.push(refused);
            }
        }
        self.publish(&naming);
    }

    /// Everything that is shown of clients: the series of offenders, and what is left of former ones.
    pub(crate) fn show(&self, reader: MetricsReader) -> (Vec<Refusals>, BTreeMap<RuleSlot, Departed>) {
        let mut naming = self.naming();
        naming.settle();
        let is_first = reader == MetricsReader::Scraper && !std::mem::replace(&mut naming.is_watched, true);
        let mut told = Vec::with_capacity(naming.series.len());
        for series in &mut naming.series {
            let total = series.offender.total();
            let count = match (reader, series.shown) {
                // Before anybody has looked every series is as new as all others.
                (MetricsReader::Scraper, None) if !is_first => 0,
                _ => total,
            };
            if reader == MetricsReader::Scraper {
                series.shown = Some(count);
            }
            let Offender { rule, name, .. } = &*series.offender;
            told.push(Refusals { rule: *rule, client: name.clone(), count });
        }
        (told, naming.left.clone())
    }

    fn offender(&self, rule: RuleSlot, client: &[u8]) -> Arc<Offender> {
        let (name, cells) = (ClientName::from_key(client).to_string(), for_each_core(self.cores));
        Arc::new(Offender { rule, name, cells })
    }

    fn publish(&self, naming: &Naming) {
        let offenders = naming.series.iter().map(|series| (series.hash, &series.offender));
        self.table.store(Arc::new(OffenderTable::of(offenders)));
    }

    fn naming(&self) -> MutexGuard<'_, Naming> {
        self.naming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Naming {
    /// Two clients that are shown alike would be one series twice, which no reader takes.
    fn name(&mut self, hash: u64, offender: Arc<Offender>, now: Timestamp) -> bool {
        let is_known = self.series.iter().any(|series| {
            series.hash == hash
                || (series.offender.rule, &series.offender.name) == (offender.rule, &offender.name)
        });
        if !is_known {
            self.series.push(Series { hash, offender, shown: None, compared: 0, grew: now });
        }
        !is_known
    }

    fn retire(&mut self, at: usize, now: Timestamp) {
        let Series { offender, shown, .. } = self.series.remove(at);
        let (total, shown) = (offender.total(), shown.unwrap_or_default());
        let left = self.left.entry(offender.rule).or_default();
        left.unseen += total - shown;
        left.seen += shown;
        if shown > 0 {
            left.since = now;
        }
        self.leaving.push((offender, total));
    }

    /// Takes over what cores have counted with an old table, and forgets those for whom nobody can count any more.
    fn settle(&mut self) {
        let Self { leaving, left, .. } = self;
        leaving.retain_mut(|(offender, taken)| {
            // Before the total: who counts afterwards still holds a table.
            let is_held = Arc::strong_count(offender) > 1;
            let total = offender.total();
            left.entry(offender.rule).or_default().unseen += total - *taken;
            *taken = total;
            is_held
        });
    }
}
