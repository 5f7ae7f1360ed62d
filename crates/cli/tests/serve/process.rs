//! The real binary as a process, with its output.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// An event that does not come within this time never will.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// The binary, with a home of its own.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.env("XDG_STATE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("home"));
    command
}

pub(crate) fn tidegate(args: &[&str]) -> std::process::Output {
    command().args(args).output().unwrap()
}

/// `tidegate serve` on a free port.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: String,
    pub(crate) welcome: String,
    said: mpsc::Receiver<String>,
}

impl Server {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", args)
    }

    pub(crate) fn start_at(address: &str, args: &[&str]) -> Self {
        let mut command = command();
        command.args(["serve", "--listen", address]).args(args);
        Self::spawn(&mut command)
    }

    /// Any command that becomes `tidegate serve`.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut welcome = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let errors = BufReader::new(process.stderr.take().unwrap());
        let (say, said) = mpsc::channel();
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                // The test may have ended.
                let _ = say.send(line);
            }
        });
        let mut line = 0;
        while !welcome[line..].contains("Ctrl-C") {
            line = welcome.len();
            assert_ne!(output.read_line(&mut welcome).unwrap(), 0, "it ended after {welcome:?}");
        }
        let address = welcome.lines().next().and_then(|line| line.rsplit_once("://")).unwrap().1.to_owned();
        Self { process, address, welcome, said }
    }

    /// The same with its log on standard output, where it says also where it listens.
    pub(crate) fn start_logging(args: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (say, said) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The test may have ended.
                let _ = say.send(line);
            }
        });
        let mut server = Self { process, address: String::new(), welcome: String::new(), said };
        let started = server.hears("\"started\"");
        let address = started.split("http://").nth(1).unwrap();
        server.address = address.chars().take_while(|c| *c != '"').collect();
        server
    }

    /// Waits until it says `text` among its messages; the whole line.
    pub(crate) fn hears(&self, text: &str) -> String {
        loop {
            let line = self.said.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("nobody said {text:?}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.process.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    pub(crate) fn ends(&mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }

    /// How much memory it has in use, in KiB.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A policy file in a folder of its own, removed at the end.
pub(crate) struct Policy {
    folder: PathBuf,
}

impl Policy {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let policy = Self { folder };
        policy.write(text);
        policy
    }

    pub(crate) fn path(&self) -> String {
        self.folder.join("policy.yaml").to_str().unwrap().to_owned()
    }

    /// Another file in the same folder.
    pub(crate) fn beside(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    /// Puts another file in its place, at once.
    pub(crate) fn write(&self, text: &str) {
        let new = self.folder.join("policy.yaml.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.path()).unwrap();
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
