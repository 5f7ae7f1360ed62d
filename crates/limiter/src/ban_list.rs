//! Bans that operators have added at runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, Guard};
use tidegate_policy::Bans;

/// The active bans in addition to those of the policy. Usually there are none; a lookup then costs one atomic load.
#[derive(Debug, Default)]
pub(crate) struct BanList {
    any: AtomicBool,
    bans: ArcSwap<Bans>,
}

impl BanList {
    pub(crate) fn replace(&self, bans: Bans) {
        let any = !bans.is_empty();
        self.bans.store(Arc::new(bans));
        // Stored after the bans: a reader that sees `true` sees the bans too.
        self.any.store(any, Ordering::Release);
    }

    pub(crate) fn all(&self) -> Arc<Bans> {
        self.bans.load_full()
    }

    /// `None` if there are none.
    #[inline]
    pub(crate) fn any(&self) -> Option<Guard<Arc<Bans>>> {
        self.any.load(Ordering::Acquire).then(|| self.bans.load())
    }
}
