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
        let facts = Facts {
            method: "GET",
            host: Some(""),
            path,
            headers: &headers,
            peer: peer.into(),
            body: tidegate_policy::BodyFacts::Unknown,
        };
        let policy = limiter.policy();
        let ruling = limiter.check(&policy, &facts, &mut scratch, clock.now()).await;
        println!("{} GET {path}: {}", facts.peer, describe(&ruling));
    }
    Ok(())
}

fn describe(ruling: &Ruling<'_>) -> String {
    let limits = ruling.report().limits();
    match (ruling, limits.primary()) {
        (Ruling::Serve(_), Some(limit)) => {
            format!("served; {} of {} left of `{}`", limit.remaining, limit.quota, limit.name)
        }
        (Ruling::Serve(serve), None) => format!("served; no limit applies ({:?})", serve.reason),
        (Ruling::Act(act), _) => format!("`{}`: {}", act.rule_name(), act.action()),
        (Ruling::Refuse(refuse), limit) => {
            let name = limit.map_or("no limit", |limit| limit.name);
            match refuse.retry_after {
                Some(after) => format!("refused by `{name}`; retry after {} s", after.seconds),
                None => format!("refused by `{name}`: {:?}", refuse.reason),
            }
        }
    }
}
