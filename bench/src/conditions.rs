//! The most expensive conditions that a policy may have, on the longest header that a request may have.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::ensure;
use http::{HeaderMap, HeaderValue};
use tidegate_core::Timestamp;
use tidegate_policy::{Expression, Facts, Identities, IdentitySpec};

const ROUNDS: usize = 9;
/// A request head has at most 64 KiB.
const HEADER_LENGTH: usize = 63 << 10;
/// A client that sends such headers must not occupy a worker.
const MAX_PATTERN_TIME: Duration = Duration::from_millis(1);

pub(crate) fn run() -> anyhow::Result<()> {
    let mut random = fastrand::Rng::with_seed(7);
    let text: String = (0..HEADER_LENGTH).map(|_| if random.bool() { 'a' } else { 'b' }).collect();
    let headers: HeaderMap =
        [("x-text".parse()?, HeaderValue::try_from(text)?)].into_iter().collect::<HeaderMap>();
    // Nearly the largest tables; none of them matches.
    let mut slowest = Duration::ZERO;
    for pattern in ["(a|b)*a(a|b){11}c", "[ab]*a[ab]{12}c$", r"\\w+@\\w+"] {
        let time = measure(&format!("request.headers['x-text'].matches('{pattern}')"), &headers)?;
        slowest = slowest.max(report(pattern, time));
    }
    let mut patterns = String::from("false");
    for n in 0..18 {
        write!(patterns, "||request.headers['x-text'].matches('b{n}')")?;
    }
    report("18 patterns", measure(&patterns, &headers)?);
    let items = vec!["'c'"; 250].join(",");
    let contains = format!("[{items}].exists(p, request.headers['x-text'].contains(p))");
    report("250 times `contains`", measure(&contains, &headers)?);
    let concatenation = format!("request.headers['x-text']{} == ''", "+request.headers['x-text']".repeat(40));
    report("40 concatenations", measure(&concatenation, &headers)?);
    ensure!(slowest <= MAX_PATTERN_TIME, "a pattern takes longer than {} ms", MAX_PATTERN_TIME.as_millis());
    Ok(())
}

/// The median time of one evaluation.
fn measure(source: &str, headers: &HeaderMap) -> anyhow::Result<Duration> {
    let expression = Expression::compile(source)?;
    let identities = Identities::new(IdentitySpec::default())?;
    let facts = Facts {
        method: "GET",
        host: Some(""),
        path: "/",
        headers,
        peer: [192, 0, 2, 1].into(),
        body: tidegate_policy::BodyFacts::Unknown,
    };
    let identity = identities.identify(&facts, None, Timestamp::ZERO);
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let matched = black_box(expression.evaluate(&identity, None))?;
        rounds.push(start.elapsed());
        ensure!(!matched, "the condition must read the whole text");
    }
    rounds.sort();
    Ok(rounds[ROUNDS / 2])
}

fn report(name: &str, time: Duration) -> Duration {
    println!("{name:40} {:.3} ms", time.as_secs_f64() * 1e3);
    time
}
