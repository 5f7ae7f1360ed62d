//! Round trips of whole pipelines on one connection: no depth may stall.

use std::time::Duration;

use super::contender::{Contender, Transport};
use super::load::Until;
use super::programs::Programs;
use super::report::{ContenderRounds, ServiceRound};
use super::requests::KEYS;
use crate::bars::Bars;

pub(crate) const NAME: &str = "RESP, pipeline depths";
const DEPTHS: [usize; 6] = [1, 2, 16, 64, 1_000, 10_000];
/// Milliseconds: what a delayed acknowledgement costs a server that writes every reply by itself.
const BAR: f64 = 40.0;

/// Measures all depths, prints them and counts the bars.
pub(crate) fn run(programs: &Programs, time: Duration, bars: &mut Bars) -> Vec<ContenderRounds> {
    println!("\n{NAME}: round trip on one connection, p50 / p99 ms");
    let mut all = Vec::new();
    for contender in [Contender::RedisIncr, Contender::Tidegate] {
        let mut rounds = ContenderRounds::new(NAME, contender.name(), None);
        for depth in DEPTHS {
            match round(programs, contender, depth, time) {
                Ok(round) => {
                    let (p50, p99) = (round.p50_micros / 1e3, round.p99_micros / 1e3);
                    println!("  {:29} depth {depth:6}: {p50:8.3} / {p99:8.3}", contender.name());
                    rounds.rounds.push(round);
                    if contender == Contender::Tidegate {
                        bars.at_most(&format!("ms p99 at depth {depth}"), p99, BAR);
                    }
                }
                Err(error) => {
                    println!("  {:29} depth {depth:6}: FAILED: {error:#}", contender.name());
                    rounds.failed = Some(format!("{error:#}"));
                    if contender == Contender::Tidegate {
                        bars.without_figure(&format!("tidegate at depth {depth}"));
                    }
                }
            }
        }
        all.push(rounds);
    }
    all
}

fn round(
    programs: &Programs,
    contender: Contender,
    depth: usize,
    time: Duration,
) -> anyhow::Result<ServiceRound> {
    let running = contender.start(programs, Transport::Resp { depth }, KEYS)?;
    running.load(1, Until::Elapsed(time / 4))?;
    let result = running.load(1, Until::Elapsed(time))?;
    Ok(ServiceRound {
        decisions: result.decisions,
        p50_micros: result.quantile(0.5),
        p99_micros: result.quantile(0.99),
        ..ServiceRound::default()
    })
}
