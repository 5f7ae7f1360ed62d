//! Metrics of the process, read from `/proc`.

use std::fs;

use super::exposition::{Exposition, MetricKind};

/// Clock ticks per second (`USER_HZ`), which is the same on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Adds the metrics that can be read. On systems other than Linux that is only the start time.
pub(super) fn write(exposition: &mut Exposition, started_at: f64) {
    exposition.single(
        "process_start_time_seconds",
        MetricKind::Gauge,
        "Start time of the process, in Unix seconds.",
        started_at,
    );
    if let Some((cpu, threads)) = stat() {
        exposition.single(
            "process_cpu_seconds_total",
            MetricKind::Counter,
            "User and system CPU time, in seconds.",
            cpu,
        );
        exposition.single("process_threads", MetricKind::Gauge, "Number of threads.", threads);
    }
    if let Some(status) = fs::read_to_string("/proc/self/status").ok().as_deref() {
        let size = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1_024)
        };
        if let Some(resident) = size("VmRSS:") {
            exposition.single(
                "process_resident_memory_bytes",
                MetricKind::Gauge,
                "Resident memory, in bytes.",
                resident,
            );
        }
        if let Some(size) = size("VmSize:") {
            exposition.single(
                "process_virtual_memory_bytes",
                MetricKind::Gauge,
                "Virtual memory, in bytes.",
                size,
            );
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // Do not count the descriptor of the directory itself.
        let open = open.count().saturating_sub(1);
        exposition.single("process_open_fds", MetricKind::Gauge, "Open file descriptors.", open);
    }
    if let Some(max) = max_open_files() {
        exposition.single("process_max_fds", MetricKind::Gauge, "Limit of open file descriptors.", max);
    }
}

/// CPU time in seconds, and the number of threads.
fn stat() -> Option<(f64, u64)> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The process name may contain spaces and parentheses.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u32>().ok();
    let ticks = f64::from(number(11)?) + f64::from(number(12)?);
    Some((ticks / TICKS_PER_SECOND, number(17)?.into()))
}

fn max_open_files() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}
