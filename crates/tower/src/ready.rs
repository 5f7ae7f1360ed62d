//! Bounds the time for which callers wait in `poll_ready`.
//!
//! A layer sees a request only after the inner service was ready, so the wait for it is outside of every call: no timeout and no
//! deadline would apply. An error of `poll_ready` means that a service is broken for good, so a wait that takes too long is not
//! one. Instead the layer says that it is ready, and fails the next call without making it.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};

use crate::error::{BoxError, LayerError};

/// A caller that waits polls at the end of its wait. One that polls later than this after it is another one: the caller before has
/// gone, which a service is not told, and its wait is not that of the next call.
const LATENESS: Duration = Duration::from_millis(250);

/// The wait of one service for its inner service. A clone does not wait.
#[derive(Debug, Default)]
pub(crate) struct ReadyWait {
    /// Set while the inner service is not ready.
    timers: Option<Pin<Box<WaitTimers>>>,
}

pin_project! {
    #[derive(Debug)]
    struct WaitTimers {
        #[pin]
        end: Sleep,
        #[pin]
        abandoned: Sleep,
        progress: WaitProgress,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitProgress {
    Waiting,
    /// The next call fails.
    Expired,
    /// That call was made.
    Over,
}

impl WaitTimers {
    fn start(longest: Duration) -> Pin<Box<Self>> {
        let abandoned = sleep(longest.saturating_add(LATENESS));
        Box::pin(Self { end: sleep(longest), abandoned, progress: WaitProgress::Waiting })
    }
}

impl Clone for ReadyWait {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl ReadyWait {
    /// The readiness to return for that of the inner service, which may take `longest`.
    #[inline]
    pub(crate) fn poll<E: Into<BoxError> + 'static>(
        &mut self,
        inner: Poll<Result<(), E>>,
        longest: impl FnOnce() -> Option<Duration>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), LayerError>> {
        match inner {
            Poll::Ready(result) => {
                if self.timers.is_some() {
                    *self = Self::default();
                }
                Poll::Ready(result.map_err(LayerError::new))
            }
            Poll::Pending => self.poll_timer(longest, cx),
        }
    }

    #[cold]
    fn poll_timer(
        &mut self,
        longest: impl FnOnce() -> Option<Duration>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), LayerError>> {
        let has_ended = |timers: &mut Pin<Box<WaitTimers>>| {
            let timers = timers.as_mut().project();
            *timers.progress == WaitProgress::Over || timers.abandoned.poll(cx).is_ready()
        };
        if self.timers.as_mut().is_none_or(has_ended) {
            *self = Self::default();
            let Some(longest) = longest() else { return Poll::Pending };
            self.timers = Some(WaitTimers::start(longest));
        }
        let Some(timers) = &mut self.timers else { return Poll::Pending };
        let timers = timers.as_mut().project();
        ready!(timers.end.poll(cx));
        *timers.progress = WaitProgress::Expired;
        Poll::Ready(Ok(()))
    }

    /// Whether the call that follows must fail, because the inner service did not become ready in time.
    #[inline]
    pub(crate) fn take_expired(&mut self) -> bool {
        // The timers stay until the next wait: the calls of services are smaller if nothing is dropped in them.
        self.timers.as_mut().is_some_and(|timers| {
            let progress = timers.as_mut().project().progress;
            mem::replace(progress, WaitProgress::Over) == WaitProgress::Expired
        })
    }
}
