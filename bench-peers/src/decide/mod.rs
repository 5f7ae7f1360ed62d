//! One decision in a process: a 21-byte string key, hashed each time, clock read included.

mod contender;
mod memory;
mod stream;
mod work;

use contender::{Contender, Governor, Rate, Tidegate};
use serde::Serialize;
use stream::Stream;
use work::{CheckTime, WORKS, Work};

use crate::arguments::Options;
use crate::bars::{Bars, median};

/// Many short rounds rather than few long ones: a shared machine changes its pace within seconds, and a round's
/// ratio is of contenders that ran within one.
const ROUNDS: usize = 15;
const QUICK_ROUNDS: usize = 5;

const MEMORY: &str = "memory";

/// One contender's rounds at one work.
#[derive(Debug, Serialize)]
struct Measured {
    work: String,
    contender: &'static str,
    rounds: Vec<CheckTime>,
}

impl Measured {
    /// The median of the rounds' ratios.
    fn times_slower_than(&self, other: &Self) -> f64 {
        let ratios: Vec<_> =
            self.rounds.iter().zip(&other.rounds).map(|(one, other)| one.wall / other.wall).collect();
        median(&ratios)
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<bool> {
    let names: Vec<_> = WORKS.iter().map(Work::full_name).chain([MEMORY.to_owned()]).collect();
    options.require_one_of(&names)?;
    let rounds = options.rounds.unwrap_or(if options.quick { QUICK_ROUNDS } else { ROUNDS });
    let mut bars = Bars::default();
    let mut all = Vec::new();
    if options.includes(MEMORY) {
        // Before anything else has taken any.
        memory::run(&mut bars)?;
    }
    println!("\nns of wall time per check, medians of {rounds} rounds, the contenders in turn; (elsewhere)");
    let chosen: Vec<_> = WORKS.into_iter().filter(|work| options.includes(&work.full_name())).collect();
    let mut streams: Vec<_> = (0..work::THREADS).map(|_| Stream::in_order()).collect();
    for works in chosen.chunk_by(|a, b| (a.keys, a.rate) == (b.keys, b.rate)) {
        let contenders = contenders(works[0].keys, works[0].rate)?;
        for contender in &contenders {
            work::fill(&**contender, works[0].keys);
        }
        for work in works {
            let measured = measure(work, &contenders, &mut streams, rounds)?;
            report(work, &measured, &mut bars);
            all.extend(measured);
        }
    }
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_vec_pretty(&all)?)?;
    }
    Ok(bars.close())
}

fn contenders(keys: usize, rate: Rate) -> anyhow::Result<[Box<dyn Contender>; 3]> {
    Ok([
        Box::new(Governor::<std::hash::RandomState>::new("governor 0.10", rate)),
        Box::new(Governor::<foldhash::fast::RandomState>::new("governor 0.10, foldhash", rate)),
        Box::new(Tidegate::new(keys, rate)?),
    ])
}

fn measure(
    work: &Work,
    contenders: &[Box<dyn Contender>],
    streams: &mut [Stream],
    rounds: usize,
) -> anyhow::Result<Vec<Measured>> {
    let mut measured: Vec<_> = contenders
        .iter()
        .map(|one| Measured { work: work.full_name(), contender: one.name(), rounds: Vec::new() })
        .collect();
    for round in 0..=rounds {
        for (contender, measured) in contenders.iter().zip(&mut measured) {
            let time = work::race(work, &**contender, streams, round as u64)?;
            // The first round warms up.
            if round > 0 {
                measured.rounds.push(time);
            }
        }
    }
    Ok(measured)
}

fn report(work: &Work, measured: &[Measured], bars: &mut Bars) {
    println!("\n{}", work.full_name());
    let elsewhere = [work.elsewhere.0, work.elsewhere.1, "–"];
    for (one, elsewhere) in measured.iter().zip(elsewhere) {
        let rounds: Vec<_> = one.rounds.iter().map(|time| format!("{:.1}", time.wall)).collect();
        let wall: Vec<_> = one.rounds.iter().map(|time| time.wall).collect();
        println!("  {:24} {:8.1}  ({elsewhere})  {}", one.contender, median(&wall), rounds.join(" "));
    }
    let ours = &measured[2];
    bars.at_least("× governor", measured[0].times_slower_than(ours), work.bars.0);
    if let Some(bar) = work.bars.1 {
        bars.at_least("× governor with foldhash", measured[1].times_slower_than(ours), bar);
    }
}
