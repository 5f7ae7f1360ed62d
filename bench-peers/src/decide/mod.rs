//! One decision in a process: a 21-byte string key, hashed each time, clock read included.

mod contender;

use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use anyhow::ensure;
use contender::{Contender, Governor, GovernorFold, Tidegate};
use serde::Serialize;

const ROUNDS: usize = 5;

/// What is asked: how many different keys, how many threads, how many requests each.
#[derive(Clone, Copy, Debug, Serialize)]
struct Work {
    name: &'static str,
    keys: u64,
    threads: usize,
    requests: usize,
}

const WORKS: [Work; 4] = [
    Work { name: "1 k keys, 1 thread", keys: 1_000, threads: 1, requests: 1_000_000 },
    Work { name: "1 k keys, 2 threads", keys: 1_000, threads: 2, requests: 1_000_000 },
    Work { name: "1 M keys, 1 thread", keys: 1_000_000, threads: 1, requests: 1_000_000 },
    Work { name: "1 M keys, 2 threads", keys: 1_000_000, threads: 2, requests: 1_000_000 },
];

/// One contender's rounds at one work, in nanoseconds of wall time per decision.
#[derive(Debug, Serialize)]
struct Result {
    work: &'static str,
    contender: &'static str,
    rounds: Vec<f64>,
}

impl Result {
    fn median(&self) -> f64 {
        let mut sorted = self.rounds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }
}

pub(crate) fn run(json: Option<&Path>) -> anyhow::Result<bool> {
    let mut results = Vec::new();
    for work in &WORKS {
        let measured = measure(work)?;
        let peer = measured[0].median();
        println!("\n{}", work.name);
        for result in &measured {
            let median = result.median();
            println!("  {:46} {median:8.1} ns   {:5.2} x", result.contender, peer / median);
        }
        results.extend(measured);
    }
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_vec_pretty(&results)?)?;
    }
    println!("\nbars: 0/0 met");
    Ok(true)
}

fn measure(work: &Work) -> anyhow::Result<Vec<Result>> {
    let streams: Vec<_> = (0..work.threads).map(|thread| stream(work, thread as u64)).collect();
    let contenders: [Box<dyn Contender>; 3] =
        [Box::new(Governor::new()), Box::new(GovernorFold::new()), Box::new(Tidegate::reference()?)];
    let mut results: Vec<_> = contenders
        .iter()
        .map(|one| Result { work: work.name, contender: one.name(), rounds: Vec::new() })
        .collect();
    for round in 0..=ROUNDS {
        for (contender, result) in contenders.iter().zip(&mut results) {
            let nanos = race(&**contender, &streams)?;
            // The first round fills the tables.
            if round > 0 {
                result.rounds.push(nanos);
            }
        }
    }
    Ok(results)
}

/// The keys of one thread's requests, in the order in which it sends them, as a server would meet them.
fn stream(work: &Work, seed: u64) -> Vec<String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..work.requests).map(|_| format!("customer:{:012}", rng.u64(0..work.keys))).collect()
}

/// All threads at once; wall nanoseconds per decision, and everything must have passed.
#[expect(clippy::cast_precision_loss, reason = "a figure to read, not to compute with")]
fn race(contender: &dyn Contender, streams: &[Vec<String>]) -> anyhow::Result<f64> {
    let barrier = Barrier::new(streams.len() + 1);
    let requests: usize = streams.iter().map(Vec::len).sum();
    let (passed, nanos) = thread::scope(|scope| {
        let racers: Vec<_> = streams
            .iter()
            .map(|keys| {
                scope.spawn(|| {
                    barrier.wait();
                    contender.decide_each(keys)
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        let passed: u64 = racers.into_iter().map(|racer| racer.join().unwrap_or_default()).sum();
        (passed, start.elapsed().as_nanos())
    });
    ensure!(passed == requests as u64, "{} refused {}", contender.name(), requests as u64 - passed);
    Ok(nanos as f64 / requests as f64)
}
