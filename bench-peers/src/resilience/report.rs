//! Rounds in turn, their figures and the bars.

use serde::Serialize;

use super::race::{Contender, Course, race};
use crate::arguments::Options;
use crate::bars::{Bars, median};

/// Many short rounds: a shared machine changes its speed within seconds, and a round's ratio is of contenders that ran within one.
const ROUNDS: usize = 11;
const QUICK_ROUNDS: usize = 5;

/// One contender's rounds at one work, in nanoseconds of processor time per call.
#[derive(Debug, Serialize)]
pub(crate) struct Measurement {
    work: String,
    contender: &'static str,
    rounds: Vec<f64>,
}

impl Measurement {
    /// The median of the rounds' ratios.
    fn ratio_to(&self, other: &Self) -> f64 {
        let ratios: Vec<_> = self.rounds.iter().zip(&other.rounds).map(|(own, other)| own / other).collect();
        median(&ratios)
    }

    /// What the layer adds to `bare`, the service without it, in each round.
    fn without(&self, bare: &Self) -> Self {
        let rounds = self.rounds.iter().zip(&bare.rounds).map(|(own, bare)| own - bare).collect();
        Self { work: self.work.clone(), contender: self.contender, rounds }
    }
}

/// What is measured, and the bar: our time as a share of the first contender's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) name: &'static str,
    pub(crate) bar: Option<f64>,
}

/// All results of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) measurements: Vec<Measurement>,
    pub(crate) bars: Bars,
    pub(crate) options: Options,
    /// Of all works, measured or not.
    pub(crate) names: Vec<String>,
    rounds: usize,
}

impl Report {
    pub(crate) fn new(options: Options) -> Self {
        let rounds = options.rounds.unwrap_or(if options.quick { QUICK_ROUNDS } else { ROUNDS });
        Self { options, rounds, ..Self::default() }
    }

    /// Whether a work is to be measured.
    pub(crate) fn includes(&mut self, name: &str) -> bool {
        self.names.push(name.to_owned());
        self.options.includes(name)
    }

    /// Measures the contenders in turn. The bar compares the last one, which is ours, with the first.
    pub(crate) fn measure<R: Send + 'static>(
        &mut self,
        work: Work,
        course: &Course<'_, R>,
        contenders: &[Contender<R>],
    ) -> anyhow::Result<()> {
        let all = run_rounds(work, course, contenders, self.rounds)?;
        if let (Some(peer), Some(ours)) = (all.first(), all.last()) {
            self.compare(work, &format!("× {}", peer.contender), ours.ratio_to(peer));
        }
        self.measurements.extend(all);
        Ok(())
    }

    /// Measures a peer's layer, the service without a layer, and our layer. The bar compares what the layers add to the service;
    /// the ratio of whole calls is printed too.
    pub(crate) fn measure_layers<R: Send + 'static>(
        &mut self,
        work: Work,
        course: &Course<'_, R>,
        contenders: &[Contender<R>; 3],
    ) -> anyhow::Result<()> {
        let all = run_rounds(work, course, contenders, self.rounds)?;
        if let [peer, bare, ours] = &*all {
            let (peer_layer, our_layer) = (peer.without(bare), ours.without(bare));
            for layer in [&peer_layer, &our_layer] {
                println!(
                    "  {:44} {:8.1}",
                    format!("{}, layer alone", layer.contender),
                    median(&layer.rounds)
                );
            }
            println!("         {:.2} × {}, whole call, no bar", ours.ratio_to(peer), peer.contender);
            let what = format!("× {}, layer alone", peer.contender);
            self.compare(work, &what, our_layer.ratio_to(&peer_layer));
        }
        self.measurements.extend(all);
        Ok(())
    }

    fn compare(&mut self, work: Work, what: &str, ratio: f64) {
        match work.bar {
            Some(bar) => self.bars.at_most(what, ratio, bar),
            None => println!("         {ratio:.2} {what}, no bar"),
        }
    }
}

/// A name with the number of threads, which distinguishes works.
pub(crate) fn full_name(name: &str, threads: usize) -> String {
    format!("{name}, {threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// The rounds of all contenders, in turn, which are printed.
fn run_rounds<R: Send + 'static>(
    work: Work,
    course: &Course<'_, R>,
    contenders: &[Contender<R>],
    rounds: usize,
) -> anyhow::Result<Vec<Measurement>> {
    let name = full_name(work.name, course.threads);
    let mut all: Vec<_> = contenders
        .iter()
        .map(|contender| Measurement { work: name.clone(), contender: contender.name, rounds: Vec::new() })
        .collect();
    for round in 0..=rounds {
        for (contender, measurement) in contenders.iter().zip(&mut all) {
            let nanos = race(course, contender)?;
            // The first round warms up.
            if round > 0 {
                measurement.rounds.push(nanos);
            }
        }
    }
    println!("\n{name}");
    for one in &all {
        let rounds: Vec<_> = one.rounds.iter().map(|nanos| format!("{nanos:.0}")).collect();
        println!("  {:44} {:8.1}  {}", one.contender, median(&one.rounds), rounds.join(" "));
    }
    Ok(all)
}
