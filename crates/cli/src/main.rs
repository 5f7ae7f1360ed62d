//! The one binary.

#![forbid(unsafe_code)]

mod admin;
mod args;
mod certificate;
mod check;
mod exit;
mod explain;
mod file;
mod print;
mod serve;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use exit::Exit;

/// A request allocates some dozen small things and frees them on the same core: this one is made for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            Exit::Failed.into()
        }
    }
}

fn run(args: Args) -> anyhow::Result<Exit> {
    match args.command.unwrap_or_default() {
        Command::Serve(serve) => serve::run(&serve)?,
        Command::Check(check) => return check::run(&check),
        Command::Explain(explain) => return explain::run(&explain),
        Command::Ban(ban) => return admin::ban(&ban),
        Command::Unban(unban) => return admin::unban(&unban),
        Command::Bans(bans) => return admin::bans(&bans),
        Command::Override(instead) => return admin::override_limit(&instead),
        Command::Reset(reset) => return admin::reset(&reset),
        Command::Status(status) => return admin::status(&status),
        Command::Backup(backup) => return admin::backup(&backup),
        Command::Schema(schema) => print::schema(&schema)?,
        Command::Completions(completions) => print::completions(&completions)?,
    }
    Ok(Exit::Done)
}
