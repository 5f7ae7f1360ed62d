//! What happened to one request, told once when it is over, however it ends.

use std::sync::Arc;

use tidegate_core::{RuleId, Timestamp};
use tidegate_store::{Clock, Reading};

use crate::metrics::{Decided, Meter, Metrics, RuleSlots, Try, UpstreamCounts};

/// Where stories go: one for the whole process.
#[derive(Clone, Debug)]
pub struct Telemetry {
    metrics: Arc<Metrics>,
    is_on: bool,
}

impl Telemetry {
    /// Counts into `metrics`.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, is_on: true }
    }

    /// Tells nothing to anybody, to measure what telling costs.
    pub fn off() -> Self {
        Self { metrics: Metrics::new(1, Timestamp::ZERO), is_on: false }
    }

    /// What is counted.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Who tells the stories of one core.
    pub fn teller(&self, clock: Arc<dyn Clock>) -> Teller {
        Teller { meter: self.is_on.then(|| self.metrics.meter()), clock }
    }
}

/// Tells the stories of one core.
#[derive(Debug)]
pub struct Teller {
    meter: Option<Meter>,
    clock: Arc<dyn Clock>,
}

impl Teller {
    /// A request has come.
    pub fn begin(&self) -> Story<'_> {
        Story { teller: self, began: None, decided: None, status: None }
    }

    /// A connection was let in, or found no room.
    pub fn connected(&self, is_let_in: bool) {
        if let Some(meter) = &self.meter {
            meter.connected(is_let_in);
        }
    }
}

/// The story of a request. Dropping it tells it: who hangs up is told of too.
#[derive(Debug)]
pub struct Story<'t> {
    teller: &'t Teller,
    began: Option<Reading>,
    /// What was decided, after how many nanoseconds.
    decided: Option<(Decided, u64)>,
    status: Option<u16>,
}

impl<'t> Story<'t> {
    /// The decision begins; the one instant it is taken at.
    pub fn deciding(&mut self) -> Timestamp {
        let now = self.teller.clock.read();
        self.began = Some(now);
        now.at
    }

    /// The decision was taken.
    pub fn decided(&mut self, decided: Decided) {
        let nanos = match (&self.teller.meter, self.began) {
            (Some(_), Some(began)) => self.teller.clock.read().nanos_since(began),
            _ => 0,
        };
        self.decided = Some((decided, nanos));
    }

    /// A rule refuses the request of `client` (the bytes of its key).
    pub fn refused(&mut self, slots: &RuleSlots, rule: RuleId, client: &[u8]) {
        if let (Some(meter), Some(began)) = (&self.teller.meter, self.began) {
            meter.refused(slots, rule, client, began.at);
        }
    }

    /// A rule that only watches would have refused it.
    pub fn would_refuse(&mut self, slots: &RuleSlots, rule: RuleId) {
        if let Some(meter) = &self.teller.meter {
            meter.would_refuse(slots, rule);
        }
    }

    /// An upstream is asked. Whoever does not say how that ended has abandoned it.
    pub fn trying<'u>(&self, upstream: &'u UpstreamCounts) -> Trial<'u>
    where
        't: 'u,
    {
        let began = self.teller.meter.is_some().then(|| self.teller.clock.read());
        Trial { teller: self.teller, upstream, began }
    }

    /// The client is answered with this status.
    pub fn answered(&mut self, status: u16) {
        self.status = Some(status);
    }
}

impl Drop for Story<'_> {
    fn drop(&mut self) {
        let Some(meter) = &self.teller.meter else { return };
        if let Some((decided, nanos)) = self.decided {
            meter.decided(decided, nanos);
        }
        meter.responded(self.status);
    }
}

/// One try to get an answer from an upstream.
#[derive(Debug)]
pub struct Trial<'u> {
    teller: &'u Teller,
    upstream: &'u UpstreamCounts,
    /// None once its end was told.
    began: Option<Reading>,
}

impl Trial<'_> {
    /// This came of it.
    pub fn ended(mut self, result: Try) {
        self.tell(result);
    }

    fn tell(&mut self, result: Try) {
        if let (Some(meter), Some(began)) = (&self.teller.meter, self.began.take()) {
            meter.tried(self.upstream, result, self.teller.clock.read().nanos_since(began));
        }
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.tell(Try::Abandoned);
    }
}
