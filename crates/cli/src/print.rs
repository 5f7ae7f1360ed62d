//! Output: the policy schema for editors, completion scripts for shells, and writing to standard output and error.

use std::fmt::Display;
use std::io::{self, ErrorKind, StdoutLock, Write};

use anyhow::Context;
use clap::CommandFactory;

use crate::args::{Args, CompletionsArgs, SchemaArgs, SchemaFormat};

pub(crate) fn print_schema(args: &SchemaArgs) -> anyhow::Result<()> {
    match args.format {
        SchemaFormat::Json => print_text(&format!("{:#}\n", tidegate_policy::schema())),
        SchemaFormat::Markdown => print_text(&tidegate_policy::reference()),
    }
}

pub(crate) fn print_completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "tidegate", &mut script);
    print_text(&String::from_utf8_lossy(&script))
}

fn print_text(text: &str) -> anyhow::Result<()> {
    write_stdout(|output| output.write_all(text.as_bytes())).context("cannot write to standard output")
}

/// Writes to standard output. A reader that closes the pipe early (`| head`) is not an error.
pub(crate) fn write_stdout(write: impl FnOnce(&mut StdoutLock<'_>) -> io::Result<()>) -> io::Result<()> {
    match write(&mut io::stdout().lock()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes to standard error. Unlike `eprint!` it does not panic if that fails, for example on a full disk: there is no other way
/// to report it.
pub(crate) fn write_stderr(text: impl Display) {
    let _ = write!(io::stderr().lock(), "{text}");
}
