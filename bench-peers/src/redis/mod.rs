//! Redis as the shared store: one redis-server on one core, everything else on the other.

mod central;
mod classic;
mod lease;
mod memory;
mod rejections;
mod server;

use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::bars::Bars;
use server::RedisProcess;

/// One round of one contender.
#[derive(Debug, Serialize)]
pub(crate) struct Round {
    work: &'static str,
    contender: &'static str,
    figure: f64,
    unit: &'static str,
}

/// All results of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rounds: Vec<Round>,
    bars: Bars,
}

impl Report {
    fn record(&mut self, work: &'static str, contender: &'static str, figure: f64, unit: &'static str) {
        println!("  {work:28} {contender:28} {figure:12.2} {unit}");
        self.rounds.push(Round { work, contender, figure, unit });
    }
}

pub(crate) fn run(json: Option<&Path>, only: &str) -> anyhow::Result<bool> {
    server::use_the_other_core()?;
    let redis = RedisProcess::start()?;
    println!("redis-server {}", redis.version()?);
    let mut report = Report::default();
    let mut decisions_per_second = None;
    for (name, run) in [
        ("central", central::run as fn(&RedisProcess, &mut Report) -> anyhow::Result<Option<f64>>),
        ("memory", |redis, report| memory::run(redis, report).map(|()| None)),
        ("rejections", |redis, report| rejections::run(redis, report).map(|()| None)),
    ] {
        if name.contains(only) {
            println!("\n{name}");
            redis.flush()?;
            decisions_per_second =
                decisions_per_second.or(run(&redis, &mut report).with_context(|| name.to_owned())?);
        }
    }
    if "lease".contains(only) {
        println!("\nlease");
        redis.flush()?;
        lease::run(&redis, &mut report, decisions_per_second).context("lease")?;
    }
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_vec_pretty(&report.rounds)?)?;
    }
    Ok(report.bars.close())
}
