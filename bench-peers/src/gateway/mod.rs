//! The gateway against nginx, HAProxy and Envoy: CPU time of the proxy per request, on a core of its own.

mod idle;
mod load;
pub(crate) mod process;
mod proxy;
mod report;
mod tools;
mod work;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use load::Outcome;
use process::spent_on_proxy_core;
use proxy::{Limit, Proxy, Running, Setting};
use report::{Measured, Round};
use tools::Tools;
use work::{Figure, LARGE, WORKS, Work};

use crate::arguments::{Options, PeerFilter};
use crate::bars::Bars;

/// How often and how long.
#[derive(Clone, Copy, Debug)]
struct Pace {
    rounds: usize,
    seconds: u64,
}

/// Builds Tidegate and installs the other programs.
pub(crate) fn prepare() -> anyhow::Result<()> {
    Tools::gather().map(drop)
}

pub(crate) fn run(options: &Options, peers: &PeerFilter) -> anyhow::Result<bool> {
    let cores = thread::available_parallelism()?.get();
    ensure!(cores >= 2, "the proxy needs a core of its own beside the load's; there is {cores}");
    let names: Vec<_> = WORKS.iter().map(|work| work.name).chain([idle::NAME]).collect();
    options.require_one_of(&names)?;
    let (rounds, seconds) = if options.quick { (3, 1) } else { (5, 2) };
    let pace = Pace { rounds: options.rounds.unwrap_or(rounds), seconds };
    let tools = Tools::gather()?;
    report::versions(&tools);
    let upstream = proxy::start_upstream(&tools)?;
    let setting = Setting { tools: &tools, upstream: upstream.port, limit: Limit::PassesAll, tls: false };
    println!(
        "\nmedians of {} rounds of {} s (of the p99: four times as many, of 1 s), the proxies in turn; (elsewhere)",
        pace.rounds, pace.seconds
    );

    let mut bars = Bars::default();
    let mut all = Vec::new();
    for work in WORKS.iter().filter(|work| options.includes(work.name)) {
        let setting = Setting { limit: work.limit, tls: work.load.tls, ..setting };
        let measured = measure(work, &setting, pace, peers);
        report::work(work, &measured, &mut bars);
        all.extend(measured);
    }
    if options.includes(idle::NAME) {
        let proxies = idle::PROXIES.iter().filter(|(proxy, _)| peers.includes(proxy.name()));
        let measured: Vec<_> = proxies.map(|(proxy, _)| hold(*proxy, &setting)).collect();
        report::connections(&measured, &mut bars);
        all.extend(measured);
    }
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_vec_pretty(&all)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    report::quiet(&all);
    Ok(bars.close())
}

/// All proxies of a work, round by round in turn. One that fails is left out, with the reason.
fn measure(work: &Work, setting: &Setting<'_>, pace: Pace, peers: &PeerFilter) -> Vec<Measured> {
    let mut field: Vec<_> = work
        .proxies
        .iter()
        .filter(|(proxy, _)| peers.includes(proxy.name()))
        .map(|(proxy, _)| {
            let mut measured = Measured::new(work.name, *proxy);
            let running = proxy.start(setting).and_then(|running| {
                measured.answers = warm_up(work, setting, &running)?;
                Ok(running)
            });
            let running = running.map_err(|error| measured.failed = Some(format!("{error:#}"))).ok();
            (running, measured)
        })
        .collect();
    // What the machine does besides shows most in the slowest of a hundred: more rounds, and shorter ones.
    let pace = match work.figure {
        Figure::CpuMicros => pace,
        Figure::P99Micros => Pace { rounds: 4 * pace.rounds, seconds: 1 },
    };
    for _ in 0..pace.rounds {
        for (running, measured) in &mut field {
            let Some(proxy) = running else { continue };
            match round(work, setting, proxy, pace.seconds) {
                Ok(round) => measured.rounds.push(round),
                Err(error) => {
                    measured.failed = Some(format!("{error:#}"));
                    *running = None;
                }
            }
        }
    }
    field.into_iter().map(|(_, measured)| measured).collect()
}

/// A second of load, every answer looked at: a proxy that does other work than the others shows here.
fn warm_up(work: &Work, setting: &Setting<'_>, proxy: &Running) -> anyhow::Result<String> {
    let Outcome { mut answers, .. } = work.load.run(&setting.tools.dir, proxy.port, 1, true)?;
    answers.sort_by_key(|(.., number)| std::cmp::Reverse(*number));
    let shown: Vec<_> =
        answers.iter().map(|(status, size, number)| format!("{number} × {status} ({size} B)")).collect();
    let shown = shown.join(", ");
    let (status, size, _) = answers.first().context("no answers")?;
    match work.limit {
        Limit::PassesAll => ensure!(*status == 200 && answers.len() == 1, "not all are 200: {shown}"),
        Limit::RefusesAll => ensure!(*status == 429, "not 429: {shown}"),
    }
    ensure!(work.load.path != "/large" || *size == LARGE, "not {LARGE} B each: {shown}");
    Ok(shown)
}

#[expect(clippy::cast_precision_loss, reason = "figures to read, not to compute with")]
fn round(work: &Work, setting: &Setting<'_>, proxy: &Running, seconds: u64) -> anyhow::Result<Round> {
    let before = proxy.server.usage()?.cpu;
    let core_before = spent_on_proxy_core()?;
    let start = Instant::now();
    let outcome = work.load.run(&setting.tools.dir, proxy.port, seconds, false)?;
    let elapsed = start.elapsed();
    let cpu = proxy.server.usage()?.cpu.saturating_sub(before);
    let others = spent_on_proxy_core()?.saturating_sub(core_before).saturating_sub(cpu);
    let Outcome { requests, refused, errors, p99_micros, .. } = outcome;
    ensure!(errors == 0, "{errors} of {requests} requests failed");
    match work.limit {
        Limit::PassesAll => ensure!(refused == 0, "{refused} of {requests} were refused"),
        // nginx lets one of each key through every minute.
        Limit::RefusesAll => {
            ensure!(refused * 20 >= requests * 19, "only {refused} of {requests} were refused");
        }
    }
    let figure = match work.figure {
        Figure::CpuMicros => cpu.as_secs_f64() * 1e6 / requests as f64,
        Figure::P99Micros => p99_micros,
    };
    let share = |time: Duration| time.as_secs_f64() / elapsed.as_secs_f64();
    Ok(Round { figure, requests, busy: share(cpu), others: share(others) })
}

fn hold(proxy: Proxy, setting: &Setting<'_>) -> Measured {
    let mut measured = Measured::new(idle::NAME, proxy);
    match idle::kib_per_connection(proxy, setting) {
        Ok(figure) => measured.rounds.push(Round { figure, ..Round::default() }),
        Err(error) => measured.failed = Some(format!("{error:#}")),
    }
    measured
}
