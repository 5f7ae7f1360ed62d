//! What is printed while rows are measured.

#![allow(clippy::disallowed_methods, reason = "the elapsed time of a run is wall time")]

use std::time::Instant;

/// A run of several rows.
#[derive(Debug)]
pub(crate) struct Progress {
    start: Instant,
    done: usize,
    all: usize,
}

impl Progress {
    pub(crate) fn start(all: usize) -> Self {
        Self { start: Instant::now(), done: 0, all }
    }

    /// Prints the number, the time and the name of the next row.
    pub(crate) fn next(&mut self, name: &str) {
        self.done += 1;
        println!("[{:2}/{}]  {}  {name}", self.done, self.all, self.elapsed());
    }

    pub(crate) fn elapsed(&self) -> String {
        let seconds = self.start.elapsed().as_secs();
        format!("{}:{:02}", seconds / 60, seconds % 60)
    }
}

/// How busy the machine is. The load of the benchmarks themselves is about 2.
pub(crate) fn machine_load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("load average {}", load.split(' ').next().unwrap_or("unknown"))
}
