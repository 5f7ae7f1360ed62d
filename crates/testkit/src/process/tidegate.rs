//! The real `tidegate serve`.

use std::process::{Command, ExitStatus};

use super::Process;

/// A running gateway.
#[derive(Debug)]
pub struct Tidegate {
    process: Process,
    /// Where it listens.
    pub address: String,
    /// What it prints when it has started; empty if its log goes to standard output.
    pub startup_output: String,
    logs_to_output: bool,
}

impl Tidegate {
    /// Starts a command that becomes `tidegate serve`, and waits until it listens.
    pub fn start(command: &mut Command) -> Self {
        let process = Process::start(command, "");
        let mut startup_output = String::new();
        let is_ready = process.find_output(|line| {
            startup_output.push_str(line);
            startup_output.push('\n');
            line.contains("Ctrl-C").then_some(())
        });
        assert!(
            is_ready.is_some(),
            "it ended after {startup_output:?} {:?}",
            process.find_error(|line| Some(line.to_owned()))
        );
        let address = startup_output.lines().next().and_then(|line| line.rsplit_once("://"));
        let address = address.expect("an address").1.to_owned();
        Self { process, address, startup_output, logs_to_output: false }
    }

    /// The same for a policy whose log goes to standard output, where it also says where it listens.
    pub fn start_logging(command: &mut Command) -> Self {
        let process = Process::start(command, "");
        let (address, startup_output) = (String::new(), String::new());
        let mut server = Self { process, address, startup_output, logs_to_output: true };
        let started = server.wait_for_log("\"started\"");
        let address = started.split("http://").nth(1).expect("an address");
        server.address = address.chars().take_while(|c| *c != '"').collect();
        server
    }

    /// Takes lines of the log up to one that contains `text`, and returns it.
    pub fn wait_for_log(&self, text: &str) -> String {
        let find = |line: &str| line.contains(text).then(|| line.to_owned());
        let found =
            if self.logs_to_output { self.process.find_output(find) } else { self.process.find_error(find) };
        found.unwrap_or_else(|| panic!("nothing logged contains {text:?}"))
    }

    /// Sends a signal, such as `-TERM`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }

    /// The physical memory that it uses, in KiB.
    pub fn resident_kib(&self) -> u64 {
        self.process.resident_kib()
    }

    /// The most physical memory that it has used so far, in KiB.
    pub fn peak_resident_kib(&self) -> u64 {
        self.process.peak_resident_kib()
    }
}
