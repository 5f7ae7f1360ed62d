//! The one binary.

#![forbid(unsafe_code)]

mod args;
mod exit;
mod serve;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use exit::Exit;

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => Exit::Done.into(),
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            Exit::Failed.into()
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    match args.command.unwrap_or_default() {
        Command::Serve(serve) => serve::run(&serve),
    }
}
