//! The thread that writes lines, so that no core waits for a disk.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use tidegate_store::Clock;

use super::json::Object;
use crate::metrics::Counter;

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// The end of a file.
    File(PathBuf),
}

impl Destination {
    pub(super) fn open(&self) -> io::Result<Output> {
        Ok(match self {
            Self::Stderr => Output::Stderr,
            Self::Stdout => Output::Stdout,
            Self::File(path) => Output::File(OpenOptions::new().create(true).append(true).open(path)?),
        })
    }
}

/// What is open.
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

/// What the thread is told.
pub(super) enum Message {
    Line(Box<[u8]>),
    /// From here on to there.
    Turn(Output),
    /// Says when everything before it is written.
    Flush(Sender<()>),
}

/// Writes until nobody is left who could send anything. A line that cannot be written is counted and forgotten: there
/// is nowhere to complain.
pub(super) fn run(lines: &Receiver<Message>, output: Output, dropped: &Arc<Counter>, clock: &Arc<dyn Clock>) {
    let mut output = BufWriter::with_capacity(64 << 10, output);
    let mut told = 0;
    loop {
        let message = match lines.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                let lost = dropped.get();
                if lost > told {
                    let mut object = Object::new(clock.now(), "log_lines_lost");
                    object.number("count", lost - told);
                    told = lost;
                    let _ = output.write_all(&object.into_line());
                }
                // Whoever reads sees what there is.
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
                    dropped.one();
                }
            }
            Message::Turn(other) => {
                let _ = output.flush();
                output = BufWriter::with_capacity(64 << 10, other);
            }
            Message::Flush(done) => {
                let _ = output.flush();
                let _ = done.send(());
            }
        }
    }
    let _ = output.flush();
}
