//! A process with its children, and its output.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::wait::DEADLINE;

/// A running program. Its output is read continuously, so that it never blocks on a full pipe. It is the leader of a process
/// group that ends with this value, so that its children, such as the workers of nginx, do not stay behind. The group also ends
/// if the test itself is killed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    guard: Child,
    output: Receiver<String>,
    errors: Receiver<String>,
}

impl Process {
    /// Starts `command`; `hint` says how to get the program if it is missing.
    pub fn start(command: &mut Command, hint: &str) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}; {hint}"));
        let (to_output, output) = mpsc::channel();
        let (to_errors, errors) = mpsc::channel();
        read_lines(child.stdout.take().expect("a pipe"), to_output);
        read_lines(child.stderr.take().expect("a pipe"), to_errors);
        let guard = guard_group(child.id());
        Self { child, guard, output, errors }
    }

    /// Takes lines of standard output until `find` finds something; `None` if the output ends or the deadline passes.
    pub fn find_output<T>(&self, find: impl FnMut(&str) -> Option<T>) -> Option<T> {
        find_line(&self.output, find)
    }

    /// The same with standard error.
    pub fn find_error<T>(&self, find: impl FnMut(&str) -> Option<T>) -> Option<T> {
        find_line(&self.errors, find)
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `-TERM`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {name} failed");
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("a child")
    }

    /// The physical memory that it uses, in KiB. Linux only.
    pub fn resident_kib(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The most physical memory that it has used so far, in KiB. Linux only.
    pub fn peak_resident_kib(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("a process");
        let line = status.lines().find(|line| line.starts_with(name)).expect("its memory");
        line.split_whitespace().nth(1).and_then(|size| size.parse().ok()).expect("a number")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The guard would kill whatever has the number of the group later on.
        let _ = self.guard.kill();
        let _ = self.guard.wait();
        kill_group(self.child.id());
        let _ = self.child.wait();
    }
}

/// Starts a shell that kills the process group when the pipe to it is closed: at the latest, when this process ends.
fn guard_group(group: u32) -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", "read _; kill -s KILL -- \"-$0\"", &group.to_string()]);
    // A group of its own: Ctrl-C must not end the guard before the group.
    shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.spawn().expect("a shell")
}

/// Kills all processes of the group. A group that has ended needs no killing.
fn kill_group(leader: u32) {
    if let Some(group) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

fn read_lines(from: impl Read + Send + 'static, to: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // The test may have ended.
            let _ = to.send(line);
        }
    });
}

fn find_line<T>(lines: &Receiver<String>, mut find: impl FnMut(&str) -> Option<T>) -> Option<T> {
    loop {
        if let Some(found) = find(&lines.recv_timeout(DEADLINE).ok()?) {
            return Some(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::eventually_blocking;

    /// Starts a program with a child, as nginx does with its workers. Returns the id of the child.
    fn start_parent() -> (Process, u32) {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]);
        let process = Process::start(&mut command, "");
        let child = process.find_output(|line| line.parse().ok()).expect("the id of the child");
        assert!(is_running(child));
        (process, child)
    }

    fn is_running(id: u32) -> bool {
        // A process that has ended is a zombie until its parent asks for its result.
        std::fs::read_to_string(format!("/proc/{id}/stat"))
            .is_ok_and(|stat| !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
    }

    #[test]
    fn dropped_process_ends_with_its_children() {
        let (process, child) = start_parent();
        drop(process);
        eventually_blocking("the child ends", || !is_running(child));
    }

    #[test]
    fn process_group_ends_when_the_pipe_to_its_guard_closes() {
        let (mut process, child) = start_parent();
        drop(process.guard.stdin.take());
        process.wait();
        eventually_blocking("the child ends", || !is_running(child));
    }
}
