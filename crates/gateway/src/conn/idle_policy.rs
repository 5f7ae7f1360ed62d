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

/// What a client must take of a response that waits for it.
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

/// What was seen of a connection at earlier ticks.
#[derive(Debug, Default)]
pub(super) struct IdlePolicy {
    /// Whether it was there for the whole of the last tick.
    has_ticked: bool,
    /// Ticks in which nothing moved.
    quiet_ticks: u32,
    /// Ticks without a request.
    requestless_ticks: u32,
    /// How often it was seen reading the same head.
    head_ticks: u32,
    reader: SlowReader,
}

impl IdlePolicy {
    /// Whether a connection may be told to close: over HTTP/2 any time, since that loses no request; over HTTP/1.1 when
    /// nothing has moved since the last tick, and all output has left.
    pub(super) fn may_close(activity: &Activity) -> bool {
        let has_traffic = activity.take_traffic();
        activity.is_multiplexed() || (!has_traffic && !activity.is_in_flight() && !activity.is_blocked())
    }

    /// Decides whether to close, park or keep the connection. `delivered` says how many bytes the client has taken in all;
    /// it is called only when that counts.
    pub(super) fn tick(
        &mut self,
        activity: &Activity,
        timeouts: &IdleTimeouts,
        delivered: impl FnOnce() -> u64,
    ) -> IdleAction {
        // It closes by itself. Were it parked, what it discards would be read as a request.
        if activity.is_lingering() {
            return IdleAction::Keep;
        }
        // A connection that began between two ticks is not idle for a whole one.
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
            // Whatever moves is no request. A request on its way is not lost if the client is told first.
            let is_overdue = self.requestless_ticks >= timeouts.idle.saturating_add(timeouts.head);
            return if is_overdue { IdleAction::Abort } else { IdleAction::Drain };
        }
        // The first tick that sees a head comes up to a tick after its first byte.
        if self.head_ticks > timeouts.head || is_too_slow || is_idle {
            return IdleAction::Abort;
        }
        // Once is enough.
        if self.quiet_ticks == 1 && activity.is_between_requests() {
            IdleAction::Park
        } else {
            IdleAction::Keep
        }
    }
}

/// How fast a client takes what waits for it.
#[derive(Debug, Default)]
pub(super) struct SlowReader {
    /// Ticks since the measurement began; 0 while nothing waits.
    ticks: u32,
    /// What had been taken by then.
    from: u64,
}

impl SlowReader {
    /// Whether less was taken than `rate` asks for, while more was waiting all the time. A client that has caught up owes
    /// nothing, however little there was: a quiet stream has no slow reader.
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

    const LEAST: u64 = 1_000;
    const HEAD: u32 = 3;
    const WINDOW: u32 = 6;
    const IDLE: u32 = 15;
    const TIMEOUTS: IdleTimeouts =
        IdleTimeouts { head: HEAD, idle: IDLE, reader: ReaderRate { bytes: LEAST, ticks: WINDOW } };

    #[test]
    fn timeouts_in_ticks_of_the_defaults_are_exact_and_others_are_rounded_up() {
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

    fn moves(activity: &Activity) {
        activity.socket_wrote(&Poll::Ready(Ok(0)));
    }

    #[test]
    fn an_idle_connection_ends_and_a_lively_one_stays() {
        assert_eq!(ticks_until_over(&Activity::default(), |_| {}), IDLE + 1, "the first tick is not whole");
        assert_eq!(ticks_until_over(&Activity::default(), moves), u32::MAX);
    }

    #[test]
    fn a_head_that_drips_ends_however_lively() {
        assert_eq!(ticks_until_over(&Activity::default(), Activity::bytes_received), HEAD + 1);
    }

    #[test]
    fn head_that_waits_behind_a_response_is_not_slow() {
        let activity = Activity::default();
        let reads_on = |activity: &Activity| {
            activity.bytes_received();
            takes(usize::try_from(LEAST).unwrap())(activity);
        };
        assert_eq!(ticks_until_over(&activity, reads_on), u32::MAX);
    }

    #[test]
    fn who_does_not_take_the_answer_ends_and_who_waits_for_it_stays() {
        let activity = Arc::new(Activity::default());
        let in_flight = activity.begin_request(false);
        assert_eq!(ticks_until_over(&activity, |_| {}), u32::MAX, "the upstream is slow, not the client");
        activity.socket_wrote(&Poll::Pending);
        assert_eq!(ticks_until_over(&activity, |_| {}), WINDOW + 1);
        drop(in_flight);
    }

    #[test]
    fn output_that_waits_keeps_an_idle_connection_until_its_reader_is_too_slow() {
        let activity = Arc::new(Activity::default());
        drop(activity.begin_request(false));
        activity.socket_wrote(&Poll::Pending);
        let mut policy = IdlePolicy::default();
        let actions: Vec<_> =
            (0..=WINDOW).map(|_| policy.tick(&activity, &TIMEOUTS, || activity.written())).collect();
        assert!(actions[..WINDOW as usize].iter().all(|action| *action == IdleAction::Keep), "{actions:?}");
        assert_eq!(actions.last(), Some(&IdleAction::Abort));
    }

    /// Takes `bytes` before each tick and is behind at it.
    fn takes(bytes: usize) -> impl FnMut(&Activity) {
        move |activity| {
            activity.socket_wrote(&Poll::Ready(Ok(bytes)));
            activity.socket_wrote(&Poll::Pending);
        }
    }

    #[test]
    fn who_takes_too_little_of_what_waits_ends_and_who_keeps_the_rate_stays() {
        assert_eq!(ticks_until_over(&Activity::default(), takes(1)), WINDOW + 1);
        assert_eq!(ticks_until_over(&Activity::default(), takes(1_000 / 6)), WINDOW + 1);
        assert_eq!(ticks_until_over(&Activity::default(), takes(1_000 / 6 + 1)), u32::MAX);
    }

    #[test]
    fn having_been_fast_does_not_make_up_for_being_slow() {
        let mut tick = 0;
        let slackens = |activity: &Activity| {
            tick += 1;
            takes(if tick <= 12 { 1 << 30 } else { 1 })(activity);
        };
        let ticks = ticks_until_over(&Activity::default(), slackens);
        assert!((12 + WINDOW..=12 + 2 * WINDOW).contains(&ticks), "{ticks}");
    }

    #[test]
    fn who_has_caught_up_owes_nothing() {
        let mut tick = 0_u32;
        // An event stream that says little, each time more than fits at once for a moment.
        let quiet = |activity: &Activity| {
            tick += 1;
            takes(1)(activity);
            if tick.is_multiple_of(WINDOW - 1) {
                activity.socket_wrote(&Poll::Ready(Ok(1)));
            }
        };
        assert_eq!(ticks_until_over(&Activity::default(), quiet), u32::MAX);
    }

    #[test]
    fn slow_reader_asks_for_what_was_taken_only_at_the_ends_of_a_window() {
        let (mut reader, mut asked) = (SlowReader::default(), 0);
        for tick in 0..=2 * u64::from(WINDOW) {
            assert!(!reader.is_too_slow(true, ReaderRate { bytes: 1, ticks: WINDOW }, || {
                asked += 1;
                tick
            }));
        }
        assert_eq!(asked, 3);
    }

    #[test]
    fn pings_without_requests_do_not_keep_a_connection_for_ever() {
        let activity = Arc::new(Activity::default());
        activity.http2_started();
        let mut policy = IdlePolicy::default();
        let mut tick = || {
            moves(&activity);
            policy.tick(&activity, &TIMEOUTS, || 0)
        };
        assert!((0..IDLE).all(|_| tick() == IdleAction::Keep));
        drop(activity.begin_request(false));
        assert!((0..IDLE).all(|_| tick() == IdleAction::Keep), "a request, however short, begins it anew");
        assert_eq!(tick(), IdleAction::Drain, "it is told first");
        assert_eq!((1..HEAD).map(|_| tick()).last(), Some(IdleAction::Drain));
        assert_eq!(tick(), IdleAction::Abort);
        let in_flight = activity.begin_request(false);
        assert_eq!(ticks_until_over(&activity, moves), u32::MAX, "a long answer is not idle");
        drop(in_flight);
    }
}
