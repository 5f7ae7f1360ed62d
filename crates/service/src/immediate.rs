//! Futures of a store that is in this process.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The result of a future that is ready when it is first polled; `None` if it is not. A plain function that calls this costs
/// less than one that waits: its future would be moved from caller to caller.
#[inline]
pub(crate) fn poll_immediate<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}
