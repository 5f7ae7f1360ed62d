//! What the process takes of its machine, as the kernel tells it.

use std::fs;

use super::exposition::{Exposition, MetricKind};

/// Ticks of the kernel's accounting in a second: fixed for programs on every Linux.
const TICKS: f64 = 100.0;

/// Adds what can be read; elsewhere than on Linux that is nothing.
pub(super) fn write(page: &mut Exposition, started: f64) {
    page.single(
        "process_start_time_seconds",
        MetricKind::Gauge,
        "When the process started, in Unix time.",
        started,
    );
    if let Some((cpu, threads)) = stat() {
        page.single(
            "process_cpu_seconds_total",
            MetricKind::Counter,
            "User and system time in seconds.",
            cpu,
        );
        page.single("process_threads", MetricKind::Gauge, "Threads.", threads);
    }
    if let Some(status) = fs::read_to_string("/proc/self/status").ok().as_deref() {
        let size = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1_024)
        };
        if let Some(resident) = size("VmRSS:") {
            page.single("process_resident_memory_bytes", MetricKind::Gauge, "Memory in use.", resident);
        }
        if let Some(size) = size("VmSize:") {
            page.single("process_virtual_memory_bytes", MetricKind::Gauge, "Memory that is mapped.", size);
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // The directory that is being read is one of them.
        let open = open.count().saturating_sub(1);
        page.single("process_open_fds", MetricKind::Gauge, "Open file descriptors.", open);
    }
    if let Some(most) = most_files() {
        page.single("process_max_fds", MetricKind::Gauge, "File descriptors that may be open.", most);
    }
}

/// Processor time in seconds, and threads.
fn stat() -> Option<(f64, u64)> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name may hold anything, spaces and brackets included.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u32>().ok();
    let ticks = f64::from(number(11)?) + f64::from(number(12)?);
    Some((ticks / TICKS, number(17)?.into()))
}

fn most_files() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}
