//! The circuit breakers of an upstream: one for each server, or one for all of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::{
    BreakerConfig, BreakerConfigError, BreakerState, BreakerStatus, CallOutcome, TimeSpan, Timestamp,
};
use tidegate_policy::{BreakerPlan, BreakerScope};
use tidegate_store::Clock;
use tidegate_tower::breaker::{BreakerOpen, BreakerPermit, CircuitBreaker};

use super::client_shares::{ClientId, FailureShares, Thresholds, WindowThreshold};

/// A client whose probe has not succeeded leaves the next one to others for this long.
const PROBE_PAUSE: TimeSpan = TimeSpan::from_secs(1);

/// The breakers of an upstream.
#[derive(Clone, Debug)]
pub(crate) enum BreakerSet {
    /// The policy has none.
    Off,
    /// One for all servers.
    Shared(UpstreamBreaker),
    /// One for each server, in their order.
    PerServer(Vec<UpstreamBreaker>),
}

/// A breaker with what it knows of clients. Clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamBreaker {
    breaker: CircuitBreaker,
    clients: Arc<BreakerClients>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Default)]
struct BreakerClients {
    shares: FailureShares,
    /// The latest probe that has not succeeded.
    latest_probe: Mutex<Option<UnsuccessfulProbe>>,
    /// The breaker has become half-open, and the log does not say so yet: the first probe may be canceled before it is sent.
    has_become_half_open: AtomicBool,
}

/// A probe without success. Until a time its client leaves others to probe.
#[derive(Clone, Copy, Debug)]
struct UnsuccessfulProbe {
    client: ClientId,
    until: Timestamp,
    /// It has not ended: its client leaves only the probes beyond the slots, which replace probes that hang.
    is_in_flight: bool,
}

impl BreakerSet {
    pub(super) fn new(
        plan: Option<&BreakerPlan>,
        servers: usize,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, BreakerConfigError> {
        let Some(BreakerPlan { config, scope }) = plan else { return Ok(Self::Off) };
        let breaker = || UpstreamBreaker::new(*config, clock);
        Ok(match scope {
            BreakerScope::Upstream => Self::Shared(breaker()?),
            BreakerScope::Server => {
                Self::PerServer((0..servers).map(|_| breaker()).collect::<Result<_, _>>()?)
            }
        })
    }

    /// Keeps the breakers of an earlier set with the same settings. `earlier_index` finds the earlier place of a server.
    pub(super) fn adopt(&mut self, earlier: &Self, earlier_index: impl Fn(usize) -> Option<usize>) {
        match (self, earlier) {
            (Self::Shared(breaker), Self::Shared(known)) => *breaker = known.clone(),
            (Self::PerServer(breakers), Self::PerServer(known)) => {
                for (index, breaker) in breakers.iter_mut().enumerate() {
                    if let Some(known) = earlier_index(index).and_then(|index| known.get(index)) {
                        *breaker = known.clone();
                    }
                }
            }
            _ => {}
        }
    }

    /// The breaker of all servers, if there is one.
    pub(crate) fn shared(&self) -> Option<&CircuitBreaker> {
        match self {
            Self::Shared(breaker) => Some(&breaker.breaker),
            Self::Off | Self::PerServer(_) => None,
        }
    }

    /// The breaker of one server, if each has one.
    pub(crate) fn of_server(&self, index: usize) -> Option<&CircuitBreaker> {
        match self {
            Self::PerServer(breakers) => breakers.get(index).map(|breaker| &breaker.breaker),
            Self::Off | Self::Shared(_) => None,
        }
    }

    /// Admits an attempt at a server. `None` without a breaker.
    #[inline]
    pub(super) fn try_acquire(
        &self,
        index: usize,
        client: ClientId,
    ) -> Result<Option<AttemptPermit<'_>>, BreakerOpen> {
        match self {
            Self::Off => Ok(None),
            Self::Shared(breaker) => breaker.try_acquire(client).map(Some),
            Self::PerServer(breakers) => {
                breakers.get(index).map(|breaker| breaker.try_acquire(client)).transpose()
            }
        }
    }
}

impl UpstreamBreaker {
    fn new(config: BreakerConfig, clock: &Arc<dyn Clock>) -> Result<Self, BreakerConfigError> {
        let breaker = CircuitBreaker::with_clock(config, Arc::clone(clock))?;
        Ok(Self { breaker, clients: Arc::default(), clock: Arc::clone(clock) })
    }

    #[inline]
    fn try_acquire(&self, client: ClientId) -> Result<AttemptPermit<'_>, BreakerOpen> {
        if self.breaker.state() != BreakerState::Closed {
            return self.try_probe(client);
        }
        let permit = self.breaker.try_acquire()?;
        Ok(AttemptPermit { permit: Some(permit), breaker: self, client })
    }

    #[cold]
    fn try_probe(&self, client: ClientId) -> Result<AttemptPermit<'_>, BreakerOpen> {
        // Before a slot is taken: a probe that is taken and given up would delay the one that replaces a probe that hangs.
        if let Some(left) = self.pause_of(client) {
            return Err(BreakerOpen { retry_after: Some(left) });
        }
        let permit = self.breaker.try_acquire()?;
        if permit.is_first_probe() {
            self.clients.has_become_half_open.store(true, Ordering::Relaxed);
        }
        if permit.is_probe() {
            // Others may probe once it hangs.
            let until = self.clock.now() + self.breaker.breaker().hung_after() + PROBE_PAUSE;
            *self.latest_probe() = Some(UnsuccessfulProbe { client, until, is_in_flight: true });
        }
        Ok(AttemptPermit { permit: Some(permit), breaker: self, client })
    }

    /// How long `client` leaves others to probe.
    fn pause_of(&self, client: ClientId) -> Option<TimeSpan> {
        let latest = (*self.latest_probe()).filter(|latest| latest.client == client)?;
        let BreakerStatus { state, open_for, probes, .. } = self.breaker.status();
        let is_due = matches!(state, BreakerState::Open | BreakerState::HalfOpen) && open_for.is_zero();
        // Others do not need a free slot, but the place of a probe that hangs.
        let has_slot = probes < self.breaker.breaker().config().probes;
        if !is_due || (latest.is_in_flight && has_slot) {
            return None;
        }
        Some(latest.until.since(self.clock.now())).filter(|left| !left.is_zero())
    }

    /// A probe of `client` has not succeeded: others get the next one, unless there are none.
    #[cold]
    fn pause(&self, client: ClientId) {
        let until = self.clock.now() + self.breaker.status().open_for + PROBE_PAUSE;
        *self.latest_probe() = Some(UnsuccessfulProbe { client, until, is_in_flight: false });
    }

    /// A probe of `client` has succeeded, or was not sent: the client may probe again.
    #[cold]
    fn forget_probe(&self, client: ClientId) {
        self.latest_probe().take_if(|latest| latest.client == client && latest.is_in_flight);
    }

    fn latest_probe(&self) -> MutexGuard<'_, Option<UnsuccessfulProbe>> {
        self.clients.latest_probe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a failure of `client` counts.
    fn counts_failure(&self, client: ClientId, has_others: bool) -> bool {
        let in_a_row = self.breaker.breaker().config().failures;
        let thresholds = Thresholds { in_a_row, window: self.window_threshold() };
        self.clients.shares.count(client, thresholds, has_others)
    }

    /// Whether a slow call of `client` counts as slow.
    #[cold]
    fn counts_slow(&self, client: ClientId, has_others: bool) -> bool {
        let thresholds = Thresholds { in_a_row: None, window: self.window_threshold() };
        self.clients.shares.count(client, thresholds, has_others)
    }

    /// The lower threshold of failures and slow calls: each makes the breaker look at both.
    fn window_threshold(&self) -> Option<WindowThreshold> {
        let breaker = self.breaker.breaker();
        let BreakerConfig { failure_rate, slow, min_calls, .. } = breaker.config();
        let rate = failure_rate.iter().copied().chain(slow.map(|slow| slow.rate)).min()?;
        Some(WindowThreshold::new(breaker.window(self.clock.now())?, rate, *min_calls))
    }
}

/// An attempt that a breaker admitted. Dropped without a result, it says nothing about the server.
#[derive(Debug)]
pub(crate) struct AttemptPermit<'u> {
    /// `None` once the result is recorded.
    permit: Option<BreakerPermit>,
    breaker: &'u UpstreamBreaker,
    client: ClientId,
}

impl AttemptPermit<'_> {
    /// Whether it probes a server that has failed.
    pub(crate) fn is_probe(&self) -> bool {
        self.permit.as_ref().is_some_and(BreakerPermit::is_probe)
    }

    /// Whether the breaker has become half-open since the last call, for one caller.
    pub(crate) fn take_half_open(&self) -> bool {
        self.breaker.clients.has_become_half_open.swap(false, Ordering::Relaxed)
    }

    /// Its duration is not due to the server alone.
    pub(crate) fn ignore_duration(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.ignore_duration();
        }
    }

    /// Its duration counts only if `is_timed`.
    pub(crate) fn timed(mut self, is_timed: bool) -> Self {
        if !is_timed {
            self.ignore_duration();
        }
        self
    }

    /// Its client may delay it as it likes. Returns whether it may go on.
    pub(crate) fn delay(&mut self) -> bool {
        self.permit.as_mut().is_none_or(BreakerPermit::delay)
    }

    /// Gives up the slot of a probe, whose result still counts.
    pub(crate) fn release_slot(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.release_slot();
        }
    }

    /// Ends it before anything was sent. The client is not at fault.
    pub(crate) fn cancel(mut self) {
        if self.is_probe() {
            self.breaker.forget_probe(self.client);
        }
        self.permit = None;
    }

    /// Records its result. Returns the new state if the breaker has changed it. `counts_fully` is whether no client can cause
    /// it, `has_others` whether requests of other clients succeed.
    pub(crate) fn record(
        mut self,
        outcome: CallOutcome,
        counts_fully: bool,
        has_others: impl Fn() -> bool,
    ) -> Option<BreakerState> {
        let permit = self.permit.take()?;
        if permit.is_probe() {
            return self.record_probe(permit, outcome, counts_fully);
        }
        let (breaker, client) = (self.breaker, self.client);
        match outcome {
            CallOutcome::Failure if !counts_fully && !breaker.counts_failure(client, has_others()) => None,
            CallOutcome::Neutral | CallOutcome::ClientError => permit.record(outcome),
            CallOutcome::Success | CallOutcome::Failure => {
                let counts_slow = || counts_fully || breaker.counts_slow(client, has_others());
                let change = permit.record_with(outcome, counts_slow);
                if outcome == CallOutcome::Success {
                    // After the breaker has ended its streak, so that no failure counts in both.
                    breaker.clients.shares.end_streak();
                }
                change
            }
        }
    }

    #[cold]
    fn record_probe(
        &self,
        permit: BreakerPermit,
        outcome: CallOutcome,
        counts_fully: bool,
    ) -> Option<BreakerState> {
        let change = permit.record(outcome);
        // A success that is slow opens the breaker again.
        let has_opened = change == Some(BreakerState::Open);
        let has_succeeded = matches!(outcome, CallOutcome::Success | CallOutcome::ClientError) && !has_opened;
        if has_succeeded || counts_fully {
            self.breaker.forget_probe(self.client);
        } else {
            self.breaker.pause(self.client);
        }
        change
    }
}

impl Drop for AttemptPermit<'_> {
    fn drop(&mut self) {
        if self.is_probe() {
            self.breaker.pause(self.client);
        }
    }
}

/// The earlier of two times until a probe; `None` is not known.
pub(super) fn earliest(left: Option<TimeSpan>, right: Option<TimeSpan>) -> Option<TimeSpan> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.min(right)),
        (known, None) | (None, known) => known,
    }
}
