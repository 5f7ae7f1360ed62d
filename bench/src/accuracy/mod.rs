//! Three node processes share limits through one Redis. Every decision is logged with its store time and replayed on the same
//! algorithm, run ideally: how many requests were admitted that it rejects, and how much of what it admits was admitted.

mod node;
mod record;
mod replay;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use tidegate_core::{Algorithm, Coordination, Limit, RuleId, Spec, TimeSpan};
use tidegate_testkit::process::RedisServer;

pub(crate) use node::NodeArgs;
use record::Record;
use replay::Replay;

/// Short, so that a run contains many windows.
const WINDOW: TimeSpan = TimeSpan::from_secs(2);
const REQUESTS: u64 = 100;
const CLIENTS: u32 = 1_000;
const NODES: u64 = 3;
/// Clients that ask for at least twice their limit are saturated.
const SATURATED: u64 = 2;
const UTILISATION: f64 = 0.99;

fn rule() -> RuleId {
    RuleId::named("accuracy")
}

fn limit(algorithm: Algorithm) -> anyhow::Result<Limit> {
    Ok(Limit::new(algorithm, Spec::new(REQUESTS, WINDOW))?)
}

/// Runs every mode with every algorithm it supports, `decisions` each, if the name of the run contains `only`.
pub(crate) fn run(decisions: u64, only: &str) -> anyhow::Result<()> {
    let seed = fastrand::u64(..);
    println!(
        "seed {seed}; {NODES} processes, {REQUESTS} per {WINDOW:?}, {CLIENTS} clients (Zipf), {decisions} decisions each"
    );
    let mut failed = Vec::new();
    for coordination in [Coordination::Central, Coordination::Lease, Coordination::Sync] {
        for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingCounter] {
            for skew in [0, 5] {
                let name = format!("{} {algorithm}, clocks skewed by {skew} s", coordination.name());
                if !name.contains(only) {
                    continue;
                }
                let replay = run_one(&Scenario { coordination, algorithm, skew, decisions, seed })?;
                println!("{name}: {replay}");
                if !replay.is_within_the_bar(coordination) {
                    failed.push(name);
                }
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("missed: {}", failed.join("; ")) }
}

struct Scenario {
    coordination: Coordination,
    algorithm: Algorithm,
    /// The first node is this many seconds ahead, the second behind.
    skew: i64,
    decisions: u64,
    seed: u64,
}

fn run_one(scenario: &Scenario) -> anyhow::Result<Replay> {
    let redis = RedisServer::start();
    let files: Vec<_> = (0..NODES).map(|node| log_file(node, scenario.seed)).collect();
    let program = std::env::current_exe()?;
    let mut nodes = Vec::new();
    for (index, (file, skew)) in files.iter().zip([scenario.skew, -scenario.skew, 0]).enumerate() {
        let mut command = Command::new(&program);
        command.arg("accuracy-node").args([
            "--url",
            &redis.url(),
            "--coordination",
            scenario.coordination.name(),
        ]);
        command.args(["--algorithm", scenario.algorithm.name(), "--skew", &skew.to_string()]);
        command.args(["--decisions", &(scenario.decisions / NODES).to_string()]);
        command.args(["--seed", &scenario.seed.wrapping_add(index as u64).to_string(), "--log"]).arg(file);
        nodes.push(command.spawn().context("cannot start a node")?);
    }
    for mut node in nodes {
        let status = node.wait()?;
        if !status.success() {
            bail!("a node failed ({status})");
        }
    }
    let mut records = Vec::new();
    for (node, file) in (0_u8..).zip(&files) {
        records.extend(Record::read_all(file, node)?);
        std::fs::remove_file(file)?;
    }
    Ok(Replay::of(records, &limit(scenario.algorithm)?))
}

fn log_file(node: u64, seed: u64) -> PathBuf {
    Path::new(&std::env::temp_dir()).join(format!("tidegate-accuracy-{seed}-{node}.log"))
}

/// Runs one node.
pub(crate) fn run_node(args: &NodeArgs) -> anyhow::Result<()> {
    node::run(args)
}
