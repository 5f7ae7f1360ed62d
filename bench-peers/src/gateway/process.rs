//! Servers for as long as they are held: pinned to a core, bounded in time, stopped with all their children.

use std::fs::{self, DirEntry, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Pid, Signal, kill_process_group};

/// Where a process runs. One core is the proxy's alone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Core {
    Proxy,
    Rest,
}

/// No server outlives this, whatever becomes of the bench.
const LONGEST: &str = "600";
/// A server that is not up by then is not coming.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server may take to stop.
const GRACE: Duration = Duration::from_secs(1);

/// A command on its core and bounded in time. It ends with the bench, even a killed one, and its group has
/// nobody else in it: `timeout` leads a group of its own and passes signals on to it.
pub(crate) fn bounded(core: Core, seconds: &str, program: &Path) -> Command {
    let core = match core {
        Core::Proxy => "0",
        Core::Rest => "1",
    };
    let mut command = Command::new("setpriv");
    command.args([
        "--pdeathsig",
        "TERM",
        "timeout",
        "--kill-after",
        "2",
        seconds,
        "taskset",
        "--cpu-list",
        core,
    ]);
    command.arg(program).stdin(Stdio::null());
    command
}

/// CPU time that the proxy's core has spent on anything at all.
pub(crate) fn spent_on_proxy_core() -> anyhow::Result<Duration> {
    let stat = fs::read_to_string("/proc/stat").context("this needs Linux")?;
    spent(&stat).context("/proc/stat is not as expected")
}

fn spent(stat: &str) -> Option<Duration> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu0 "))?;
    let fields: Option<Vec<u64>> = line.split_whitespace().map(|field| field.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; then guest time, which user time includes.
    let [user, nice, system, _, _, irq, softirq, steal, ..] = fields?[..] else { return None };
    Some(of_ticks(user + nice + system + irq + softirq + steal))
}

fn of_ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 1000 / clock_ticks_per_second())
}

/// A running server and all the processes it started.
#[derive(Debug)]
pub(crate) struct Server {
    leader: Child,
    log: PathBuf,
}

/// What a server has used so far, and holds now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    pub(crate) resident_bytes: u64,
}

impl Server {
    /// Starts `program`, its output going to `log`, and waits until `ready`.
    pub(crate) fn start(
        core: Core,
        program: &Path,
        arguments: &[&str],
        log: PathBuf,
        ready: impl Fn() -> bool,
    ) -> anyhow::Result<Self> {
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = bounded(core, LONGEST, program);
        command.args(arguments).stdout(output.try_clone()?).stderr(output);
        let mut server = Self { leader: command.spawn().context("cannot start setpriv")?, log };
        let start = Instant::now();
        while !ready() {
            if let Some(status) = server.leader.try_wait()? {
                bail!("it ended at once ({status}): {}", server.last_log_lines());
            }
            if start.elapsed() > START_TIMEOUT {
                bail!("it did not respond within {} s: {}", START_TIMEOUT.as_secs(), server.last_log_lines());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// The end of its log, on one line.
    fn last_log_lines(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(4)..].join(" | ");
        if last.is_empty() { "it said nothing".to_owned() } else { last }
    }

    pub(crate) fn is_running(&mut self) -> anyhow::Result<bool> {
        Ok(self.leader.try_wait()?.is_none())
    }

    /// CPU time and memory of the whole group.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        let mut sum = Usage::default();
        for entry in fs::read_dir("/proc").context("this needs Linux")? {
            let process = entry?.path();
            // A process that has just ended is nothing to count.
            let Ok(stat) = fs::read_to_string(process.join("stat")) else { continue };
            if let Some(usage) = usage_in_group(&stat, self.leader.id()) {
                // Ticks are a fiftieth of a short round, and half of the time that a busy machine leaves to a server in it.
                sum.cpu += threads_cpu(&process).unwrap_or(usage.cpu);
                sum.resident_bytes += usage.resident_bytes;
            }
        }
        Ok(sum)
    }
}

/// CPU time of all threads of a process, in nanoseconds, if the kernel keeps it. Threads that have ended are not included: the servers'
/// threads live as long as they do.
fn threads_cpu(process: &Path) -> Option<Duration> {
    let thread = |entry: io::Result<DirEntry>| {
        let statistics = fs::read_to_string(entry.ok()?.path().join("schedstat")).ok()?;
        statistics.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    };
    fs::read_dir(process.join("task")).ok()?.map(thread).sum()
}

/// The times in a line of `/proc/PID/stat`, if the process is in this group.
fn usage_in_group(stat: &str, group: u32) -> Option<Usage> {
    // The name, in brackets, may hold anything; state, parent and group follow it.
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
    if number(2)? != u64::from(group) {
        return None;
    }
    let cpu = of_ticks(number(11)? + number(12)?);
    Some(Usage { cpu, resident_bytes: number(21)? * page_size() as u64 })
}

impl Drop for Server {
    fn drop(&mut self) {
        // Asked first, so that its children are waited for by itself; errors mean that it is gone already.
        let group = Pid::from_child(&self.leader);
        let _ = kill_process_group(group, Signal::TERM);
        let start = Instant::now();
        while matches!(self.leader.try_wait(), Ok(None)) && start.elapsed() < GRACE {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.leader.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_past_a_name_with_brackets() {
        let stat = "7 (a) (b) S 1 42 42 0 -1 0 0 0 0 0 150 50 0 0 20 0 1 0 9 1000 3 0 0";
        let usage = usage_in_group(stat, 42).unwrap();
        assert_eq!(usage.cpu, of_ticks(200));
        assert_eq!(usage.resident_bytes, 3 * page_size() as u64);
        assert!(usage_in_group(stat, 43).is_none());
    }

    #[test]
    fn threads_of_this_process_have_used_processor_time() {
        assert!(threads_cpu(Path::new("/proc/self")).is_some_and(|time| !time.is_zero()));
        assert_eq!(threads_cpu(Path::new("/proc/none")), None);
    }

    #[test]
    fn time_spent_is_all_but_idle_and_waiting() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 1000 1000 4 5 6 7 8\n";
        assert_eq!(spent(stat), Some(of_ticks(21)));
        assert_eq!(spent("cpu  9 9"), None);
    }
}
