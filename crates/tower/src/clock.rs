//! The clock that all layers share.

use std::sync::{Arc, LazyLock};

use tidegate_store::{Clock, SystemClock};

/// The clock that every handle and layer uses unless it is given another one.
///
/// It is one clock for the whole process: a [`SystemClock`] takes the wall time when it is created, so a deadline that one
/// clock has computed must not be compared with another one.
pub fn system_clock() -> Arc<dyn Clock> {
    static CLOCK: LazyLock<Arc<SystemClock>> = LazyLock::new(Arc::default);
    Arc::clone(&CLOCK) as Arc<dyn Clock>
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_of_all_layers_is_the_same() {
        assert!(Arc::ptr_eq(&system_clock(), &system_clock()));
    }
}
