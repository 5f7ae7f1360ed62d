//! The thread that writes the log, so that no core waits for a disk.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use tidegate_store::Clock;

use super::json::JsonLine;
use crate::metrics::Counter;

/// Where the log is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// A file; lines are appended to it.
    File(PathBuf),
}

impl Destination {
    pub(super) fn open(&self) -> io::Result<Output> {
        Ok(match self {
            Self::Stderr => Output::Stderr,
            Self::Stdout => Output::Stdout,
            Self::File(path) => Output::File(open_file(path)?),
        })
    }
}

/// Opens a file to append to. Its lines name clients, so only its owner and its group can read a new one.
fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o640);
    if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        // Opening a FIFO waits for a reader. With this flag it fails without one.
        drop(options.clone().custom_flags(libc::O_NONBLOCK).open(path)?);
    }
    options.open(path)
}

/// An open destination.
#[derive(Debug)]
pub(super) enum Output {
    Stderr,
    Stdout,
    File(File),
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stderr => io::stderr().write(bytes),
            Self::Stdout => io::stdout().write(bytes),
            Self::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().flush(),
            Self::Stdout => io::stdout().flush(),
            Self::File(file) => file.flush(),
        }
    }
}

/// A message to the thread.
pub(super) enum Message {
    Line(Box<[u8]>),
    /// Write to this output from now on.
    Reopen(Output),
    /// Reply when all messages before this one are written.
    Flush(Sender<()>),
}

/// Writes until all senders are dropped. A line that cannot be written is dropped and counted: there is nowhere else to
/// report it.
pub(super) fn run(lines: &Receiver<Message>, output: Output, dropped: &Arc<Counter>, clock: &Arc<dyn Clock>) {
    let mut output = BufWriter::with_capacity(64 << 10, output);
    let mut reported = 0;
    loop {
        let message = match lines.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                let lost = dropped.get();
                if lost > reported {
                    let mut line = JsonLine::new(clock.now(), "log_lines_lost");
                    line.number("count", lost - reported);
                    reported = lost;
                    let _ = output.write_all(&line.into_bytes());
                }
                // The queue is empty: make the lines visible before waiting.
                let _ = output.flush();
                match lines.recv() {
                    Ok(message) => message,
                    Err(_) => break,
                }
            }
        };
        match message {
            Message::Line(line) => {
                if output.write_all(&line).is_err() {
                    dropped.increment();
                }
            }
            Message::Reopen(new_output) => {
                let _ = output.flush();
                output = BufWriter::with_capacity(64 << 10, new_output);
            }
            Message::Flush(done) => {
                let _ = output.flush();
                let _ = done.send(());
            }
        }
    }
    let _ = output.flush();
}
