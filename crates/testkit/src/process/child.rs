//! A process and its output.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};

use crate::wait::DEADLINE;

/// A running program. Its output is read continuously, so that it never blocks on a full pipe.
#[derive(Debug)]
pub struct Process {
    child: Child,
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
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}; {hint}"));
        let (to_output, output) = mpsc::channel();
        let (to_errors, errors) = mpsc::channel();
        read_lines(child.stdout.take().expect("a pipe"), to_output);
        read_lines(child.stderr.take().expect("a pipe"), to_errors);
        Self { child, output, errors }
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
        // A process that has ended needs no killing.
        let _ = self.child.kill();
        let _ = self.child.wait();
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
