//! Replays logged decisions on the algorithm itself.

use std::collections::HashMap;
use std::fmt;

use tidegate_core::{Coordination, Cost, CounterState, Limit, Timestamp};

use super::node::SYNC_INTERVAL;
use super::record::Record;
use super::{NODES, REQUESTS, SATURATED, UTILISATION, WINDOW};

/// What the replay found.
#[derive(Debug, Default)]
pub(super) struct Replay {
    decisions: u64,
    admitted: u64,
    /// Admitted requests that the ideal limiter, fed with the admitted ones, rejects.
    excess: u64,
    /// The largest excess of a client in one window, and what the mode's bound allows there.
    worst: u64,
    bound: u64,
    /// Admitted requests of saturated clients, and how many the ideal limiter admits of their attempts.
    saturated: u64,
    ideal: u64,
}

impl Replay {
    pub(super) fn of(mut records: Vec<Record>, limit: &Limit) -> Self {
        records.sort_unstable();
        let mut by_client: HashMap<u32, Vec<Record>> = HashMap::new();
        for record in &records {
            by_client.entry(record.client).or_default().push(*record);
        }
        let mut replay = Self { decisions: records.len() as u64, ..Self::default() };
        for attempts in by_client.values() {
            replay.add_client(attempts, limit);
        }
        replay
    }

    fn add_client(&mut self, attempts: &[Record], limit: &Limit) {
        let mut excess_by_window: HashMap<u64, u64> = HashMap::new();
        let mut state = CounterState::default();
        for record in attempts.iter().filter(|record| record.admitted) {
            self.admitted += 1;
            let at = Timestamp::from_micros(record.at);
            if !limit.step(&mut state, at, Cost::ONE).verdict.is_pass() {
                self.excess += 1;
                *excess_by_window.entry(record.at / WINDOW.as_micros()).or_default() += 1;
            }
        }
        let worst = excess_by_window.values().copied().max().unwrap_or_default();
        if worst > self.worst {
            (self.worst, self.bound) = (worst, (NODES - 1) * largest_per_interval(attempts));
        }
        let (Some(first), Some(last)) = (attempts.first(), attempts.last()) else { return };
        let windows = (last.at - first.at) / WINDOW.as_micros() + 1;
        if attempts.len() as u64 >= SATURATED * REQUESTS * windows {
            let mut state = CounterState::default();
            for record in attempts {
                let passes =
                    limit.step(&mut state, Timestamp::from_micros(record.at), Cost::ONE).verdict.is_pass();
                self.ideal += u64::from(passes);
                self.saturated += u64::from(record.admitted);
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn utilisation(&self) -> f64 {
        self.saturated as f64 / self.ideal as f64
    }

    pub(super) fn is_within_the_bar(&self, coordination: Coordination) -> bool {
        match coordination {
            Coordination::Sync => self.worst <= self.bound,
            _ => self.excess == 0 && self.utilisation() >= UTILISATION,
        }
    }
}

/// The most units that one node admitted to the client in one sync interval.
fn largest_per_interval(attempts: &[Record]) -> u64 {
    let interval = u64::try_from(SYNC_INTERVAL.as_micros()).unwrap_or(u64::MAX);
    let mut counts: HashMap<(u8, u64), u64> = HashMap::new();
    for record in attempts.iter().filter(|record| record.admitted) {
        *counts.entry((record.node, record.at / interval)).or_default() += 1;
    }
    // An exchange is not aligned to the clock: its interval covers parts of two.
    2 * counts.values().copied().max().unwrap_or_default()
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { decisions, admitted, excess, worst, bound, .. } = self;
        write!(f, "{decisions} decisions, {admitted} admitted, excess {excess}")?;
        if *worst > 0 {
            write!(f, " (at most {worst} in a window, bound {bound})")?;
        }
        write!(f, ", utilisation {:.2} %", self.utilisation() * 100.0)
    }
}
