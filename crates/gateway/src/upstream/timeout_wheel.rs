//! Request timeouts of one worker, without a timer or a clock read for each request.
//!
//! Timeouts of similar length share a ring of slots and a task that advances the ring by one slot per tick. The tick is
//! short in comparison with these timeouts: a request times out late by at most a sixteenth of its timeout, or by a few
//! milliseconds, and never early. A ring that is not in use has no task, so an idle worker is not woken.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;
use tokio::time::{Instant, sleep_until};

/// Ring 0 has this tick, each other ring twice that of the one before. tokio's timers are exact to a millisecond.
const MIN_TICK_MILLIS: u64 = 2;
/// A timeout has the ring with the longest tick of which it takes this many. It is late by up to three ticks: one for
/// rounding up, and [`EXTRA_TICKS`].
const MIN_TICKS: u64 = 48;
/// Slots of a ring: more than the ticks that a timeout takes at most, `2 * MIN_TICKS + EXTRA_TICKS`.
const SLOTS: usize = 128;
/// Two ticks may pass at once after a timer has started: one that was overdue, and the next.
const EXTRA_TICKS: u64 = 2;
/// The last ring is for timeouts of up to 13 years; none is longer.
const RINGS: usize = 32;
const MAX_MILLIS: u64 = (MIN_TICK_MILLIS << (RINGS - 1)) * 2 * MIN_TICKS - 1;
/// Not a timer, or not a slot.
const NONE: usize = usize::MAX;

/// All timeouts of a worker.
#[derive(Debug, Default)]
pub(crate) struct TimeoutWheel(RefCell<TimerRings>);

impl TimeoutWheel {
    /// Waits for `future`, but no longer than `timeout`: `None` then. If `extension` returns another timeout at that time,
    /// for example because there was progress, that one starts.
    pub(crate) async fn run_within<F: Future>(
        self: &Rc<Self>,
        timeout: Duration,
        mut future: Pin<&mut F>,
        extension: impl Fn() -> Option<Duration>,
    ) -> Option<F::Output> {
        let mut timer = Timer { wheel: self, timeout, key: None };
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if timer.is_expired(cx, &extension) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Advances a ring for as long as it is in use.
    #[expect(clippy::disallowed_methods, reason = "timers run on the runtime's clock")]
    async fn tick(self: Rc<Self>, ring: usize) {
        let period = Duration::from_millis(MIN_TICK_MILLIS << ring);
        let mut next = Instant::now() + period;
        loop {
            sleep_until(next).await;
            let now = Instant::now();
            // A timer that started just now counts on this tick to be late by at most one period.
            next = if now > next + period { now } else { next } + period;
            if !self.0.borrow_mut().advance(ring) {
                return;
            }
        }
    }
}

/// The timeout of one request. It is inserted once there is something to wait for.
struct Timer<'w> {
    wheel: &'w Rc<TimeoutWheel>,
    timeout: Duration,
    key: Option<usize>,
}

impl Timer<'_> {
    fn is_expired(&mut self, cx: &Context<'_>, extension: impl Fn() -> Option<Duration>) -> bool {
        let mut rings = self.wheel.0.borrow_mut();
        if let Some(key) = self.key {
            if !rings.is_expired(key, cx.waker()) {
                return false;
            }
            let Some(timeout) = extension() else { return true };
            self.timeout = timeout;
            rings.remove(key);
        }
        let (key, idle_ring) = rings.insert(self.timeout, cx.waker().clone());
        self.key = Some(key);
        if let Some(ring) = idle_ring {
            tokio::task::spawn_local(Rc::clone(self.wheel).tick(ring));
        }
        false
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.wheel.0.borrow_mut().remove(key);
        }
    }
}

/// The timers in their slots. Time passes only by [`Self::advance`].
#[derive(Debug)]
struct TimerRings {
    timers: Slab<TimerEntry>,
    rings: [RingState; RINGS],
    /// The first timer of each slot of each ring, or [`NONE`].
    slots: Box<[usize]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RingState {
    /// Ticks that it has advanced.
    now: usize,
    /// Ticks until the ring is idle. Each insertion sets this to more ticks than a timeout takes, so the ring is empty then.
    ticks_left: usize,
}

/// A timer in the list of its slot.
#[derive(Debug)]
struct TimerEntry {
    waker: Waker,
    /// [`NONE`] once it has expired.
    slot: usize,
    previous: usize,
    next: usize,
}

impl Default for TimerRings {
    fn default() -> Self {
        Self {
            timers: Slab::new(),
            rings: [RingState::default(); RINGS],
            slots: vec![NONE; RINGS * SLOTS].into(),
        }
    }
}

impl TimerRings {
    /// Adds a timer. Also returns its ring if that was idle and must be advanced from now on.
    fn insert(&mut self, timeout: Duration, waker: Waker) -> (usize, Option<usize>) {
        let (ring, ticks) = ticks(timeout);
        let state = &mut self.rings[ring];
        let idle_ring = (state.ticks_left == 0).then_some(ring);
        state.ticks_left = SLOTS;
        let slot = ring * SLOTS + state.now.wrapping_add(ticks) % SLOTS;
        let next = self.slots[slot];
        let key = self.timers.insert(TimerEntry { waker, slot, previous: NONE, next });
        if let Some(next) = self.timers.get_mut(next) {
            next.previous = key;
        }
        self.slots[slot] = key;
        (key, idle_ring)
    }

    fn remove(&mut self, key: usize) {
        let TimerEntry { slot, previous, next, .. } = self.timers.remove(key);
        if slot == NONE {
            return;
        }
        match self.timers.get_mut(previous) {
            Some(previous) => previous.next = next,
            None => self.slots[slot] = next,
        }
        if let Some(next) = self.timers.get_mut(next) {
            next.previous = previous;
        }
    }

    /// Whether the timer has expired. If not, `waker` is woken when it does.
    fn is_expired(&mut self, key: usize, waker: &Waker) -> bool {
        let timer = &mut self.timers[key];
        timer.waker.clone_from(waker);
        timer.slot == NONE
    }

    /// One tick of a ring: the timers in the next slot expire. Returns whether the ring is still in use.
    fn advance(&mut self, ring: usize) -> bool {
        let state = &mut self.rings[ring];
        state.now = state.now.wrapping_add(1);
        state.ticks_left -= 1;
        let is_used = state.ticks_left > 0;
        let slot = ring * SLOTS + state.now % SLOTS;
        let mut key = std::mem::replace(&mut self.slots[slot], NONE);
        while let Some(timer) = self.timers.get_mut(key) {
            timer.slot = NONE;
            timer.waker.wake_by_ref();
            key = timer.next;
        }
        is_used
    }
}

/// The ring of a timeout, and its ticks from the last tick of that ring.
fn ticks(timeout: Duration) -> (usize, usize) {
    let millis = timeout.as_secs().saturating_mul(1_000);
    let millis = millis.saturating_add(timeout.subsec_nanos().div_ceil(1_000_000).into()).min(MAX_MILLIS);
    let ring = (millis / (MIN_TICK_MILLIS * MIN_TICKS)).checked_ilog2().unwrap_or(0);
    let ticks = millis.div_ceil(MIN_TICK_MILLIS << ring) + EXTRA_TICKS;
    (ring as usize, usize::try_from(ticks).unwrap_or(SLOTS - 1))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;
    use std::pin::pin;

    use proptest::prelude::{Strategy, any, prop_oneof, proptest};
    use proptest::{collection, prop_assert, prop_assert_eq};
    use tokio::runtime;
    use tokio::task::LocalSet;
    use tokio::time::{advance, sleep};

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    /// The latest time at which a timeout fires: three ticks late, plus the precision of tokio's timers.
    fn latest(timeout: Duration) -> Duration {
        let tick = (timeout / 48).max(Duration::from_millis(MIN_TICK_MILLIS));
        timeout + 3 * tick + Duration::from_millis(2)
    }

    #[expect(clippy::disallowed_methods, reason = "paused time")]
    async fn waited(
        wheel: &Rc<TimeoutWheel>,
        timeout: Duration,
        extension: impl Fn() -> Option<Duration>,
    ) -> Duration {
        let since = Instant::now();
        assert!(wheel.run_within(timeout, pin!(pending::<()>()), extension).await.is_none());
        since.elapsed()
    }

    fn is_empty(wheel: &TimeoutWheel) -> bool {
        let rings = wheel.0.borrow();
        rings.timers.is_empty() && rings.slots.iter().all(|first| *first == NONE)
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_without_progress_fires_never_early_and_at_most_three_ticks_late() {
        let wheel = Rc::<TimeoutWheel>::default();
        let test = async {
            for pause in [0, 1, 3_000, 3_750, 100_000] {
                sleep(Duration::from_millis(pause)).await;
                for timeout in [Duration::from_millis(1), Duration::from_millis(333), MINUTE, 60 * MINUTE] {
                    let waited = waited(&wheel, timeout, || None).await;
                    assert!((timeout..=latest(timeout)).contains(&waited), "{timeout:?} {pause}: {waited:?}");
                }
            }
            assert!(is_empty(&wheel));
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_started_before_a_late_tick_does_not_fire_early() {
        let wheel = Rc::<TimeoutWheel>::default();
        let tick = Duration::from_millis(MIN_TICK_MILLIS << ticks(MINUTE).0);
        let test = async {
            for late in 0..40 {
                assert!(wheel.run_within(MINUTE, pin!(sleep(tick / 2)), || None).await.is_some());
                // The clock jumps, and the next timeout starts before the task that ticks runs.
                let ((), waited) = tokio::join!(advance(tick * late / 10), waited(&wheel, MINUTE, || None));
                assert!((MINUTE..=latest(MINUTE)).contains(&waited), "{late}: {waited:?}");
            }
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_with_progress_restarts_and_a_result_is_returned() {
        let wheel = Rc::<TimeoutWheel>::default();
        let test = async {
            let progress = Cell::new(3);
            let extension = || (progress.replace(progress.get().max(1) - 1) > 0).then_some(MINUTE);
            let waited = waited(&wheel, MINUTE, extension).await;
            assert!((MINUTE * 4..MINUTE * 5).contains(&waited), "{waited:?}");
            let future = async {
                sleep(MINUTE / 2).await;
                7
            };
            assert_eq!(wheel.run_within(MINUTE, pin!(future), || None).await, Some(7));
            assert!(is_empty(&wheel));
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_wheel_without_timers_does_not_tick() {
        let wheel = Rc::<TimeoutWheel>::default();
        let test = async {
            for _ in 0..2 {
                waited(&wheel, MINUTE, || None).await;
                assert_eq!(Rc::strong_count(&wheel), 2, "its task keeps a reference");
                sleep(4 * MINUTE).await;
                assert_eq!(Rc::strong_count(&wheel), 1);
            }
        };
        LocalSet::new().run_until(test).await;
    }

    #[test]
    fn ticks_of_any_timeout_fit_into_its_ring() {
        for millis in (0..20_000).chain((0..64).map(|shift| 1 << shift)) {
            let timeout = Duration::from_millis(millis);
            let (ring, ticks) = ticks(timeout);
            let tick = MIN_TICK_MILLIS << ring;
            assert!(ring < RINGS && ticks < SLOTS);
            assert!((ticks as u64 - EXTRA_TICKS) * tick >= millis.min(MAX_MILLIS), "{millis}");
            assert!(ring == 0 || tick * MIN_TICKS <= millis, "{millis}");
        }
        assert!(ticks(Duration::MAX).1 < SLOTS);
    }

    #[derive(Clone, Copy, Debug)]
    enum WheelStep {
        Insert(u64),
        /// The timer at this index among the remaining ones.
        Remove(usize),
        Advance(u8),
    }

    fn steps() -> impl Strategy<Value = Vec<WheelStep>> {
        let step = prop_oneof![
            (0..3_000_u64).prop_map(WheelStep::Insert),
            any::<usize>().prop_map(WheelStep::Remove),
            (0..50_u8).prop_map(WheelStep::Advance),
        ];
        collection::vec(step, 0..200)
    }

    proptest! {
        /// The model is a list of timers with the ticks that each has left in its ring.
        #[test]
        fn timer_rings_expire_the_same_timers_as_a_list(steps in steps()) {
            let mut rings = TimerRings::default();
            let mut model: Vec<(usize, usize, usize)> = Vec::new();
            let mut is_used = [false; RINGS];
            for step in steps {
                match step {
                    WheelStep::Insert(millis) => {
                        let timeout = Duration::from_millis(millis);
                        let (ring, left) = ticks(timeout);
                        let (key, idle_ring) = rings.insert(timeout, Waker::noop().clone());
                        prop_assert_eq!(idle_ring, (!is_used[ring]).then_some(ring));
                        is_used[ring] = true;
                        model.push((key, ring, left));
                    }
                    WheelStep::Remove(place) if !model.is_empty() => {
                        let (key, ..) = model.swap_remove(place % model.len());
                        rings.remove(key);
                    }
                    WheelStep::Remove(_) => {}
                    WheelStep::Advance(times) => for _ in 0..times {
                        for ring in (0..RINGS).filter(|ring| is_used[*ring]).collect::<Vec<_>>() {
                            is_used[ring] = rings.advance(ring);
                            for (_, _, left) in model.iter_mut().filter(|(_, of, _)| *of == ring) {
                                *left = left.saturating_sub(1);
                            }
                            prop_assert!(is_used[ring] || model.iter().all(|(_, of, left)| *of != ring || *left == 0));
                        }
                    },
                }
                for (key, _, left) in &model {
                    prop_assert_eq!(rings.is_expired(*key, Waker::noop()), *left == 0);
                }
                prop_assert_eq!(rings.timers.len(), model.len());
            }
        }

        /// The model is a list of deadlines. Timers start, and some end, at any time.
        #[test]
        fn timeouts_running_concurrently_fire_after_their_deadlines(
            requests in collection::vec((0..5_000_u64, 0..5_000_u64, any::<Option<u16>>()), 1..40)
        ) {
            let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let wheel = Rc::<TimeoutWheel>::default();
            LocalSet::new().block_on(&runtime, async {
                let tasks: Vec<_> = requests.into_iter().map(|(start, timeout, response)| {
                    let wheel = Rc::clone(&wheel);
                    tokio::task::spawn_local(async move {
                        sleep(Duration::from_millis(start)).await;
                        let timeout = Duration::from_millis(timeout);
                        let Some(response) = response else {
                            let waited = waited(&wheel, timeout, || None).await;
                            assert!((timeout..=latest(timeout)).contains(&waited), "{timeout:?}: {waited:?}");
                            return;
                        };
                        let response = Duration::from_millis(response.into());
                        let is_done = wheel.run_within(timeout, pin!(sleep(response)), || None).await.is_some();
                        let (is_sooner, is_later) = (response < timeout, response > latest(timeout));
                        assert!(is_done || !is_sooner, "{response:?} within {timeout:?}");
                        assert!(!is_done || !is_later, "{response:?} after {timeout:?}");
                    })
                }).collect();
                for task in tasks {
                    task.await.unwrap();
                }
            });
            prop_assert!(is_empty(&wheel));
        }
    }
}
