//! The `tidegate` binary.

#![forbid(unsafe_code)]

mod admin;
mod args;
mod certificate;
mod check;
mod doctor;
mod exit;
mod explain;
mod file;
mod limits;
mod print;
mod serve;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use exit::CommandOutcome;

/// A request makes a few dozen small allocations and frees them on the same core; mimalloc is fast for this pattern.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            print::write_stderr(format_args!("tidegate: {error:#}\n"));
            CommandOutcome::Failure.into()
        }
    }
}

fn run(args: Args) -> anyhow::Result<CommandOutcome> {
    match args.command.unwrap_or_default() {
        Command::Serve(serve) => serve::run(&serve)?,
        Command::Check(check) => return check::run(&check),
        Command::Explain(explain) => return explain::run(&explain),
        Command::Limits(limits) => return limits::run(&limits),
        Command::Doctor(doctor) => return doctor::run(&doctor),
        Command::Ban(ban) => return admin::ban(&ban),
        Command::Unban(unban) => return admin::unban(&unban),
        Command::Bans(bans) => return admin::bans(&bans),
        Command::Override(replacement) => return admin::override_limit(&replacement),
        Command::Breaker(breaker) => return admin::breaker(&breaker),
        Command::Reset(reset) => return admin::reset(&reset),
        Command::Client(client) => return admin::client(&client),
        Command::Status(status) => return admin::status(&status),
        Command::Reload(reload) => return admin::reload(&reload),
        Command::Backup(backup) => return admin::backup(&backup),
        Command::Schema(schema) => print::print_schema(&schema)?,
        Command::Completions(completions) => print::print_completions(&completions)?,
    }
    Ok(CommandOutcome::Success)
}
