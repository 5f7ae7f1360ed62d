//! Redis as the shared store: one redis-server on one core, everything else on the other.

mod central;
mod classic;
mod latency;
mod lease;
mod memory;
mod rejections;
mod server;

use anyhow::Context;
use serde::Serialize;

use crate::arguments::Options;
use crate::bars::Bars;
use crate::executables;
use server::RedisProcess;

const PROGRAMS: [&str; 4] = ["redis-server", "taskset", "setpriv", "timeout"];

/// In the order in which they run: later ones may use the speed of central decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Central,
    Latency,
    Memory,
    Rejections,
    Lease,
}

impl Work {
    const ALL: [Self; 5] = [Self::Central, Self::Latency, Self::Memory, Self::Rejections, Self::Lease];

    fn name(self) -> &'static str {
        match self {
            Self::Central => "central",
            Self::Latency => "latency",
            Self::Memory => "memory",
            Self::Rejections => "rejections",
            Self::Lease => "lease",
        }
    }
}

/// The rounds of one contender.
#[derive(Debug, Serialize)]
struct Measurement {
    work: &'static str,
    contender: &'static str,
    unit: &'static str,
    rounds: Vec<f64>,
}

/// All results of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    measurements: Vec<Measurement>,
    bars: Bars,
}

impl Report {
    fn record(&mut self, work: &'static str, contender: &'static str, figure: f64, unit: &'static str) {
        println!("  {work:28} {contender:28} {figure:12.2} {unit}");
        let same = |one: &&mut Measurement| (one.work, one.contender, one.unit) == (work, contender, unit);
        match self.measurements.iter_mut().find(same) {
            Some(measurement) => measurement.rounds.push(figure),
            None => self.measurements.push(Measurement { work, contender, unit, rounds: vec![figure] }),
        }
    }
}

/// How often and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    rounds: usize,
    /// Central ones in a round.
    decisions: usize,
    /// A round with leases is long: a run has fewer.
    lease_rounds: usize,
    /// Decisions, clients and time of a round with leases are divided by this.
    lease_divisor: usize,
}

impl Pace {
    fn new(options: &Options) -> Self {
        let pace = if options.quick {
            Self { rounds: 3, decisions: 50_000, lease_rounds: 3, lease_divisor: 5 }
        } else {
            Self { rounds: 5, decisions: 100_000, lease_rounds: 1, lease_divisor: 1 }
        };
        let rounds = |default| options.rounds.unwrap_or(default);
        Self { rounds: rounds(pace.rounds), lease_rounds: rounds(pace.lease_rounds), ..pace }
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<bool> {
    options.require_one_of(&Work::ALL.map(Work::name))?;
    executables::install_missing(&PROGRAMS, None)?;
    server::use_the_other_core()?;
    let redis = RedisProcess::start()?;
    println!("redis-server {}", redis.version()?);
    let (mut report, pace) = (Report::default(), Pace::new(options));
    let mut speed = CentralSpeed(None);
    for work in Work::ALL.into_iter().filter(|work| options.includes(work.name())) {
        println!("\n{}", work.name());
        redis.flush()?;
        run_work(work, &redis, &mut report, pace, &mut speed).context(work.name())?;
    }
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_vec_pretty(&report.measurements)?)?;
    }
    Ok(report.bars.close())
}

/// Central decisions per second of a node, once they were measured.
#[derive(Debug)]
struct CentralSpeed(Option<f64>);

impl CentralSpeed {
    fn get(&mut self, redis: &RedisProcess, pace: Pace) -> anyhow::Result<f64> {
        let speed = match self.0 {
            Some(speed) => speed,
            None => central::speed(redis, pace)?,
        };
        self.0 = Some(speed);
        Ok(speed)
    }
}

fn run_work(
    work: Work,
    redis: &RedisProcess,
    report: &mut Report,
    pace: Pace,
    speed: &mut CentralSpeed,
) -> anyhow::Result<()> {
    match work {
        Work::Central => speed.0 = Some(central::run(redis, report, pace)?),
        Work::Latency => latency::run(redis, report, pace, speed.get(redis, pace)?)?,
        Work::Memory => memory::run(redis, report)?,
        Work::Rejections => rejections::run(redis, report)?,
        Work::Lease => lease::run(redis, report, pace, speed.get(redis, pace)?)?,
    }
    Ok(())
}
