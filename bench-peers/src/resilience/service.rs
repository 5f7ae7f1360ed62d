//! The services inside the layers.

use std::fmt;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use tower::Service;

/// A request that says how it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Succeeds,
    Fails,
}

impl Call {
    fn result(self) -> Result<(), CallFailed> {
        if self == Self::Succeeds { Ok(()) } else { Err(CallFailed) }
    }
}

/// The service failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallFailed;

impl fmt::Display for CallFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the service failed")
    }
}

impl std::error::Error for CallFailed {}

/// Has its result at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyService;

impl Service<Call> for ReadyService {
    type Response = ();
    type Error = CallFailed;
    type Future = Ready<Result<(), CallFailed>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), CallFailed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        ready(call.result())
    }
}

/// Has its result when it is polled for the second time, as a service that waits for the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingService;

impl Service<Call> for WaitingService {
    type Response = ();
    type Error = CallFailed;
    type Future = SecondPoll;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), CallFailed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        SecondPoll { call, is_polled: false }
    }
}

/// The result of a call, at the second poll.
#[derive(Debug)]
pub(crate) struct SecondPoll {
    call: Call,
    is_polled: bool,
}

impl Future for SecondPoll {
    type Output = Result<(), CallFailed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_polled {
            return Poll::Ready(self.call.result());
        }
        self.is_polled = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
