//! A scrape with 10,000 rules and a million clients, while a worker keeps counting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use tidegate_policy::{NoFiles, compile};
use tidegate_store::{Clock, SystemClock};
use tidegate_telemetry::{DecisionKind, Metrics, MetricsReader, Protocol};

use crate::flood::{resident_bytes, run_queue_wait};

const RULES: usize = 10_000;
const CLIENTS: u32 = 1_000_000;
const SCRAPES: usize = 20;
const LONGEST_SCRAPE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// Two megabytes, plus 200 bytes per rule.
const MAX_BYTES: u64 = 2_000_000 + 200 * RULES as u64;

/// Returns whether the target is met.
#[expect(clippy::cast_precision_loss, reason = "figures to read, not to compute with")]
pub(super) fn run() -> anyhow::Result<bool> {
    let rules: Vec<_> = (0..RULES - 1)
        .map(|rule| format!("    /api/v1/things/{rule}: {{ requests: 100, window: 60 }}\n"))
        .collect();
    let policy =
        format!("rate_limits:\n  default: {{ requests: 1, window: 1 }}\n  endpoints:\n{}", rules.concat());
    let plan = compile("bench.yaml", policy.as_bytes(), &NoFiles)?.plan;
    let clock = SystemClock::new();
    let before = resident_bytes()?;
    let metrics = Metrics::new(2, clock.now());
    let slots = Arc::new(metrics.apply(&plan));
    let ids: Vec<_> = plan.rate_limits.iter().map(|rule| rule.id).collect();
    let handle = metrics.handle(Protocol::Gateway);
    for client in 0..CLIENTS {
        let key = [b"a\x04\0\0\0", &client.to_be_bytes()[..]].concat();
        let rule = ids[client as usize % ids.len()];
        handle.record_decision(DecisionKind::Rejected, 1_000);
        handle.record_rejection(&slots, rule, &key, clock.now());
    }
    let done = Arc::new(AtomicBool::new(false));
    let counting = {
        let (handle, slots, done, ids) =
            (metrics.handle(Protocol::Gateway), Arc::clone(&slots), Arc::clone(&done), ids.clone());
        std::thread::spawn(move || -> anyhow::Result<Duration> {
            let (clock, mut longest, mut waited) = (SystemClock::new(), Duration::ZERO, run_queue_wait()?);
            let mut rng = fastrand::Rng::with_seed(7);
            while !done.load(Ordering::Relaxed) {
                let key = [b"a\x04\0\0\0", &rng.u32(..CLIENTS).to_be_bytes()[..]].concat();
                let (rule, now) = (ids[rng.usize(..ids.len())], clock.now());
                let start = Instant::now();
                handle.record_decision(DecisionKind::Rejected, 1_000);
                handle.record_rejection(&slots, rule, &key, now);
                let mut took = start.elapsed();
                if took > LONGEST_PAUSE {
                    // Subtract the time in which other threads had the processor.
                    let now_waited = run_queue_wait()?;
                    took = took.saturating_sub(now_waited.saturating_sub(waited));
                    waited = now_waited;
                }
                longest = longest.max(took);
            }
            Ok(longest)
        })
    };
    let (mut slowest, mut bytes) = (Duration::ZERO, 0);
    for _ in 0..SCRAPES {
        let start = Instant::now();
        let text = metrics.exposition(MetricsReader::Scraper, clock.now()).into_text();
        slowest = slowest.max(start.elapsed());
        bytes = bytes.max(text.len() as u64);
    }
    let memory = resident_bytes()?.saturating_sub(before);
    done.store(true, Ordering::Relaxed);
    let pause = counting.join().ok().context("the counting thread has panicked")??;
    println!("a scrape with {RULES} rules and {CLIENTS} clients, while a worker counts");
    println!("  slowest of {SCRAPES}   {:.1} ms (target 100)", slowest.as_secs_f64() * 1e3);
    println!("  text            {:.2} MB (target {:.2})", bytes as f64 / 1e6, MAX_BYTES as f64 / 1e6);
    println!("  memory          {:.2} MB (target {:.2})", memory as f64 / 1e6, MAX_BYTES as f64 / 1e6);
    println!("  longest pause   {:.3} ms of the counting thread (target 1)", pause.as_secs_f64() * 1e3);
    Ok(slowest <= LONGEST_SCRAPE && bytes <= MAX_BYTES && memory <= MAX_BYTES && pause <= LONGEST_PAUSE)
}
