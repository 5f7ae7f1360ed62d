//! Upstreams that fail or are slow.

mod attacks;
mod breaker;
mod bulkhead;
mod deadlines;
mod ejection;
mod nginx;
mod one_client;
mod probes;
mod retries;
mod shed;
mod timeouts;

use std::sync::Arc;

use tidegate_core::Timestamp;
use tidegate_store::ManualClock;

/// A policy with one upstream `app`, its settings and the rest of the policy.
fn policy(servers: &[String], settings: &str, rest: &str) -> String {
    let servers = servers.join(", ");
    format!(
        "upstreams: {{ app: {{ servers: [{servers}], {settings} }} }}\nroutes: [{{ upstream: app }}]\n{rest}\n"
    )
}

/// A clock that stands still.
fn manual_clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Timestamp::from_secs(1_800_000_000)))
}

/// A limit whose counters never refill.
const LIMIT: &str = "rate_limits: { default: { requests: 1000, window: 1d, algorithm: fixed_window } }";

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
const PUT: &str = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";

/// A plain response with this status, and a header line.
fn status(code: &str, header: &str) -> Vec<u8> {
    format!("HTTP/1.1 {code}\r\n{header}Content-Length: 0\r\n\r\n").into_bytes()
}
