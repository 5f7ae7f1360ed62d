//! The time to compile a policy.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::ensure;
use tidegate_policy::{NoFiles, compile};

const ROUNDS: usize = 9;
const RULES: usize = 10_000;
/// A slower reload is noticeable.
const MAX_COMPILE_TIME: Duration = Duration::from_secs(1);

pub(crate) fn run() -> anyhow::Result<()> {
    let mut within = true;
    for (name, text) in [("as endpoints", endpoints()?), ("as rules", rules()?)] {
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let compiled = compile("bench.yaml", black_box(text.as_bytes()), &NoFiles)?;
            rounds.push(start.elapsed());
            ensure!(compiled.plan.rate_limits.iter().count() > RULES, "rules are missing");
        }
        rounds.sort();
        let median = rounds[ROUNDS / 2];
        within &= median <= MAX_COMPILE_TIME;
        let kib = text.len() / 1024;
        println!("{RULES} {name:12} ({kib} KiB): {:.1} ms to compile", median.as_secs_f64() * 1e3);
    }
    println!(
        "target: at most {} ms: {}",
        MAX_COMPILE_TIME.as_millis(),
        if within { "met" } else { "missed" }
    );
    ensure!(within, "compiling takes too long");
    Ok(())
}

const HEAD: &str = "\
upstreams: { api: { servers: [http://10.0.0.1:3000] } }
routes:
  - { path: /api/**, upstream: api }
rate_limits:
  default: { requests: 1000, window: 1m }
";

fn endpoints() -> anyhow::Result<String> {
    let mut text = format!("{HEAD}  endpoints:\n");
    for index in 0..RULES {
        writeln!(
            text,
            "    POST /api/v1/service{}/{{id}}/part{index}: {{ requests: {}, window: 1m, algorithm: token_bucket, burst: 10 }}",
            index % 100,
            index + 1
        )?;
    }
    Ok(text)
}

fn rules() -> anyhow::Result<String> {
    let mut text = format!("{HEAD}  rules:\n");
    for index in 0..RULES {
        writeln!(
            text,
            "    - {{ name: rule-{index}, match: {{ method: [GET, POST], path: /api/v1/part{index}/* }}, per: ip, requests: {}, window: 1m }}",
            index + 1
        )?;
    }
    Ok(text)
}
