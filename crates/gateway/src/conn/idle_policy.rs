//! Decides at every tick of the watchdog whether a connection is kept, parked or closed.

use std::time::Duration;

use super::activity::Activity;
use super::idle_watchdog::IdleAction;
use crate::resource_limits::ResourceLimits;

/// The timeouts of connections, in ticks of the watchdog.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdleTimeouts {
    head: u32,
    idle: u32,
    pub(super) reader: ReaderRate,
}

/// The minimum rate at which a client must read blocked output.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReaderRate {
    pub(super) bytes: u64,
    pub(super) ticks: u32,
}

impl IdleTimeouts {
    pub(super) fn new(limits: &ResourceLimits) -> Self {
        let tick = limits.tick().as_nanos();
        let ticks = |timeout: Duration| u32::try_from(timeout.as_nanos().div_ceil(tick)).unwrap_or(u32::MAX);
        Self {
            head: ticks(limits.head_timeout),
            idle: ticks(limits.idle_timeout),
            reader: ReaderRate { bytes: limits.reader_bytes, ticks: ticks(limits.reader_window) },
        }
    }
}

/// The idle state of a connection, updated at each tick.
#[derive(Debug, Default)]
pub(super) struct IdlePolicy {
    /// Whether the connection has lived through a whole tick.
    has_ticked: bool,
    /// Consecutive ticks without traffic.
    quiet_ticks: u32,
    /// Consecutive ticks without a request.
    requestless_ticks: u32,
    /// Consecutive ticks that saw a head being read.
    head_ticks: u32,
    reader: SlowReader,
}

impl IdlePolicy {
    /// Whether a connection may be closed during a shutdown. Over HTTP/2 always, since GOAWAY loses no request; over HTTP/1.1
    /// if there was no traffic since the last tick and all output was written.
    pub(super) fn may_close(activity: &Activity) -> bool {
        let has_traffic = activity.take_traffic();
        activity.is_multiplexed() || (!has_traffic && !activity.is_in_flight() && !activity.is_blocked())
    }

    /// Decides whether to close, park or keep the connection. `delivered` returns how many bytes the client has read in
    /// total; it is called only when the read rate is measured.
    pub(super) fn tick(
        &mut self,
        activity: &Activity,
        timeouts: &IdleTimeouts,
        delivered: impl FnOnce() -> u64,
    ) -> IdleAction {
        // A lingering close ends by itself. If it were parked, discarded input would be parsed as a request.
        if activity.is_lingering() {
            return IdleAction::Keep;
        }
        // A new connection has not been idle for a whole tick.
        let is_new = !std::mem::replace(&mut self.has_ticked, true);
        let (has_traffic, has_request) = (activity.take_traffic() | is_new, activity.take_request() | is_new);
        self.quiet_ticks = if has_traffic { 0 } else { self.quiet_ticks.saturating_add(1) };
        let in_flight = activity.is_in_flight();
        self.head_ticks = if activity.is_reading_head() { self.head_ticks.saturating_add(1) } else { 0 };
        let is_blocked = activity.is_blocked();
        let is_too_slow = self.reader.is_too_slow(is_blocked, timeouts.reader, delivered);
        let is_requestless = !has_request && !in_flight && !is_blocked;
        self.requestless_ticks = if is_requestless { self.requestless_ticks.saturating_add(1) } else { 0 };
        let is_idle = !in_flight && !is_blocked && self.quiet_ticks >= timeouts.idle;
        if activity.is_multiplexed() && self.requestless_ticks >= timeouts.idle {
            // The traffic is not requests. Draining before aborting loses no request that is in transit.
            let is_overdue = self.requestless_ticks >= timeouts.idle.saturating_add(timeouts.head);
            return if is_overdue { IdleAction::Abort } else { IdleAction::Drain };
        }
        // The first tick that sees a head is up to one tick after its first byte.
        if self.head_ticks > timeouts.head || is_too_slow || is_idle {
            return IdleAction::Abort;
        }
        // Park only once.
        if self.quiet_ticks == 1 && activity.is_between_requests() {
            IdleAction::Park
        } else {
            IdleAction::Keep
        }
    }
}

/// Measures how fast a client reads blocked output.
#[derive(Debug, Default)]
pub(super) struct SlowReader {
    /// Ticks since the measurement started; 0 while no output is blocked.
    ticks: u32,
    /// Bytes that the client had read at the start of the measurement.
    from: u64,
}

impl SlowReader {
    /// Whether the client reads more slowly than `rate` while output is blocked. The measurement restarts whenever the
    /// client has caught up, so a quiet stream has no slow reader.
    pub(super) fn is_too_slow(
        &mut self,
        is_behind: bool,
        rate: ReaderRate,
        taken: impl FnOnce() -> u64,
    ) -> bool {
        if !is_behind {
            self.ticks = 0;
            return false;
        }
        self.ticks = self.ticks.saturating_add(1);
        if (2..=rate.ticks).contains(&self.ticks) {
            return false;
        }
        let taken = taken();
        if self.ticks > rate.ticks && taken.saturating_sub(self.from) < rate.bytes {
            return true;
        }
        (self.ticks, self.from) = (1, taken);
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Poll;

    use super::*;

    const MIN_BYTES: u64 = 1_000;
    const HEAD: u32 = 3;
    const WINDOW: u32 = 6;
    const IDLE: u32 = 15;
    const TIMEOUTS: IdleTimeouts =
        IdleTimeouts { head: HEAD, idle: IDLE, reader: ReaderRate { bytes: MIN_BYTES, ticks: WINDOW } };

    #[test]
    fn idle_timeouts_in_ticks_are_rounded_up() {
        let ticks = |limits: &ResourceLimits| {
            let timeouts = IdleTimeouts::new(limits);
            (timeouts.head, timeouts.reader.ticks, timeouts.idle)
        };
        let default = ResourceLimits::default();
        assert_eq!(ticks(&default), (HEAD, WINDOW, IDLE));
        let idle_timeout = Duration::from_millis(75_001);
        assert_eq!(ticks(&ResourceLimits { idle_timeout, ..default }), (HEAD, WINDOW, IDLE + 1));
        let never = ResourceLimits { idle_timeout: Duration::MAX, head_timeout: Duration::ZERO, ..default };
        assert_eq!(ticks(&never), (0, 30_000, u32::MAX));
    }

    fn ticks_until_over(activity: &Activity, mut between: impl FnMut(&Activity)) -> u32 {
        let mut policy = IdlePolicy::default();
        (1..100)
            .find(|_| {
                between(activity);
                policy.tick(activity, &TIMEOUTS, || activity.written()) == IdleAction::Abort
            })
            .unwrap_or(u32::MAX)
    }

    fn record_traffic(activity: &Activity) {
        activity.socket_wrote(&Poll::Ready(Ok(0)));
    }

    #[test]
    fn idle_connection_is_aborted_and_one_with_traffic_is_kept() {
        assert_eq!(ticks_until_over(&Activity::default(), |_| {}), IDLE + 1, "the first tick is partial");
        assert_eq!(ticks_until_over(&Activity::default(), record_traffic), u32::MAX);
    }

    #[test]
    fn head_sent_slowly_is_aborted_at_the_head_timeout() {
        assert_eq!(ticks_until_over(&Activity::default(), Activity::bytes_received), HEAD + 1);
    }

    #[test]
    fn head_behind_blocked_response_is_not_timed_out() {
        let activity = Activity::default();
        let keeps_reading = |activity: &Activity| {
            activity.bytes_received();
            read_bytes(usize::try_from(MIN_BYTES).unwrap())(activity);
        };
        assert_eq!(ticks_until_over(&activity, keeps_reading), u32::MAX);
    }

    #[test]
    fn client_not_reading_is_aborted_and_client_waiting_for_upstream_is_kept() {
        let activity = Arc::new(Activity::default());
        let in_flight = activity.begin_request(false);
        assert_eq!(ticks_until_over(&activity, |_| {}), u32::MAX, "the upstream is slow, not the client");
        activity.socket_wrote(&Poll::Pending);
        assert_eq!(ticks_until_over(&activity, |_| {}), WINDOW + 1);
        drop(in_flight);
    }

    #[test]
    fn blocked_output_keeps_idle_connection_until_the_reader_is_too_slow() {
        let activity = Arc::new(Activity::default());
        drop(activity.begin_request(false));
        activity.socket_wrote(&Poll::Pending);
        let mut policy = IdlePolicy::default();
        let actions: Vec<_> =
            (0..=WINDOW).map(|_| policy.tick(&activity, &TIMEOUTS, || activity.written())).collect();
        assert!(actions[..WINDOW as usize].iter().all(|action| *action == IdleAction::Keep), "{actions:?}");
        assert_eq!(actions.last(), Some(&IdleAction::Abort));
    }

    /// Reads `bytes` before each tick and leaves the output blocked.
    fn read_bytes(bytes: usize) -> impl FnMut(&Activity) {
        move |activity| {
            activity.socket_wrote(&Poll::Ready(Ok(bytes)));
            activity.socket_wrote(&Poll::Pending);
        }
    }

    #[test]
    fn slow_reader_below_the_minimum_rate_is_aborted_and_one_above_is_kept() {
        assert_eq!(ticks_until_over(&Activity::default(), read_bytes(1)), WINDOW + 1);
        assert_eq!(ticks_until_over(&Activity::default(), read_bytes(1_000 / 6)), WINDOW + 1);
        assert_eq!(ticks_until_over(&Activity::default(), read_bytes(1_000 / 6 + 1)), u32::MAX);
    }

    #[test]
    fn slow_reader_that_was_fast_before_is_aborted() {
        let mut tick = 0;
        let slows_down = |activity: &Activity| {
            tick += 1;
            read_bytes(if tick <= 12 { 1 << 30 } else { 1 })(activity);
        };
        let ticks = ticks_until_over(&Activity::default(), slows_down);
        assert!((12 + WINDOW..=12 + 2 * WINDOW).contains(&ticks), "{ticks}");
    }

    #[test]
    fn reader_that_has_caught_up_is_kept() {
        let mut tick = 0_u32;
        // An event stream with little data, whose output is blocked for short times.
        let quiet = |activity: &Activity| {
            tick += 1;
            read_bytes(1)(activity);
            if tick.is_multiple_of(WINDOW - 1) {
                activity.socket_wrote(&Poll::Ready(Ok(1)));
            }
        };
        assert_eq!(ticks_until_over(&Activity::default(), quiet), u32::MAX);
    }

    #[test]
    fn slow_reader_queries_delivered_bytes_only_at_window_boundaries() {
        let (mut reader, mut calls) = (SlowReader::default(), 0);
        for tick in 0..=2 * u64::from(WINDOW) {
            assert!(!reader.is_too_slow(true, ReaderRate { bytes: 1, ticks: WINDOW }, || {
                calls += 1;
                tick
            }));
        }
        assert_eq!(calls, 3);
    }

    #[test]
    fn http2_pings_without_requests_do_not_keep_connection_open() {
        let activity = Arc::new(Activity::default());
        activity.http2_started();
        let mut policy = IdlePolicy::default();
        let mut tick = || {
            record_traffic(&activity);
            policy.tick(&activity, &TIMEOUTS, || 0)
        };
        assert!((0..IDLE).all(|_| tick() == IdleAction::Keep));
        drop(activity.begin_request(false));
        assert!((0..IDLE).all(|_| tick() == IdleAction::Keep), "any request restarts the timeout");
        assert_eq!(tick(), IdleAction::Drain, "drained before it is aborted");
        assert_eq!((1..HEAD).map(|_| tick()).last(), Some(IdleAction::Drain));
        assert_eq!(tick(), IdleAction::Abort);
        let in_flight = activity.begin_request(false);
        assert_eq!(ticks_until_over(&activity, record_traffic), u32::MAX, "a long response is not idle");
        drop(in_flight);
    }
}
