use std::sync::Arc;

use tidegate_core::Timestamp;
use tidegate_limiter::Limiter;
use tidegate_policy::{ActivePolicy, NoFiles, compile};
use tidegate_store::{Clock, ManualClock, MemoryStore};
use tidegate_telemetry::Telemetry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::http::HttpState;

/// Only the first request of a client is answered at once.
const SLOW: &str =
    "rate_limits: { default: { requests: 1, window: 1h, algorithm: leaky_bucket, burst: 9, max_wait: 9h } }";
const AUTHORIZE: &str = "GET /v1/authorize HTTP/1.1\r\nHost: a\r\nX-Original-Method: GET\r\nX-Original-URI: /\r\n\
                         X-Original-Host: a\r\nX-Real-IP: 192.0.2.7\r\n\r\n";

fn worker() -> Rc<ServiceWorker<MemoryStore>> {
    let plan = compile("policy.yaml", SLOW.as_bytes(), &NoFiles).expect("a valid policy").plan;
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
    let store = Arc::new(MemoryStore::with_cap(1 << 20));
    let limiter = Limiter::new(ActivePolicy::new(plan), store, clock.clone()).expect("few limits");
    let (telemetry, http) = (Telemetry::metrics_only(1, clock), HttpState::new(Arc::default()));
    Rc::new(ServiceWorker::new(Arc::new(limiter), telemetry, http, Arc::default()))
}

/// Serves a client that sends `first`, `second` while the service waits, and then closes its side. Returns the number of its
/// responses and what is left for hyper. Time is paused.
fn serve(first: &str, second: &str) -> (usize, Option<Bytes>) {
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let ((mut client, mut io), worker) = (tokio::io::duplex(1 << 16), worker());
        let (_stop, stopping) = watch::channel(false);
        let served = async {
            let connection = PlainConnection::new(&mut io, [127, 0, 0, 1].into(), &worker, &stopping);
            let rest = connection.run().await;
            drop(io);
            rest
        };
        let asked = async {
            client.write_all(first.as_bytes()).await.expect("room");
            tokio::time::sleep(TICK / 2).await;
            client.write_all(second.as_bytes()).await.expect("room");
            client.shutdown().await.expect("still open");
            let mut received = String::new();
            client.read_to_string(&mut received).await.expect("text");
            received.matches("HTTP/1.1 200 OK").count()
        };
        let (rest, responses) = tokio::join!(served, asked);
        (responses, rest.map(|rest| rest.bytes))
    })
}

#[test]
fn delayed_request_with_another_behind_it_is_answered_after_a_half_close() {
    assert_eq!(serve(&AUTHORIZE.repeat(4), ""), (3, None), "the last one has no successor");
    let (responses, rest) = serve(&AUTHORIZE.repeat(2), AUTHORIZE);
    assert_eq!((responses, rest.as_deref()), (2, Some(AUTHORIZE.as_bytes())), "hyper serves the last one");
}

#[test]
fn delayed_request_is_dropped_if_its_client_closes_the_connection() {
    assert_eq!(serve(&AUTHORIZE.repeat(2), ""), (1, None));
}

#[test]
fn empty_line_that_arrives_during_a_delay_is_ignored() {
    assert_eq!(serve(&AUTHORIZE.repeat(2), "\r\n\r\n"), (2, None));
    let (responses, rest) = serve(&AUTHORIZE.repeat(2), "\r\nPUT");
    assert_eq!((responses, rest.as_deref()), (2, Some(&b"PUT"[..])));
}
