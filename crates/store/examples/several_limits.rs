//! Two limits in one decision: one per client, and one shared by all clients.
//!
//! `cargo run -p tidegate-store --example several_limits`

use pollster::block_on;
use tidegate_core::{Algorithm, Check, CounterKey, Limit, RuleId, Spec, TimeSpan, Verdict};
use tidegate_store::{Clock, MemoryStore, Store, SystemClock};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = SystemClock::new();
    let store = MemoryStore::with_cap(MemoryStore::cap_for(10_000));
    let per_client = Limit::new(Algorithm::TokenBucket, Spec::new(2, TimeSpan::from_secs(60)))?;
    let shared = Limit::new(Algorithm::SlidingCounter, Spec::new(3, TimeSpan::from_secs(60)))?;

    for client in ["alice", "alice", "alice", "bob", "bob"] {
        let checks = [
            Check::new(CounterKey::new(RuleId::named("global"), b""), &shared),
            Check::new(CounterKey::new(RuleId::named("default"), client.as_bytes()), &per_client),
        ];
        let decision = block_on(store.decide(&checks, clock.now()))?;
        let left: Vec<_> = decision.outcomes.iter().map(|outcome| outcome.remaining).collect();
        match decision.verdict {
            Verdict::Pass { .. } => println!("{client:6} admitted, {left:?} left (shared, own)"),
            Verdict::NotUntil { retry_after } => {
                println!("{client:6} rejected, {left:?} left (shared, own), retry after {retry_after:?}");
            }
            Verdict::Never => println!("{client:6} exceeds the limit"),
        }
    }
    Ok(())
}
