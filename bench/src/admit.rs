//! The cost of matching one whole request, compared with the targets.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;

use anyhow::ensure;
use http::HeaderMap;
use tidegate_core::Timestamp;
use tidegate_policy::{Admission, Facts, Matcher, NoFiles, Scratch, compile};

use crate::{median, nanos_each};

const CALLS: usize = 500_000;
/// Requested in turn, so that no single path stays in the cache.
const PATHS: usize = 4096;

/// A measurement with its upper limit.
struct Target {
    name: &'static str,
    figure: f64,
    max: f64,
    unit: &'static str,
}

pub(crate) fn run(headers: &HeaderMap) -> anyhow::Result<()> {
    println!("\n{:44} {:>10} {:>10}", "one whole request", "", "target");
    let (few, many) = (endpoints(10, headers)?, endpoints(10_000, headers)?);
    let (few_rules, many_rules) = (rules(10, headers)?, rules(10_000, headers)?);
    let target = |name, figure, max, unit| Target { name, figure, max, unit };
    let targets = [
        target("match, 10 endpoint rules", few, 300.0, "ns"),
        target("match, 10 rules with paths", few_rules, 300.0, "ns"),
        target("match, 10,000 endpoint rules", many, 2.0 * few, "ns"),
        target("match, 10,000 rules with paths", many_rules, 2.0 * few_rules, "ns"),
        target("match, one rule with an expression", expression(headers)?, 2_000.0, "ns"),
        target(
            "compile and index 10,000 endpoint rules",
            compile_millis(&endpoint_policy(10_000)?)?,
            1_000.0,
            "ms",
        ),
        target(
            "compile and index 10,000 rules with paths",
            compile_millis(&rule_policy(10_000)?)?,
            1_000.0,
            "ms",
        ),
    ];
    let met = targets.iter().filter(|target| target.figure <= target.max).count();
    for Target { name, figure, max, unit } in &targets {
        let mark = if figure <= max { "" } else { "  missed" };
        println!("{name:44} {figure:>10.1} {max:>10.1} {unit}{mark}");
    }
    println!("targets: {met}/{} met", targets.len());
    ensure!(met == targets.len(), "a target was missed");
    Ok(())
}

const HEAD: &str = "\
clients: { api_key: { verify: none }, ip: { trusted_proxies: [10.0.0.0/8] } }
rate_limits:
  global: { requests: 100000, window: 1s }
  default: { requests: 1000, window: 1m }
";

/// Half the endpoints are literal, the others have a parameter.
fn endpoint_policy(count: usize) -> anyhow::Result<String> {
    let mut policy = format!("{HEAD}  endpoints:\n");
    for n in 0..count {
        let path = if n % 2 == 0 {
            format!("/api/v1/resource-{n}/items")
        } else {
            format!("GET /api/v1/resource-{n}/{{id}}")
        };
        writeln!(policy, "    '{path}': {{ requests: {}, window: 1m }}", n + 1)?;
    }
    Ok(policy)
}

fn rule_policy(count: usize) -> anyhow::Result<String> {
    let mut policy = format!("{HEAD}  rules:\n");
    for n in 0..count {
        let path = format!("/api/v1/resource-{n}/items");
        writeln!(
            policy,
            "    - {{ name: rule-{n}, match: {{ method: [GET, POST], path: {path} }}, requests: {}, window: 1m }}",
            n + 1
        )?;
    }
    Ok(policy)
}

fn endpoints(count: usize, headers: &HeaderMap) -> anyhow::Result<f64> {
    match_nanos(&endpoint_policy(count)?, count, headers)
}

fn rules(count: usize, headers: &HeaderMap) -> anyhow::Result<f64> {
    match_nanos(&rule_policy(count)?, count, headers)
}

fn expression(headers: &HeaderMap) -> anyhow::Result<f64> {
    let rule = "{ name: r, match: { when: \"request.method == 'GET' && client.tier != 'premium'\" }, requests: 9, window: 1m }";
    match_nanos(&format!("{HEAD}  rules: [{rule}]\n"), 1, headers)
}

/// Nanoseconds to match a request; every tenth path matches no rule.
fn match_nanos(policy: &str, count: usize, headers: &HeaderMap) -> anyhow::Result<f64> {
    let matcher = Matcher::new(compile("bench.yaml", policy.as_bytes(), &NoFiles)?.plan);
    let mut random = fastrand::Rng::with_seed(7);
    let path = |n: usize| {
        let resource = if n.is_multiple_of(10) { count + n } else { random.usize(..count) };
        format!("/api/v1/resource-{resource}/items")
    };
    let paths: Vec<_> = (0..PATHS).map(path).collect();
    let mut scratch = Scratch::default();
    let mut round = || {
        let mut checks = 0;
        let start = Instant::now();
        for n in 0..CALLS {
            let path = &paths[n % PATHS];
            let facts = Facts {
                method: "GET",
                host: Some("api.example.org"),
                path,
                headers,
                peer: [10, 0, 0, 1].into(),
                body: tidegate_policy::BodyFacts::Unknown,
            };
            let admission = matcher.admit(black_box(&facts), None, Timestamp::default(), &mut scratch);
            if let Admission::Checked(matched) = black_box(&admission) {
                checks += matched.checks().len();
            }
        }
        black_box(checks);
        nanos_each(start.elapsed(), CALLS as u64)
    };
    Ok(median(&mut round))
}

/// Milliseconds to compile a policy and build its matcher.
fn compile_millis(policy: &str) -> anyhow::Result<f64> {
    compile("bench.yaml", policy.as_bytes(), &NoFiles)?;
    Ok(median(|| {
        let start = Instant::now();
        let matcher =
            compile("bench.yaml", black_box(policy.as_bytes()), &NoFiles).map(|it| Matcher::new(it.plan));
        black_box(matcher.is_ok());
        start.elapsed().as_secs_f64() * 1e3
    }))
}
