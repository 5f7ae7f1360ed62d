//! Metrics of the process, read from `/proc`.

use std::fs;
use std::time::Duration;

use super::exposition::Exposition;

/// The length of a clock tick (1 / `USER_HZ`), which is the same on every Linux.
const TICK_MILLIS: u64 = 10;

/// Adds the metrics that can be read. On systems other than Linux that is only the start time.
pub(super) fn write(exposition: &mut Exposition, started_at: f64) {
    exposition
        .gauge("process_start_time_seconds", "Start time of the process, in Unix seconds.")
        .value(started_at);
    if let Some((cpu, threads)) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(parse_stat) {
        exposition.counter("process_cpu_seconds_total", "User and system CPU time, in seconds.").value(cpu);
        exposition.gauge("process_threads", "Number of threads.").value(threads);
    }
    if let Some(status) = fs::read_to_string("/proc/self/status").ok().as_deref() {
        let size = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1_024)
        };
        if let Some(resident) = size("VmRSS:") {
            exposition.gauge("process_resident_memory_bytes", "Resident memory, in bytes.").value(resident);
        }
        if let Some(size) = size("VmSize:") {
            exposition.gauge("process_virtual_memory_bytes", "Virtual memory, in bytes.").value(size);
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // Do not count the descriptor of the directory itself.
        let open = open.count().saturating_sub(1);
        exposition.gauge("process_open_fds", "Open file descriptors.").value(open);
    }
    if let Some(max) = max_open_files() {
        exposition.gauge("process_max_fds", "Limit of open file descriptors.").value(max);
    }
}

/// CPU time in seconds, and the number of threads.
fn parse_stat(stat: &str) -> Option<(f64, u64)> {
    // The process name may contain spaces and parentheses.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let ticks = number(11)?.checked_add(number(12)?)?;
    Some((Duration::from_millis(ticks.checked_mul(TICK_MILLIS)?).as_secs_f64(), number(17)?))
}

fn max_open_files() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_years_on_many_cores_is_read() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 0 0 0 5000000000 25 0 0 20 0 9 0 1 1 1";
        assert_eq!(parse_stat(stat), Some((50_000_000.25, 9)));
        assert_eq!(parse_stat("7 (a) S"), None);
    }
}
