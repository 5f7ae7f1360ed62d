//! Rounds in turn, their figures and the bars.

use serde::Serialize;

use super::race::{Contender, Course, race};
use crate::bars::{Bars, median};

/// Many short rounds: a shared machine changes its speed within seconds, and a round's ratio is of contenders that ran within one.
const ROUNDS: usize = 11;

/// One contender's rounds at one work, in nanoseconds of processor time per call.
#[derive(Debug, Serialize)]
pub(crate) struct Measurement {
    work: &'static str,
    threads: usize,
    contender: &'static str,
    rounds: Vec<f64>,
}

impl Measurement {
    /// The median of the rounds' ratios.
    fn ratio_to(&self, other: &Self) -> f64 {
        let ratios: Vec<_> = self.rounds.iter().zip(&other.rounds).map(|(own, other)| own / other).collect();
        median(&ratios)
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
    /// Only works whose name contains this are measured.
    pub(crate) only: String,
}

impl Report {
    /// Whether a work is to be measured.
    pub(crate) fn includes(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    /// Measures the contenders in turn. The bar compares the last one, which is ours, with the first.
    pub(crate) fn measure<R: Send + 'static>(
        &mut self,
        work: Work,
        course: &Course<'_, R>,
        contenders: &[Contender<R>],
    ) -> anyhow::Result<()> {
        let mut all: Vec<_> = contenders
            .iter()
            .map(|contender| Measurement {
                work: work.name,
                threads: course.threads,
                contender: contender.name,
                rounds: Vec::new(),
            })
            .collect();
        for round in 0..=ROUNDS {
            for (contender, measurement) in contenders.iter().zip(&mut all) {
                let nanos = race(course, contender)?;
                // The first round warms up.
                if round > 0 {
                    measurement.rounds.push(nanos);
                }
            }
        }
        self.print(work, course.threads, &all);
        self.measurements.extend(all);
        Ok(())
    }

    fn print(&mut self, work: Work, threads: usize, all: &[Measurement]) {
        println!("\n{}, {threads} thread(s)", work.name);
        for one in all {
            let rounds: Vec<_> = one.rounds.iter().map(|nanos| format!("{nanos:.0}")).collect();
            println!("  {:44} {:8.1}  {}", one.contender, median(&one.rounds), rounds.join(" "));
        }
        let (Some(peer), Some(ours)) = (all.first(), all.last()) else { return };
        let what = format!("× {}", peer.contender);
        match work.bar {
            Some(bar) => self.bars.at_most(&what, ours.ratio_to(peer), bar),
            None => println!("         {:.2} {what}, no bar", ours.ratio_to(peer)),
        }
    }
}
