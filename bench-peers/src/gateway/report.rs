//! What is printed.

use serde::Serialize;

use super::idle;
use super::proxy::Proxy;
use super::tools::Tools;
use super::work::{Bar, Figure, Work};
use crate::bars::{Bars, median};
use crate::executables::version;

/// KiB that an idle connection may take.
const IDLE_KIB: f64 = 16.0;

/// One proxy's rounds at one work.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    work: &'static str,
    #[serde(rename = "contender")]
    proxy: Proxy,
    pub(crate) rounds: Vec<Round>,
    /// What it answered when every answer was looked at.
    pub(crate) answers: String,
    /// Why there are no rounds, or no more.
    pub(crate) failed: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Round {
    pub(crate) figure: f64,
    pub(crate) requests: u64,
    /// How much of its core the proxy used.
    pub(crate) busy: f64,
    /// How much of it everything else took: on a machine that is not quiet, figures are too high.
    pub(crate) others: f64,
}

impl Measured {
    pub(crate) fn new(work: &'static str, proxy: Proxy) -> Self {
        Self { work, proxy, rounds: Vec::new(), answers: String::new(), failed: None }
    }

    /// The median, unless it failed on the way.
    fn figure(&self) -> Option<f64> {
        let figures: Vec<_> = self.rounds.iter().map(|round| round.figure).collect();
        (self.failed.is_none() && !figures.is_empty()).then(|| median(&figures))
    }
}

pub(crate) fn versions(tools: &Tools) {
    let programs =
        [(&tools.nginx, "-v"), (&tools.haproxy, "-v"), (&tools.envoy, "--version"), (&tools.wrk, "-v")];
    for (program, argument) in programs.into_iter().chain([(&tools.tidegate, "--version")]) {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        // Envoy begins with where it lies.
        let version = version(program, argument).replace(&*program.to_string_lossy(), &name);
        println!("{name:9} {version}");
    }
}

pub(crate) fn work(work: &Work, measured: &[Measured], bars: &mut Bars) {
    let unit = match work.figure {
        Figure::CpuMicros => "CPU µs per request",
        Figure::P99Micros => "µs",
    };
    println!("\n{}, {unit}", work.name);
    lines(measured, work.proxies);
    for bar in work.bars {
        let (other, most) = match *bar {
            Bar::Times(other, most) | Bar::More(other, most) => (other, most),
        };
        if !measured.iter().any(|one| one.proxy == other) {
            // The command line leaves it out.
            continue;
        }
        let name = other.name();
        match (bar, figure_of(measured, Proxy::Tidegate), figure_of(measured, other)) {
            (Bar::Times(..), Some(ours), Some(theirs)) => {
                bars.at_most(&format!("× {name}"), ours / theirs, most);
            }
            (Bar::More(..), Some(ours), Some(theirs)) => {
                bars.at_most(&format!("µs more than {name}"), ours - theirs, most);
            }
            _ => bars.without_figure(&format!("tidegate against {name}")),
        }
    }
}

pub(crate) fn connections(measured: &[Measured], bars: &mut Bars) {
    println!("\n{}, KiB each", idle::NAME);
    lines(measured, &idle::PROXIES);
    match figure_of(measured, Proxy::Tidegate) {
        Some(ours) => bars.at_most("KiB each", ours, IDLE_KIB),
        None => bars.without_figure("KiB each"),
    }
}

/// Says so if other processes had more than a tenth of the proxy's core: medians hide it.
pub(crate) fn quiet(measured: &[Measured]) {
    let shares = measured.iter().flat_map(|one| &one.rounds).map(|round| round.others);
    let most = shares.fold(0.0, f64::max);
    if most > 0.1 {
        println!(
            "\nNOT QUIET: others took up to {:.0} % of the proxy's core. CPU figures are too high, ratios \
             rough, and the p99 is theirs.",
            100.0 * most
        );
    }
}

fn figure_of(measured: &[Measured], proxy: Proxy) -> Option<f64> {
    measured.iter().find(|one| one.proxy == proxy)?.figure()
}

/// Median, figure elsewhere, ratio to nginx and the rounds; then the processes that used the core, and the statuses of the responses.
fn lines(measured: &[Measured], proxies: &[(Proxy, &str)]) {
    let nginx = figure_of(measured, Proxy::Nginx);
    for one in measured {
        let name = one.proxy.name();
        let elsewhere = proxies.iter().find(|(proxy, _)| *proxy == one.proxy).map_or("–", |(_, it)| *it);
        if let Some(figure) = one.figure() {
            let ratio = nginx.map_or_else(String::new, |nginx| format!("{:.2} × nginx", figure / nginx));
            let rounds: Vec<_> = one.rounds.iter().map(|round| format!("{:.1}", round.figure)).collect();
            let percent =
                |share: fn(&Round) -> f64| 100.0 * median(&one.rounds.iter().map(share).collect::<Vec<_>>());
            println!("  {name:24} {figure:8.1}  ({elsewhere})  {ratio}  {}", rounds.join(" "));
            if !one.answers.is_empty() {
                let (own, others) = (percent(|round| round.busy), percent(|round| round.others));
                println!("  {:24} {own:.0} % of its core, others {others:.0} %; first {}", "", one.answers);
            }
        }
        if let Some(reason) = &one.failed {
            println!("  {name:24} FAILED: {reason}");
        }
    }
}
