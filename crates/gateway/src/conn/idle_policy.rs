//! Whether a connection stays: one that only holds a place is ended. It is looked at every few seconds.

use super::activity::Activity;
use super::idle_watchdog::IdleAction;

/// Looks that the head of a request may take, however lively it drips.
const HEAD: u32 = 3;
/// Looks over which the pace of a reader is measured.
pub(super) const WINDOW: u32 = 6;
/// Looks that a connection may be idle between requests.
const IDLE: u32 = 15;

/// Looks at a connection again and again.
#[derive(Debug, Default)]
pub(super) struct IdlePolicy {
    still: u32,
    /// Looks without a request.
    vacant: u32,
    head: u32,
    reader: SlowReader,
}

impl IdlePolicy {
    /// Whether a connection may be told to close: over HTTP/2 any time, since that loses no request; over HTTP/1.1 when
    /// nothing has moved since the last look, and all output has left.
    pub(super) fn may_close(activity: &Activity) -> bool {
        let moved = activity.take_moved();
        activity.is_multiplexed() || (!moved && !activity.is_in_flight() && !activity.is_blocked())
    }

    /// What becomes of the connection: it has outstayed its welcome, it may rest, or nothing. While output waits for the
    /// client, it must take `least` bytes in each [`WINDOW`]; `delivered` says how many it has taken in all.
    pub(super) fn look(
        &mut self,
        activity: &Activity,
        least: u64,
        delivered: impl FnOnce() -> u64,
    ) -> IdleAction {
        // It ends by itself. Were it to rest, what is thrown away would be heard as a request.
        if activity.is_lingering() {
            return IdleAction::Keep;
        }
        let moved = activity.take_moved();
        self.still = if moved { 0 } else { self.still + 1 };
        let in_flight = activity.is_in_flight();
        self.head = if activity.is_reading_head() { self.head + 1 } else { 0 };
        let is_blocked = activity.is_blocked();
        let is_too_slow = self.reader.is_too_slow(is_blocked, least, WINDOW, delivered);
        let is_vacant = !activity.take_requested() && !in_flight && !is_blocked;
        self.vacant = if is_vacant { self.vacant + 1 } else { 0 };
        let is_idle = !in_flight && !is_blocked && self.still >= IDLE;
        if activity.is_multiplexed() && self.vacant >= IDLE {
            // Whatever moves is no request. A request on its way is not lost if it is told first.
            return if self.vacant < IDLE + HEAD { IdleAction::Drain } else { IdleAction::Abort };
        }
        if self.head >= HEAD || is_too_slow || is_idle {
            return IdleAction::Abort;
        }
        // Once is enough.
        if self.still == 1 && activity.is_between_requests() { IdleAction::Park } else { IdleAction::Keep }
    }
}

/// How fast a client takes what waits for it.
#[derive(Debug, Default)]
pub(super) struct SlowReader {
    /// Looks since the measurement began; 0 while nothing waits.
    looks: u32,
    /// What had been taken by then.
    from: u64,
}

impl SlowReader {
    /// Whether less than `least` bytes were taken in `window` looks, all the while more was waiting. A client that has
    /// caught up owes nothing, however little there was: a quiet stream has no slow reader.
    pub(super) fn is_too_slow(
        &mut self,
        is_behind: bool,
        least: u64,
        window: u32,
        taken: impl FnOnce() -> u64,
    ) -> bool {
        if !is_behind {
            self.looks = 0;
            return false;
        }
        self.looks += 1;
        if (2..=window).contains(&self.looks) {
            return false;
        }
        let taken = taken();
        if self.looks > window && taken.saturating_sub(self.from) < least {
            return true;
        }
        (self.looks, self.from) = (1, taken);
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Poll;

    use super::*;

    const LEAST: u64 = 1_000;

    fn looks_until_over(activity: &Activity, mut between: impl FnMut(&Activity)) -> u32 {
        let mut watch = IdlePolicy::default();
        (1..100)
            .find(|_| {
                between(activity);
                watch.look(activity, LEAST, || activity.written()) == IdleAction::Abort
            })
            .unwrap_or(u32::MAX)
    }

    fn moves(activity: &Activity) {
        activity.socket_wrote(&Poll::Ready(Ok(0)));
    }

    #[test]
    fn an_idle_connection_ends_and_a_lively_one_stays() {
        assert_eq!(looks_until_over(&Activity::default(), |_| {}), IDLE);
        assert_eq!(looks_until_over(&Activity::default(), moves), u32::MAX);
    }

    #[test]
    fn a_head_that_drips_ends_however_lively() {
        assert_eq!(looks_until_over(&Activity::default(), Activity::bytes_came), HEAD);
    }

    #[test]
    fn head_that_waits_behind_a_response_is_not_slow() {
        let activity = Activity::default();
        let reads_on = |activity: &Activity| {
            activity.bytes_came();
            takes(usize::try_from(LEAST).unwrap())(activity);
        };
        assert_eq!(looks_until_over(&activity, reads_on), u32::MAX);
    }

    #[test]
    fn who_does_not_take_the_answer_ends_and_who_waits_for_it_stays() {
        let activity = Arc::new(Activity::default());
        let in_flight = activity.begin_request(false);
        assert_eq!(looks_until_over(&activity, |_| {}), u32::MAX, "the upstream is slow, not the client");
        activity.socket_wrote(&Poll::Pending);
        assert_eq!(looks_until_over(&activity, |_| {}), WINDOW + 1);
        drop(in_flight);
    }

    #[test]
    fn output_that_waits_keeps_an_idle_connection_until_its_reader_is_too_slow() {
        let activity = Arc::new(Activity::default());
        drop(activity.begin_request(false));
        activity.socket_wrote(&Poll::Pending);
        let mut watch = IdlePolicy::default();
        let orders: Vec<_> =
            (0..=WINDOW).map(|_| watch.look(&activity, LEAST, || activity.written())).collect();
        assert!(orders[..WINDOW as usize].iter().all(|order| *order == IdleAction::Keep), "{orders:?}");
        assert_eq!(orders.last(), Some(&IdleAction::Abort));
    }

    /// Takes `bytes` before each look and is behind at it.
    fn takes(bytes: usize) -> impl FnMut(&Activity) {
        move |activity| {
            activity.socket_wrote(&Poll::Ready(Ok(bytes)));
            activity.socket_wrote(&Poll::Pending);
        }
    }

    #[test]
    fn who_takes_too_little_of_what_waits_ends_and_who_keeps_the_pace_stays() {
        assert_eq!(looks_until_over(&Activity::default(), takes(1)), WINDOW + 1);
        assert_eq!(looks_until_over(&Activity::default(), takes(1_000 / 6)), WINDOW + 1);
        assert_eq!(looks_until_over(&Activity::default(), takes(1_000 / 6 + 1)), u32::MAX);
    }

    #[test]
    fn having_been_fast_does_not_make_up_for_being_slow() {
        let mut look = 0;
        let slackens = |activity: &Activity| {
            look += 1;
            takes(if look <= 12 { 1 << 30 } else { 1 })(activity);
        };
        let looks = looks_until_over(&Activity::default(), slackens);
        assert!((12 + WINDOW..=12 + 2 * WINDOW).contains(&looks), "{looks}");
    }

    #[test]
    fn who_has_caught_up_owes_nothing() {
        let mut look = 0_u32;
        // An event stream that says little, each time more than fits at once for a moment.
        let quiet = |activity: &Activity| {
            look += 1;
            takes(1)(activity);
            if look.is_multiple_of(WINDOW - 1) {
                activity.socket_wrote(&Poll::Ready(Ok(1)));
            }
        };
        assert_eq!(looks_until_over(&Activity::default(), quiet), u32::MAX);
    }

    #[test]
    fn reader_pace_asks_for_what_was_taken_only_at_the_ends_of_a_window() {
        let (mut pace, mut asked) = (SlowReader::default(), 0);
        for look in 0..=2 * u64::from(WINDOW) {
            assert!(!pace.is_too_slow(true, 1, WINDOW, || {
                asked += 1;
                look
            }));
        }
        assert_eq!(asked, 3);
    }

    #[test]
    fn pings_without_requests_do_not_keep_a_connection_for_ever() {
        let activity = Arc::new(Activity::default());
        activity.http2_began();
        let mut watch = IdlePolicy::default();
        let mut look = || {
            moves(&activity);
            watch.look(&activity, LEAST, || 0)
        };
        assert!((1..IDLE).all(|_| look() == IdleAction::Keep));
        drop(activity.begin_request(false));
        assert!((0..IDLE).all(|_| look() == IdleAction::Keep), "a request, however short, begins it anew");
        assert_eq!(look(), IdleAction::Drain, "it is told first");
        assert_eq!((1..HEAD).map(|_| look()).last(), Some(IdleAction::Drain));
        assert_eq!(look(), IdleAction::Abort);
        let in_flight = activity.begin_request(false);
        assert_eq!(looks_until_over(&activity, moves), u32::MAX, "a long answer is not idle");
        drop(in_flight);
    }
}
