//! Why a call was not made.

pub use tidegate_core::BreakerOpen;
