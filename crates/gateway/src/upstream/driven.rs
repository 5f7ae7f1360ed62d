//! A connection without a task of its own: whoever uses it drives it, so nothing is handed from one task to another.

use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::connect::Stream;
use crate::body::RequestBody;

/// So often one poll goes on with what it set off itself; then others have their turn.
const AT_ONCE: usize = 8;

/// A connection for requests without a body: such are sent at once, so nothing is left to do while nobody waits.
#[derive(Debug)]
pub(super) struct Driven {
    pub(super) sender: http1::SendRequest<RequestBody>,
    /// `None` once it has ended.
    connection: Option<Box<http1::Connection<TokioIo<Stream>, RequestBody>>>,
    bell: Arc<Bell>,
    /// Rings it.
    waker: Waker,
}

impl Driven {
    pub(super) fn new(
        sender: http1::SendRequest<RequestBody>,
        connection: http1::Connection<TokioIo<Stream>, RequestBody>,
    ) -> Self {
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(Arc::clone(&bell));
        Self { sender, connection: Some(Box::new(connection)), bell, waker }
    }

    /// Polls `what`, which comes over the connection, and the connection as far as that takes.
    pub(super) fn poll<T>(
        &mut self,
        cx: &Context<'_>,
        mut what: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.bell.belongs_to(cx.waker());
        let inner = &mut Context::from_waker(&self.waker);
        for _ in 0..AT_ONCE {
            self.bell.mute();
            let mut polled = what(inner);
            if polled.is_pending() {
                drive(&mut self.connection, inner);
                polled = what(inner);
            }
            let has_rung = self.bell.unmute();
            if polled.is_ready() || !has_rung {
                return polled;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Nobody waits for it any more.
    pub(super) fn rest(&self) {
        self.bell.belongs_to_nobody();
    }

    /// Whether it can take a request: one at rest over which something came has probably been closed.
    pub(super) fn is_fit(&mut self) -> bool {
        if self.bell.has_stirred() {
            drive(&mut self.connection, &mut Context::from_waker(&self.waker));
        }
        self.connection.is_some() && self.sender.is_ready()
    }
}

/// Once it has ended it is dropped, which tells those who wait for it.
fn drive(
    connection: &mut Option<Box<http1::Connection<TokioIo<Stream>, RequestBody>>>,
    cx: &mut Context<'_>,
) {
    if let Some(driven) = connection
        && Pin::new(&mut **driven).poll(cx).is_ready()
    {
        *connection = None;
    }
}

/// Rung when a connection can go on.
#[derive(Debug, Default)]
struct Bell {
    state: AtomicU8,
    owner: Mutex<Option<Waker>>,
}

/// What rings wakes the owner.
const LOUD: u8 = 0;
/// The owner is polling, and will look itself.
const MUTE: u8 = 1;
/// It has rung meanwhile, or while nobody owned it.
const RUNG: u8 = 2;

impl Bell {
    fn belongs_to(&self, waker: &Waker) {
        let mut owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        if !owner.as_ref().is_some_and(|owner| owner.will_wake(waker)) {
            *owner = Some(waker.clone());
        }
    }

    fn belongs_to_nobody(&self) {
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn mute(&self) {
        self.state.store(MUTE, Ordering::Release);
    }

    /// Whether it has rung since it was muted.
    fn unmute(&self) -> bool {
        self.state.swap(LOUD, Ordering::AcqRel) == RUNG
    }

    fn has_stirred(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNG
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let muted = self.state.compare_exchange(MUTE, RUNG, Ordering::AcqRel, Ordering::Acquire);
        if muted.is_err() {
            match &*self.owner.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(owner) => owner.wake_by_ref(),
                None => self.state.store(RUNG, Ordering::Release),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Debug, Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_bell_wakes_its_owner_unless_the_owner_looks_itself() {
        let (bell, owner) = (Arc::new(Bell::default()), Arc::new(Count::default()));
        let ring = || Waker::from(Arc::clone(&bell)).wake();
        bell.belongs_to(&Waker::from(Arc::clone(&owner)));
        ring();
        assert_eq!(owner.0.load(Ordering::Relaxed), 1);
        bell.mute();
        assert!(!bell.unmute());
        bell.mute();
        ring();
        assert!(bell.unmute());
        assert_eq!(owner.0.load(Ordering::Relaxed), 1, "the owner was polling");
        ring();
        assert_eq!(owner.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_bell_without_owner_remembers_that_it_rang() {
        let bell = Arc::new(Bell::default());
        bell.belongs_to_nobody();
        assert!(!bell.has_stirred());
        Waker::from(Arc::clone(&bell)).wake();
        assert!(bell.has_stirred());
    }
}
