//! Processor time. On a shared machine wall time is mostly that of others.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// The processor time of this thread.
pub(crate) fn thread_time() -> Duration {
    duration(clock_gettime(ClockId::ThreadCPUTime))
}

/// The processor time of this process.
pub(crate) fn process_time() -> Duration {
    duration(clock_gettime(ClockId::ProcessCPUTime))
}

fn duration(time: Timespec) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}
