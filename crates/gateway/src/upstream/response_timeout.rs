//! How long the requests of a core wait for their answers: one watch for all of them, so that none needs a timer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;
use tokio::time::MissedTickBehavior;

/// So many looks are one patience; nobody is given up earlier, or later than by one more.
const LOOKS: u32 = 16;
/// Nobody looks more often.
const OFTEN: Duration = Duration::from_millis(1);

/// Those of a core who wait.
#[derive(Debug)]
pub(crate) struct Patience {
    patience: Duration,
    waiting: RefCell<Slab<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    /// Looks that are left; none once it is over.
    looks: u32,
    waker: Waker,
}

impl Patience {
    pub(crate) fn new(patience: Duration) -> Rc<Self> {
        Rc::new(Self { patience, waiting: RefCell::default() })
    }

    /// Looks after them for ever.
    pub(crate) async fn go(self: Rc<Self>) {
        let mut looks = tokio::time::interval((self.patience / LOOKS).max(OFTEN));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks.reset();
        loop {
            looks.tick().await;
            self.look();
        }
    }

    fn look(&self) {
        for (_, Waiting { looks, waker }) in &mut *self.waiting.borrow_mut() {
            *looks = looks.saturating_sub(1);
            if *looks == 0 {
                waker.wake_by_ref();
            }
        }
    }

    /// Waits for `answer`. Where that has taken as long as there is patience, it goes on if `has_moved` says that
    /// something did meanwhile, and else is `None`.
    pub(crate) async fn wait<F: Future>(
        &self,
        mut answer: Pin<&mut F>,
        has_moved: impl Fn() -> bool,
    ) -> Option<F::Output> {
        let mut place = Place { of: self, at: None };
        poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if place.is_over(cx, &has_moved) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
}

/// A place among those who wait, taken when there is something to wait for.
struct Place<'p> {
    of: &'p Patience,
    at: Option<usize>,
}

impl Place<'_> {
    fn is_over(&mut self, cx: &Context<'_>, has_moved: impl Fn() -> bool) -> bool {
        let mut all = self.of.waiting.borrow_mut();
        // One look may be due at once.
        let looks = LOOKS + 1;
        let Some(waiting) = self.at.and_then(|at| all.get_mut(at)) else {
            self.at = Some(all.insert(Waiting { looks, waker: cx.waker().clone() }));
            return false;
        };
        waiting.waker.clone_from(cx.waker());
        if waiting.looks == 0 && has_moved() {
            waiting.looks = looks;
        }
        waiting.looks == 0
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(at) = self.at {
            self.of.waiting.borrow_mut().try_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;
    use std::pin::pin;

    use tokio::task::LocalSet;
    use tokio::time::{Instant, sleep};

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[expect(clippy::disallowed_methods, reason = "paused time")]
    async fn waited(patience: &Patience, has_moved: impl Fn() -> bool) -> Duration {
        let since = Instant::now();
        assert!(patience.wait(pin!(pending::<()>()), has_moved).await.is_none());
        since.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_neither_early_nor_much_later() {
        let patience = Patience::new(MINUTE);
        let test = async {
            tokio::task::spawn_local(Rc::clone(&patience).go());
            for pause in [0, 1, 3_000, 3_750, 100_000] {
                sleep(Duration::from_millis(pause)).await;
                let waited = waited(&patience, || false).await;
                assert!((MINUTE..=MINUTE * 17 / 16 + OFTEN * 2).contains(&waited), "{pause}: {waited:?}");
            }
            assert!(patience.waiting.borrow().is_empty());
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_moves_is_waited_for_and_what_comes_is_given() {
        let patience = Patience::new(MINUTE);
        let test = async {
            tokio::task::spawn_local(Rc::clone(&patience).go());
            let moves = Cell::new(3);
            let has_moved = || moves.replace(moves.get().max(1) - 1) > 0;
            let waited = waited(&patience, has_moved).await;
            assert!((MINUTE * 4..MINUTE * 5).contains(&waited), "{waited:?}");
            let answer = async {
                sleep(MINUTE / 2).await;
                7
            };
            assert_eq!(patience.wait(pin!(answer), || false).await, Some(7));
            assert!(patience.waiting.borrow().is_empty());
        };
        LocalSet::new().run_until(test).await;
    }
}
