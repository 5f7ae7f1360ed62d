//! Asks memory for a line before it is needed. The only unsafe code of this crate.

use super::bucket::Bucket;

/// Starts loading the line that `bucket` is; nothing waits for it.
#[inline]
pub(super) fn prefetch(bucket: &Bucket) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    #[expect(unsafe_code, reason = "there is no safe prefetch")]
    // SAFETY: a prefetch reads no value and never faults, and the address is a live reference's.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(bucket.as_ptr().cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = bucket.as_ptr();
}
