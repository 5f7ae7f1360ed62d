//! Bounds the time for which callers wait in `poll_ready`.
//!
//! A layer sees a request only after the inner service was ready, so the wait for it is outside of every call: no timeout and no
//! deadline would apply. An error of `poll_ready` means that a service is broken for good, so a wait that takes too long is not
//! one. Instead the layer says that it is ready, and fails the next call without making it.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use crate::error::BoxError;

/// The wait of one service for its inner service. A clone does not wait.
#[derive(Debug, Default)]
pub(crate) struct ReadyWait {
    /// Set while the inner service is not ready.
    timer: Option<Pin<Box<Sleep>>>,
    has_expired: bool,
}

impl Clone for ReadyWait {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl ReadyWait {
    /// The readiness to return for that of the inner service, which may take `longest`.
    #[inline]
    pub(crate) fn poll<E: Into<BoxError>>(
        &mut self,
        inner: Poll<Result<(), E>>,
        longest: impl FnOnce() -> Option<Duration>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), BoxError>> {
        match inner {
            Poll::Ready(result) => {
                if self.timer.is_some() {
                    *self = Self::default();
                }
                Poll::Ready(result.map_err(Into::into))
            }
            Poll::Pending => self.poll_timer(longest, cx),
        }
    }

    #[cold]
    fn poll_timer(
        &mut self,
        longest: impl FnOnce() -> Option<Duration>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), BoxError>> {
        if self.timer.is_none() {
            let Some(longest) = longest() else { return Poll::Pending };
            self.timer = Some(Box::pin(sleep(longest)));
        }
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        ready!(timer.as_mut().poll(cx));
        self.has_expired = true;
        Poll::Ready(Ok(()))
    }

    /// Whether the call that follows must fail, because the inner service did not become ready in time.
    #[inline]
    pub(crate) fn take_expired(&mut self) -> bool {
        if self.timer.is_none() {
            return false;
        }
        mem::take(self).has_expired
    }
}
