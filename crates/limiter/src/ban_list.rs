//! Whom operators have banned while the process runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, Guard};
use tidegate_policy::Bans;

/// The bans in force beside those of the policy. Usually there are none, and then a lookup costs one load.
#[derive(Debug, Default)]
pub(crate) struct BanList {
    any: AtomicBool,
    bans: ArcSwap<Bans>,
}

impl BanList {
    pub(crate) fn replace(&self, bans: Bans) {
        let any = !bans.is_empty();
        self.bans.store(Arc::new(bans));
        // After the bans: whoever sees that there are some sees which.
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
