//! Checks requests without a gateway: `cargo run -p tidegate-limiter --example decide`.

use std::error::Error;
use std::sync::Arc;

use http::HeaderMap;
use tidegate_limiter::{Limiter, Ruling};
use tidegate_policy::{ActivePolicy, Facts, NoFiles, Scratch, compile};
use tidegate_store::{Clock, MemoryStore, SystemClock};

const POLICY: &[u8] = b"
rate_limits:
  default: { requests: 3, window: 1m }
  endpoints:
    /search: { requests: 1, window: 10s, algorithm: token_bucket }
";

const ANN: [u8; 4] = [192, 0, 2, 1];
const BOB: [u8; 4] = [192, 0, 2, 2];
const REQUESTS: [([u8; 4], &str); 6] =
    [(ANN, "/"), (ANN, "/search"), (ANN, "/search"), (BOB, "/search"), (ANN, "/"), (ANN, "/")];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let active = ActivePolicy::new(compile("policy.yaml", POLICY, &NoFiles)?.plan);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let limiter = Limiter::new(active, Arc::new(MemoryStore::with_cap(1 << 20)), Arc::clone(&clock))?;
    // Reuse one per thread or connection: after the first requests nothing is allocated.
    let mut scratch = Scratch::default();
    let headers = HeaderMap::new();
    for (peer, path) in REQUESTS {
        let facts = Facts { method: "GET", host: Some(""), path, headers: &headers, peer: peer.into() };
        let policy = limiter.policy();
        let ruling = limiter.check(&policy, &facts, &mut scratch, clock.now()).await;
        println!("{} GET {path}: {}", facts.peer, describe(&ruling));
    }
    Ok(())
}

fn describe(ruling: &Ruling<'_>) -> String {
    match ruling {
        Ruling::Admitted(admitted) => match admitted.report.limits().primary() {
            Some(limit) => {
                format!("admitted; {} of {} left of `{}`", limit.remaining, limit.quota, limit.name)
            }
            None => "admitted; no limit applies".to_owned(),
        },
        Ruling::Rejected(rejected) => {
            let limits = rejected.report.limits();
            let name = limits.primary().map_or("a limit", |limit| limit.name);
            match rejected.retry_after {
                Some(after) => format!("rejected by `{name}`; retry after {} s", after.as_secs_ceil()),
                None => format!("rejected by `{name}`; the cost exceeds the limit"),
            }
        }
        Ruling::Banned => "banned".to_owned(),
        Ruling::Exempt(_) => "exempt".to_owned(),
        Ruling::StoreFailed(_) | Ruling::NoRule => "no decision".to_owned(),
    }
}
