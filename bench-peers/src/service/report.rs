//! Rounds, their medians, and the ratios that the bars are about.

use serde::Serialize;

use super::contender::Contender;
use super::work::{ReferenceFigure, ServiceWork};
use crate::bars::{Bars, median};

/// A server that used less of its core was not saturated: its rate is the load generator's.
const SATURATED: f64 = 0.95;

/// One contender's rounds at one work.
#[derive(Debug, Serialize)]
pub(crate) struct ContenderRounds {
    pub(crate) work: &'static str,
    pub(crate) contender: &'static str,
    #[serde(skip)]
    pub(crate) kind: Option<Contender>,
    pub(crate) rounds: Vec<ServiceRound>,
    /// Why there are no rounds, or no more.
    pub(crate) failed: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct ServiceRound {
    pub(crate) decisions: u64,
    pub(crate) per_second: f64,
    pub(crate) cpu_micros: f64,
    /// How much of its core the server used, and how much everything else.
    pub(crate) busy: f64,
    pub(crate) others: f64,
    /// The share of admissions among the replies that were read.
    pub(crate) admitted: f64,
    pub(crate) p50_micros: f64,
    pub(crate) p99_micros: f64,
    /// Of the whole server, where memory is the figure.
    pub(crate) resident_mb: f64,
}

impl ContenderRounds {
    pub(crate) fn new(work: &'static str, contender: &'static str, kind: Option<Contender>) -> Self {
        Self { work, contender, kind, rounds: Vec::new(), failed: None }
    }

    /// The median of a figure, unless it failed on the way.
    pub(crate) fn median(&self, figure: fn(&ServiceRound) -> f64) -> Option<f64> {
        (self.failed.is_none() && !self.rounds.is_empty())
            .then(|| median(&self.rounds.iter().map(figure).collect::<Vec<_>>()))
    }

    fn raw(&self, figure: impl Fn(&ServiceRound) -> String) -> String {
        self.rounds.iter().map(figure).collect::<Vec<_>>().join(" ")
    }
}

/// The medians that are compared.
#[derive(Clone, Copy, Debug)]
struct Speed {
    per_second: f64,
    micros: f64,
    is_saturated: bool,
}

impl Speed {
    fn of(rounds: &ContenderRounds) -> Option<Self> {
        Some(Self {
            per_second: rounds.median(|round| round.per_second)?,
            micros: rounds.median(|round| round.cpu_micros)?,
            is_saturated: rounds.median(|round| round.busy)? >= SATURATED,
        })
    }

    /// How many times as fast as the other, and by which figure.
    fn ratio(self, other: Self) -> (f64, &'static str) {
        if self.is_saturated && other.is_saturated {
            (self.per_second / other.per_second, "decisions per second")
        } else {
            (other.micros / self.micros, "CPU µs per decision")
        }
    }
}

/// Prints a work and counts its bars.
pub(crate) fn work(work: &ServiceWork, all: &[ContenderRounds], bars: &mut Bars) {
    println!("\n{}", work.name);
    let reference = |kind| work.contenders.iter().find(|(one, _)| Some(*one) == kind).and_then(|(_, it)| *it);
    for rounds in all {
        contender(rounds, reference(rounds.kind));
    }
    let speed = |contender| Speed::of(all.iter().find(|rounds| rounds.kind == Some(contender))?);
    for (peer, bar) in work.bars {
        if !all.iter().any(|rounds| rounds.kind == Some(*peer)) {
            // The command line leaves it out.
            continue;
        }
        let name = peer.name();
        match (speed(Contender::Tidegate), speed(*peer), reference(Some(*peer))) {
            (None, ..) => bars.without_figure(&format!("tidegate against {name}")),
            (Some(ours), Some(theirs), _) => {
                let (ratio, basis) = ours.ratio(theirs);
                bars.at_least(&format!("× {name} ({basis})"), ratio, *bar);
            }
            // Only this peer may be missing: it is in no package.
            (Some(ours), None, Some(reference)) if *peer == Contender::Limitador => {
                let what =
                    format!("× {name} (CPU µs per decision; its reference figure, measured elsewhere)");
                bars.at_least(&what, reference.micros / ours.micros, *bar);
            }
            (Some(_), None, _) => bars.without_figure(&format!("{name} against tidegate")),
        }
    }
}

/// Medians, reference figure and every round of a contender.
fn contender(rounds: &ContenderRounds, reference: Option<ReferenceFigure>) {
    let name = rounds.contender;
    if let Some(speed) = Speed::of(rounds) {
        let elsewhere = reference.map_or_else(String::new, |ReferenceFigure { thousands, micros }| {
            format!("  (reference figure, measured elsewhere: {thousands} k/s, {micros} µs)")
        });
        println!("  {name:29} {:8.1} k/s  {:7.3} CPU µs{elsewhere}", speed.per_second / 1e3, speed.micros);
        println!("  {:29} k/s: {}", "", rounds.raw(|round| format!("{:.1}", round.per_second / 1e3)));
        println!("  {:29} CPU µs: {}", "", rounds.raw(|round| format!("{:.3}", round.cpu_micros)));
        let percent = |figure: fn(&ServiceRound) -> f64| 100.0 * rounds.median(figure).unwrap_or(f64::NAN);
        println!(
            "  {:29} {:.0} % of its core, others {:.0} %; {:.0} % admitted",
            "",
            percent(|round| round.busy),
            percent(|round| round.others),
            percent(|round| round.admitted)
        );
    }
    if let Some(reason) = &rounds.failed {
        println!("  {name:29} FAILED: {reason}");
        if let Some(ReferenceFigure { thousands, micros }) = reference {
            println!("  {:29} (reference figure, measured elsewhere: {thousands} k/s, {micros} µs)", "");
        }
    }
}

/// Says so if other processes had more than a tenth of the server's core.
pub(crate) fn warn_if_not_idle(all: &[ContenderRounds]) {
    let most = all.iter().flat_map(|rounds| &rounds.rounds).map(|round| round.others).fold(0.0, f64::max);
    if most > 0.1 {
        println!(
            "\nNOT IDLE: other processes took up to {:.0} % of the server's core. Figures and ratios are rough.",
            100.0 * most
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SATURATED_SPEED: Speed = Speed { per_second: 300.0, micros: 2.0, is_saturated: true };

    #[test]
    fn speeds_of_saturated_servers_compare_by_decisions_per_second() {
        let other = Speed { per_second: 100.0, micros: 3.0, is_saturated: true };
        assert!((SATURATED_SPEED.ratio(other).0 - 3.0).abs() < 1e-9);
    }

    #[test]
    fn speeds_with_a_server_not_saturated_compare_by_processor_time() {
        let other = Speed { per_second: 100.0, micros: 3.0, is_saturated: false };
        assert!((SATURATED_SPEED.ratio(other).0 - 1.5).abs() < 1e-9);
        assert!((other.ratio(SATURATED_SPEED).0 - 2.0 / 3.0).abs() < 1e-9);
    }
}
