//! The same work on Tidegate and on its peers, in one run, round by round in turn.

#![allow(clippy::disallowed_methods, reason = "a bench measures wall time")]

mod arguments;
mod bars;
mod clocks;
mod decide;
mod executables;
mod gateway;
mod redis;
mod resilience;
mod selection;
mod service;

use std::process::ExitCode;

use arguments::{Arguments, Bench};
use clap::Parser;

fn main() -> ExitCode {
    let result = match Arguments::parse().bench {
        Bench::Decide(options) => decide::run(&options),
        Bench::Gateway { options, peers } => gateway::run(&options, &peers),
        Bench::Redis(options) => redis::run(&options),
        Bench::Resilience(options) => resilience::run(options),
        Bench::Service { options, peers, programs } => service::run(&options, &peers, &programs),
        Bench::Prepare => prepare().map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn prepare() -> anyhow::Result<()> {
    gateway::prepare()?;
    service::prepare()
}
