//! The decision service against throttlecrab-server, redis-server and limitador-server: the server on the first core, the load
//! generator, which is the same for all, on the second.

mod authorize;
mod contender;
mod grpc;
mod load;
mod memory;
mod pipeline;
mod programs;
mod replies;
mod report;
mod requests;
mod work;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use contender::{Contender, RunningContender};
use load::{LoadResult, Until};
use programs::Programs;
use report::{ContenderRounds, ServiceRound};
use rustix::thread::{CpuSet, sched_setaffinity};
use work::{ServiceWork, WORKS};

use crate::arguments::{Options, PeerFilter, ProgramPaths};
use crate::bars::Bars;
use crate::gateway::process::spent_on_proxy_core;

/// How often and how long.
#[derive(Clone, Copy, Debug)]
struct Pace {
    rounds: usize,
    time: Duration,
}

/// Builds Tidegate and installs the other programs.
pub(crate) fn prepare() -> anyhow::Result<()> {
    Programs::find(&ProgramPaths::default()).map(drop)
}

pub(crate) fn run(options: &Options, peers: &PeerFilter, paths: &ProgramPaths) -> anyhow::Result<bool> {
    let cores = thread::available_parallelism()?.get();
    ensure!(cores >= 2, "the server and the load need a core each; there is {cores}");
    let others = [pipeline::NAME, memory::NAME, authorize::NAME];
    let names: Vec<_> = WORKS.iter().map(|work| work.name).chain(others).collect();
    options.require_one_of(&names)?;
    let programs = Programs::find(paths)?;
    programs.print_versions();
    use_second_core()?;
    let (rounds, millis) = if options.quick { (3, 500) } else { (5, 2000) };
    let rounds = options.rounds.unwrap_or(rounds);
    let pace = Pace { rounds, time: Duration::from_millis(millis) };
    println!("\nmedians of {rounds} rounds of {:.1} s, the servers in turn", pace.time.as_secs_f64());

    let mut bars = Bars::default();
    let mut all = Vec::new();
    for work in WORKS.iter().filter(|work| options.includes(work.name)) {
        let measured = measure(work, &programs, pace, peers);
        report::work(work, &measured, &mut bars);
        all.extend(measured);
    }
    if options.includes(pipeline::NAME) {
        all.extend(pipeline::run(&programs, pace.time, &mut bars));
    }
    if options.includes(memory::NAME) {
        all.extend(memory::run(&programs, &mut bars));
    }
    if options.includes(authorize::NAME) {
        all.extend(authorize::run(&programs, pace, &mut bars));
    }
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_vec_pretty(&all)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    report::warn_if_not_idle(&all);
    Ok(bars.close())
}

/// All contenders of a work, round by round in turn. One that fails is left out, with the reason.
fn measure(work: &ServiceWork, programs: &Programs, pace: Pace, peers: &PeerFilter) -> Vec<ContenderRounds> {
    let contenders = work.contenders.iter().filter(|(contender, _)| peers.includes(contender.name()));
    let mut field: Vec<_> =
        contenders.map(|(contender, _)| start(*contender, work, programs, pace)).collect();
    for _ in 0..pace.rounds {
        for (running, rounds) in &mut field {
            let Some(contender) = running else { continue };
            match round(contender, work.connections, pace.time) {
                Ok(round) => rounds.rounds.push(round),
                Err(error) => {
                    rounds.failed = Some(format!("{error:#}"));
                    *running = None;
                }
            }
        }
    }
    field.into_iter().map(|(_, rounds)| rounds).collect()
}

/// Starts a contender and lets it answer for a moment.
fn start(
    contender: Contender,
    work: &ServiceWork,
    programs: &Programs,
    pace: Pace,
) -> (Option<RunningContender>, ContenderRounds) {
    let mut rounds = ContenderRounds::new(work.name, contender.name(), Some(contender));
    let running = contender.start(programs, work.transport, requests::KEYS).and_then(|running| {
        running.load(work.connections, Until::Elapsed(pace.time / 4))?;
        Ok(running)
    });
    let running = running.map_err(|error| rounds.failed = Some(format!("{error:#}"))).ok();
    (running, rounds)
}

fn round(contender: &RunningContender, connections: usize, time: Duration) -> anyhow::Result<ServiceRound> {
    let server = &contender.running.server;
    let (before, core_before, start) = (server.usage()?.cpu, spent_on_proxy_core()?, Instant::now());
    let result = contender.load(connections, Until::Elapsed(time))?;
    let elapsed = start.elapsed();
    let cpu = server.usage()?.cpu.saturating_sub(before);
    let others = spent_on_proxy_core()?.saturating_sub(core_before).saturating_sub(cpu);
    Ok(service_round(&result, cpu, elapsed, others))
}

/// The figures of a round, from the processor time of the server and of everything else on its core.
#[expect(clippy::cast_precision_loss, reason = "figures to read")]
fn service_round(result: &LoadResult, cpu: Duration, elapsed: Duration, others: Duration) -> ServiceRound {
    let decisions = result.decisions as f64;
    let share = |time: Duration| time.as_secs_f64() / elapsed.as_secs_f64();
    ServiceRound {
        decisions: result.decisions,
        per_second: decisions / result.elapsed.as_secs_f64(),
        cpu_micros: cpu.as_secs_f64() * 1e6 / decisions,
        busy: share(cpu),
        others: share(others),
        admitted: result.admitted as f64 / (result.admitted + result.rejected) as f64,
        p50_micros: result.quantile(0.5),
        p99_micros: result.quantile(0.99),
        resident_mb: 0.0,
    }
}

/// Leaves the first core to the servers.
fn use_second_core() -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(1);
    sched_setaffinity(None, &set).context("the load generator needs the second core")
}
