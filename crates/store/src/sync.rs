//! The locks and atomics of this crate: from std, or from loom in its tests.

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread::{yield_now, yield_now as spin},
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop as spin,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread::yield_now,
};
