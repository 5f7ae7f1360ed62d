//! The tiers, and the requests of the clients.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::Request;
use tokio::time::{Instant, sleep_until, timeout};
use tower::ServiceExt;

use super::caller::Stack;
use super::clock::RuntimeClock;
use super::report::{CascadeReport, RequestKind};
use super::tier::{Hang, NEEDS_BOTTOM, Remote, Tier, TierRequest};

pub(super) const SEED: u64 = 42;
/// Requests to the top tier; every second one needs the bottom tier.
pub(super) const REQUESTS_PER_SECOND: u64 = 500;
/// Clients wait this long.
pub(super) const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);
/// The seconds in which the bottom tier hangs.
pub(super) const HANG: Range<u64> = 10..20;
const SECONDS: u64 = 40;

/// Serves 275 requests per second, of which 250 are needed.
const BOTTOM: (usize, Duration) = (11, Duration::from_millis(40));
const MIDDLE: (usize, Duration) = (1_000, Duration::from_millis(5));
const TOP: (usize, Duration) = (300, Duration::from_millis(5));
/// With the stack, calls to the next tier in flight.
const CONCURRENT: usize = 100;

/// Runs the load on virtual time.
pub(super) fn run(stack: Stack) -> anyhow::Result<CascadeReport> {
    // The layers use the random numbers of this thread, which is the only one.
    fastrand::seed(SEED);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(run_load(stack))
}

async fn run_load(stack: Stack) -> anyhow::Result<CascadeReport> {
    let start = Instant::now();
    let at = |second: u64| start + Duration::from_secs(second);
    let bottom_calls = Arc::new(AtomicU64::new(0));
    let top = chain(stack, Hang { start: at(HANG.start), end: at(HANG.end) }, &bottom_calls)?;
    let report = Arc::new(CascadeReport::new(stack, SECONDS));
    let mut clients = Vec::new();
    for second in 0..SECONDS {
        let calls_before = bottom_calls.load(Ordering::Relaxed);
        for number in 0..REQUESTS_PER_SECOND {
            let offset =
                Duration::from_secs(1) * u32::try_from(number)? / u32::try_from(REQUESTS_PER_SECOND)?;
            sleep_until(at(second) + offset).await;
            let kind = if number % 2 == 0 { RequestKind::NeedsBottom } else { RequestKind::Independent };
            let (top, report) = (top.clone(), Arc::clone(&report));
            clients.push(tokio::spawn(async move {
                let response = timeout(CLIENT_TIMEOUT, top.oneshot(request(kind))).await;
                let is_good = matches!(response, Ok(Ok(response)) if response.status().is_success());
                report.count(second, kind, is_good);
            }));
        }
        report.count_bottom_calls(second, bottom_calls.load(Ordering::Relaxed) - calls_before);
    }
    for client in clients {
        client.await?;
    }
    Ok(Arc::into_inner(report).unwrap_or_else(|| unreachable!("all clients have ended")))
}

/// The top tier as clients see it.
fn chain(stack: Stack, hang: Hang, bottom_calls: &Arc<AtomicU64>) -> anyhow::Result<Remote> {
    let clock = RuntimeClock::start();
    let tier = |(workers, work): (usize, Duration)| Tier::new(workers, work);
    let bottom = stack.server(tier(BOTTOM).hangs(hang), &clock);
    let to_bottom = stack.client(Remote::new(bottom, Arc::clone(bottom_calls)), CONCURRENT, &clock)?;
    let middle = stack.server(tier(MIDDLE).calls(to_bottom), &clock);
    let to_middle = stack.client(Remote::new(middle, Arc::default()), CONCURRENT, &clock)?;
    let top = stack.server(tier(TOP).calls(to_middle), &clock);
    Ok(Remote::new(top, Arc::default()))
}

/// Clients say how long they wait; only the stack heeds it.
fn request(kind: RequestKind) -> TierRequest {
    let mut request = Request::new(());
    if kind == RequestKind::NeedsBottom {
        *request.uri_mut() = http::Uri::from_static(NEEDS_BOTTOM);
    }
    let millis = http::HeaderValue::from_static("1000");
    request.headers_mut().insert("x-request-deadline-ms", millis);
    request
}
