//! What other tools are told: editors the language, shells the command line.

use std::io::{ErrorKind, Write};

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
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}
