//! What `auth_request` adds to a request of nginx: with `/v1/authorize` of Tidegate, and with a second nginx that answers every
//! request with 200. nginx and the server that it asks share one core.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::Pace;
use super::contender::{RunningServer, Transport, free_port, start_server, start_tidegate};
use super::load::{Load, LoadResult, Until};
use super::programs::Programs;
use super::replies;
use super::report::{ContenderRounds, ServiceRound};
use super::requests::{KEYS, RequestSet};
use crate::bars::Bars;
use crate::gateway::process::spent_on_proxy_core;

pub(crate) const NAME: &str = "authorize behind nginx auth_request";
const BAR: f64 = 1.3;
/// For the processor time; the latency is measured with one.
const CONNECTIONS: usize = 32;

/// A server block of nginx, and the server that it asks.
struct Variant {
    port: u16,
    backend: Option<RunningServer>,
}

/// Measures, prints and counts the bars.
pub(crate) fn run(programs: &Programs, pace: Pace, bars: &mut Bars) -> Vec<ContenderRounds> {
    println!(
        "\n{NAME}: p50 µs with 1 connection, CPU µs with {CONNECTIONS}, nginx and the server that it asks together"
    );
    let all = measure(programs, pace).unwrap_or_else(|error| {
        println!("  FAILED: {error:#}");
        Vec::new()
    });
    for rounds in &all {
        if let Some(reason) = &rounds.failed {
            println!("  {:29} FAILED: {reason}", rounds.contender);
        }
        let raw = |figure: fn(&ServiceRound) -> f64| {
            rounds.rounds.iter().map(|round| format!("{:.1}", figure(round))).collect::<Vec<_>>().join(" ")
        };
        if let (Some(p50), Some(cpu)) =
            (rounds.median(|round| round.p50_micros), rounds.median(|round| round.cpu_micros))
        {
            println!("  {:29} p50 {p50:7.1} µs: {}", rounds.contender, raw(|round| round.p50_micros));
            println!("  {:29} CPU {cpu:7.2} µs: {}", "", raw(|round| round.cpu_micros));
        }
    }
    if let Some(ratio) = added(&all, "p50 of nginx", |round| round.p50_micros) {
        // Without a bar: one request at a time measures wake-ups and cold caches, which vary from run to run.
        println!("  {ratio:.2} × what a static 200 adds to the p50");
    }
    match added(&all, "CPU time of a request", |round| round.cpu_micros) {
        Some(ratio) => bars.at_most("× what a static 200 adds to the CPU time of a request", ratio, BAR),
        None => bars.without_figure("tidegate against a static 200, added to the CPU time of a request"),
    }
    all
}

/// What Tidegate adds, against what the static location adds.
fn added(all: &[ContenderRounds], what: &str, figure: fn(&ServiceRound) -> f64) -> Option<f64> {
    let median = |number: usize| all.get(number)?.median(figure);
    let (plain, fixed, ours) = (median(0)?, median(1)?, median(2)?);
    println!(
        "  added to the {what}: {:.1} µs (static 200) and {:.1} µs (tidegate)",
        fixed - plain,
        ours - plain
    );
    Some((ours - plain) / (fixed - plain))
}

fn measure(programs: &Programs, pace: Pace) -> anyhow::Result<Vec<ContenderRounds>> {
    let names = ["nginx", "nginx, static 200", "nginx, tidegate"];
    let mut all: Vec<_> = names.iter().map(|name| ContenderRounds::new(NAME, name, None)).collect();
    let fixed = start_static(programs)?;
    let tidegate = start_tidegate(programs, Transport::Http, "requests: 1000000, window: 1m");
    let tidegate = tidegate.map_err(|error| all[2].failed = Some(format!("{error:#}"))).ok();
    let (front, variants) = start_front(programs, fixed, tidegate)?;
    let requests = RequestSet::new(KEYS, |key| {
        format!("GET /small HTTP/1.1\r\nHost: api.example\r\nX-API-Key: customer:{key}\r\n\r\n").into_bytes()
    })?;
    for number in 0..=pace.rounds {
        // The first round warms up and does not count.
        let time = if number == 0 { pace.time / 4 } else { pace.time };
        for (variant, rounds) in variants.iter().zip(&mut all) {
            if rounds.failed.is_some() {
                continue;
            }
            match round(&front, variant, &requests, time) {
                Ok(_) if number == 0 => {}
                Ok(round) => rounds.rounds.push(round),
                Err(error) => rounds.failed = Some(format!("{error:#}")),
            }
        }
    }
    Ok(all)
}

fn round(
    front: &RunningServer,
    variant: &Variant,
    requests: &RequestSet,
    time: Duration,
) -> anyhow::Result<ServiceRound> {
    let load = Load { port: variant.port, connections: 1, depth: 1, requests, format: replies::STATUS };
    let single = admitted(load.run(Until::Elapsed(time))?)?;
    let cpu = || -> anyhow::Result<Duration> {
        let backend = variant.backend.as_ref().map(|backend| backend.server.usage()).transpose()?;
        Ok(front.server.usage()?.cpu + backend.unwrap_or_default().cpu)
    };
    let (before, core_before, start) = (cpu()?, spent_on_proxy_core()?, Instant::now());
    let many = admitted(Load { connections: CONNECTIONS, ..load }.run(Until::Elapsed(time))?)?;
    let elapsed = start.elapsed();
    let spent = cpu()?.saturating_sub(before);
    let others = spent_on_proxy_core()?.saturating_sub(core_before).saturating_sub(spent);
    let mut round = super::service_round(&many, spent, elapsed, others);
    round.p50_micros = single.quantile(0.5);
    round.p99_micros = single.quantile(0.99);
    Ok(round)
}

/// Rejections would be compared with admissions.
fn admitted(result: LoadResult) -> anyhow::Result<LoadResult> {
    ensure!(result.rejected == 0, "{} of {} requests were rejected", result.rejected, result.decisions);
    Ok(result)
}

fn start_static(programs: &Programs) -> anyhow::Result<RunningServer> {
    let port = free_port()?;
    let config = include_str!("configs/static.conf").replace("@LISTEN@", &port.to_string());
    let path = programs.write("static.conf", &config)?;
    start_server(programs, &programs.nginx, &["-c", &path], port).context("the static server (nginx)")
}

/// nginx with a server block per variant.
fn start_front(
    programs: &Programs,
    fixed_backend: RunningServer,
    tidegate: Option<RunningServer>,
) -> anyhow::Result<(RunningServer, Vec<Variant>)> {
    let mut variants = vec![Variant { port: free_port()?, backend: None }];
    variants.push(Variant { port: free_port()?, backend: Some(fixed_backend) });
    if let Some(backend) = tidegate {
        variants.push(Variant { port: free_port()?, backend: Some(backend) });
    }
    let mut blocks = String::new();
    for (number, variant) in variants.iter().enumerate() {
        if let Some(backend) = &variant.backend {
            let block = include_str!("configs/auth.conf")
                .replace("@NAME@", &format!("backend{number}"))
                .replace("@BACKEND@", &backend.port.to_string())
                .replace("@LISTEN@", &variant.port.to_string());
            blocks.push_str(&block);
        }
    }
    let port = variants[0].port;
    let config =
        include_str!("configs/front.conf").replace("@PLAIN@", &port.to_string()).replace("@AUTH@", &blocks);
    let path = programs.write("front.conf", &config)?;
    let front = start_server(programs, &programs.nginx, &["-c", &path], port);
    Ok((front.context("nginx with auth_request")?, variants))
}
