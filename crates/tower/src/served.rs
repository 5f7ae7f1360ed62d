//! Whether a handler was called. What was charged for a call that never reached its handler is refunded.
//!
//! The type of an error does not say that: a handler may have worked and then return the rejection of a layer around one of its
//! own dependencies, and a retry may be rejected after a first attempt was served. So the layer that charges applies the layers
//! that may reject itself, with a [`ServedService`] directly around the handler. The mark travels through the thread: while the
//! layer that charges calls or polls, it has a scope, and `ServedService` marks the innermost one. Leaving a scope passes the mark
//! on to the outer one.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tower_service::Service;

/// The innermost layer that charges and is calling or polling on this thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Absent,
    Unserved,
    Served,
}

thread_local! {
    static SCOPE: Cell<Scope> = const { Cell::new(Scope::Absent) };
}

/// Ends a scope, also when the handler panics.
struct ScopeEnd<'a> {
    outer: Scope,
    is_served: &'a mut bool,
}

impl Drop for ScopeEnd<'_> {
    fn drop(&mut self) {
        *self.is_served |= SCOPE.get() == Scope::Served;
        SCOPE.set(if *self.is_served && self.outer == Scope::Unserved { Scope::Served } else { self.outer });
    }
}

/// Shared by a layer that charges and the [`ServedService`] around its handler.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandlerMark {
    /// Whether the handler is called from other tasks, where a scope cannot be seen, as behind a `Buffer`.
    is_called_elsewhere: Arc<AtomicBool>,
}

/// Whether one call has reached the handler.
#[derive(Debug)]
pub(crate) struct ServedCall {
    /// Set if that is known.
    mark: Option<HandlerMark>,
    is_served: bool,
}

impl ServedCall {
    #[inline]
    pub(crate) fn new(mark: Option<HandlerMark>) -> Self {
        Self { mark, is_served: false }
    }

    /// Runs a part of the call, and notes whether it reached the handler.
    #[inline]
    pub(crate) fn observe<T>(&mut self, part: impl FnOnce() -> T) -> T {
        if self.mark.is_none() {
            return part();
        }
        let _end = ScopeEnd { outer: SCOPE.replace(Scope::Unserved), is_served: &mut self.is_served };
        part()
    }

    /// Whether the call has certainly not reached the handler.
    pub(crate) fn is_unserved(&self) -> bool {
        let is_elsewhere = |mark: &HandlerMark| mark.is_called_elsewhere.load(Ordering::Relaxed);
        !self.is_served && self.mark.as_ref().is_some_and(|mark| !is_elsewhere(mark))
    }
}

/// A layer calls another service than the one it is applied to, such as a fallback: the request is served by it.
#[cfg(feature = "fallback")]
pub(crate) fn mark_served() {
    if SCOPE.get() == Scope::Unserved {
        SCOPE.set(Scope::Served);
    }
}

/// A layer that refunds nothing: it does not know which requests reach the handler.
#[derive(Clone, Copy, Debug, Default)]
pub struct NothingRefunded;

/// Layers between a layer that charges and the handler. What they reject is refunded.
#[derive(Clone, Copy, Debug)]
pub struct Refunded<L>(pub(crate) L);

/// A handler below layers whose rejections are refunded.
#[derive(Clone, Debug)]
pub struct ServedService<S> {
    inner: S,
    mark: HandlerMark,
}

impl<S> ServedService<S> {
    pub(crate) fn new(inner: S, mark: HandlerMark) -> Self {
        Self { inner, mark }
    }
}

impl<S: Service<R>, R> Service<R> for ServedService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        if SCOPE.get() == Scope::Absent {
            self.mark.is_called_elsewhere.store(true, Ordering::Relaxed);
        } else {
            SCOPE.set(Scope::Served);
        }
        self.inner.call(request)
    }
}
