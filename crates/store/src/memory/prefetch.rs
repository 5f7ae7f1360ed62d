//! Memory hints. They change no value; this is the only unsafe code of the crate.

use super::cache_line::CacheLine;

/// Starts loading a line without waiting for it.
#[inline]
pub(super) fn prefetch(line: &CacheLine) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    #[expect(unsafe_code, reason = "there is no safe prefetch")]
    // SAFETY: a prefetch reads no value and never faults, and the address comes from a live reference.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = line.as_ptr();
}

/// Requests huge pages for the memory of these lines, so that page table entries take less cache. The system may ignore
/// the request.
#[cfg(all(target_os = "linux", not(loom)))]
pub(super) fn in_huge_pages(lines: &mut Vec<CacheLine>) {
    const PAGE: usize = 4_096;
    let room = lines.spare_capacity_mut();
    let start = room.as_mut_ptr().cast::<u8>();
    let before = start.align_offset(PAGE);
    let Some(bytes) = size_of_val(room).checked_sub(before) else { return };
    #[expect(unsafe_code, reason = "there is no safe madvise")]
    // SAFETY: the range lies within one allocation that is borrowed mutably, and this advice leaves the
    // contents of memory unchanged. Failure is harmless.
    unsafe {
        libc::madvise(start.wrapping_add(before).cast(), bytes / PAGE * PAGE, libc::MADV_HUGEPAGE);
    }
}

#[cfg(not(all(target_os = "linux", not(loom))))]
pub(super) fn in_huge_pages(_: &mut Vec<CacheLine>) {}
