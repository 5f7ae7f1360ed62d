//! What other tools are told: editors the language, shells the command line.

use std::io::{self, ErrorKind, StdoutLock, Write};

use anyhow::Context;
use clap::CommandFactory;

use crate::args::{Args, CompletionsArgs, SchemaArgs, SchemaFormat};

pub(crate) fn schema(args: &SchemaArgs) -> anyhow::Result<()> {
    match args.format {
        SchemaFormat::Json => print(&format!("{:#}\n", tidegate_policy::schema())),
        SchemaFormat::Markdown => print(&tidegate_policy::reference()),
    }
}

pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "tidegate", &mut script);
    print(&String::from_utf8_lossy(&script))
}

fn print(text: &str) -> anyhow::Result<()> {
    to_stdout(|output| output.write_all(text.as_bytes())).context("cannot write to standard output")
}

/// Writes to standard output. It is no error that whoever reads closes the pipe: it has seen enough.
pub(crate) fn to_stdout(write: impl FnOnce(&mut StdoutLock<'_>) -> io::Result<()>) -> io::Result<()> {
    match write(&mut io::stdout().lock()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
