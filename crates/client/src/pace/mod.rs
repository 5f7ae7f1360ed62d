//! Slows requests down before the server rejects them.
//!
//! [`PaceState`] decides when a request may be sent. [`Pacer`] makes requests wait for it: those under the same limits wait
//! in one queue, first in, first out, and only the first of them asks the state again when it changes. A request that is
//! dropped while it waits has charged nothing.

mod policy_pace;
mod state;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::{TimeSpan, Timestamp};
use tidegate_headers::{AdvertisedLimits, RejectionBody};
use tidegate_store::Clock;
use tokio::sync::Notify;

pub(crate) use self::policy_pace::with_jitter;
use self::state::{PaceDelay, PaceState, PaceTicket, ResponseLimits, without_ids};
use crate::table::Forgettable;

/// Queues without a waiting request are removed when there are more than this.
const MAX_IDLE_QUEUES: usize = 16;

/// The pace of one host, or of one partition of it, shared by all requests to it.
#[derive(Debug)]
pub(crate) struct Pacer {
    clock: Arc<dyn Clock>,
    state: Mutex<PaceState>,
    /// Notified when a request has ended.
    changed: Notify,
    /// One queue for each set of limits.
    queues: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<()>>>>,
}

/// A request that may be sent now. Dropping it ends the request without a response; what it was charged is returned
/// unless it was [sent](Self::mark_sent).
#[derive(Debug)]
pub(crate) struct PacePermit {
    pacer: Arc<Pacer>,
    path: Box<str>,
    ticket: Option<PaceTicket>,
    /// Until when the request could have waited.
    latest: Timestamp,
    is_sent: bool,
}

/// The request would have to wait for longer than it may.
#[derive(Debug)]
pub(crate) struct PaceTooSlow {
    pub(crate) policy: Option<String>,
    pub(crate) limit: Option<u64>,
    /// How long it would have to wait at least, if that is known.
    pub(crate) retry_after: Option<TimeSpan>,
}

impl Pacer {
    /// A reset up to `max_wait` is always believed.
    pub(crate) fn new(clock: Arc<dyn Clock>, max_wait: TimeSpan) -> Self {
        let state = Mutex::new(PaceState::new(max_wait));
        Self { clock, state, changed: Notify::new(), queues: Mutex::default() }
    }

    /// Waits until a request to `path` may be sent, and subtracts the wait from `left`. A wait that ends after `deadline` or
    /// is longer than what is `left` fails at once.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        path: &str,
        deadline: Option<Timestamp>,
        left: &mut TimeSpan,
    ) -> Result<PacePermit, PaceTooSlow> {
        let path = &*without_ids(path);
        let start = self.clock.now();
        let latest = (start + *left).min(deadline.unwrap_or(Timestamp::MAX));
        self.check(path, |delay| delay.is_required && delay.until >= latest)?;
        let queue = self.queue(path);
        let turn = tokio::time::timeout(latest.since(start).into(), queue.lock()).await;
        // Without a turn, only a request that need not wait is sent.
        if turn.is_err() {
            self.check(path, |_| true)?;
        }
        loop {
            let mut changed = pin!(self.changed.notified());
            // Changes from here on are noticed.
            changed.as_mut().enable();
            let now = self.clock.now();
            let wait = match self.try_charge(path, now, latest)? {
                Ok(permit) => {
                    *left =
                        TimeSpan::from_micros(left.as_micros().saturating_sub(now.since(start).as_micros()));
                    return Ok(permit);
                }
                Err(delay) => Duration::from(delay.until.since(now)),
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = changed => {}
            }
        }
    }

    /// The permit, or the delay to wait for.
    fn try_charge(
        self: &Arc<Self>,
        path: &str,
        now: Timestamp,
        latest: Timestamp,
    ) -> Result<Result<PacePermit, PaceDelay>, PaceTooSlow> {
        let mut state = self.state();
        match state.delay(path, now) {
            Some(delay) if delay.until < latest => Ok(Err(delay)),
            Some(delay) if delay.is_required => Err(PaceTooSlow::new(delay, now)),
            // The server would admit the request; only the pace would delay it for too long.
            _ => {
                let ticket = Some(state.charge(path, now));
                let pacer = Arc::clone(self);
                Ok(Ok(PacePermit { pacer, path: path.into(), ticket, latest, is_sent: false }))
            }
        }
    }

    /// Fails if a request to `path` has to wait now, and the wait is too slow.
    fn check(&self, path: &str, is_too_slow: impl FnOnce(&PaceDelay) -> bool) -> Result<(), PaceTooSlow> {
        let now = self.clock.now();
        let delay = self.state().delay(path, now).filter(is_too_slow);
        delay.map_or(Ok(()), |delay| Err(PaceTooSlow::new(delay, now)))
    }

    fn queue(&self, path: &str) -> Arc<tokio::sync::Mutex<()>> {
        let policies = self.state().policies_of(path);
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() > MAX_IDLE_QUEUES {
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        }
        Arc::clone(queues.entry(policies).or_default())
    }

    fn state(&self) -> MutexGuard<'_, PaceState> {
        // The state is valid after every step of its methods.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Forgettable for Pacer {
    fn is_blocked(&self, now: Timestamp) -> bool {
        self.state().is_blocked(now)
    }
}

impl PaceTooSlow {
    fn new(delay: PaceDelay, now: Timestamp) -> Self {
        let PaceDelay { until, policy, limit, .. } = delay;
        Self { policy, limit, retry_after: Some(until.since(now)) }
    }
}

impl PacePermit {
    /// Reports the response to the request, and its body if it is a rejection.
    pub(crate) fn observe(mut self, limits: &AdvertisedLimits, rejection: Option<&RejectionBody>) {
        if let Some(ticket) = self.ticket.take() {
            let (now, random) = (self.pacer.clock.now(), fastrand::u64(..));
            let response = ResponseLimits { limits, rejection, now, random };
            self.pacer.state().observe(&ticket, &self.path, response);
            self.pacer.changed.notify_waiters();
        }
    }

    /// Asks the pace again after another wait: a rejection may have arrived meanwhile. Returns whether the request may still
    /// be sent now; otherwise, it has charged nothing. Its place in the order of sending is that of now.
    pub(crate) fn renew(&mut self) -> bool {
        let Some(ticket) = self.ticket.take() else { return false };
        let now = self.pacer.clock.now();
        self.ticket = self.pacer.state().renew(&ticket, &self.path, now, self.latest);
        if self.ticket.is_none() {
            self.pacer.changed.notify_waiters();
        }
        self.ticket.is_some()
    }

    /// The server may get the request from now on.
    pub(crate) fn mark_sent(&mut self) {
        self.is_sent = true;
    }

    /// Reports that nothing was sent to the server after all.
    pub(crate) fn cancel_unsent(mut self) {
        self.is_sent = false;
    }
}

impl Drop for PacePermit {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.pacer.state().end(&ticket, !self.is_sent);
            self.pacer.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
