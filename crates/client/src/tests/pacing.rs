//! The client against servers with limits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Received, Script, TestServer, URL, respond, respond_with, secs};
use crate::{BulkheadConfig, Client, ClientBuilder, ClientError};

fn plain() -> ClientBuilder {
    Client::builder().breaker(None).bulkhead(None)
}

/// A server with a fixed window for each path. It counts its rejections.
struct WindowServer {
    limit: u64,
    window: u64,
    counts: Mutex<HashMap<(String, u64), u64>>,
    rejections: Mutex<Vec<Duration>>,
}

impl WindowServer {
    fn start(limit: u64, window: u64) -> (Arc<Self>, Arc<TestServer>) {
        let rules = Arc::new(Self { limit, window, counts: Mutex::default(), rejections: Mutex::default() });
        let shared = Arc::clone(&rules);
        (rules, TestServer::new(move |_, received| shared.respond(received)))
    }

    fn respond(&self, received: &Received) -> Script {
        let window = received.at.as_secs() / self.window;
        let end = secs((window + 1) * self.window);
        let reset = end.saturating_sub(received.at).as_micros().div_ceil(1_000_000).to_string();
        let mut counts = self.counts.lock().unwrap();
        let count = counts.entry((received.path.clone(), window)).or_default();
        *count += 1;
        let remaining = self.limit.saturating_sub(*count);
        let (name, quota) = (received.path.trim_matches('/'), self.limit);
        let state = format!("\"{name}\";r={remaining};t={reset}");
        let policy = format!("\"{name}\";q={quota};w={}", self.window);
        let headers = [("ratelimit-policy", policy.as_str()), ("ratelimit", state.as_str())];
        if *count <= self.limit {
            return respond_with(200, &headers);
        }
        self.rejections.lock().unwrap().push(received.at);
        respond_with(429, &[headers[0], headers[1], ("retry-after", &reset)])
    }

    fn rejections(&self) -> usize {
        self.rejections.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn requests_one_after_another_follow_the_limit_without_any_rejection() {
    let (rules, server) = WindowServer::start(10, 20);
    let client = server.client(plain());
    for _ in 0..100 {
        assert_eq!(client.get(URL).send().await.unwrap().attempts(), 1);
    }
    assert_eq!(rules.rejections(), 0);
    let elapsed = server.clock.elapsed();
    assert!(elapsed >= secs(180), "ten windows: {elapsed:?}");
    assert!(elapsed <= secs(220), "the limit is used: {elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn requests_in_parallel_share_the_pace_without_rejections_in_steady_state() {
    let (rules, server) = WindowServer::start(10, 5);
    let client = server.client(plain().max_wait(secs(3_600)));
    client.get(URL).send().await.unwrap();
    let requests: Vec<_> = (0..200).map(|_| tokio::spawn(client.get(URL).send())).collect();
    for request in requests {
        assert_eq!(request.await.unwrap().unwrap().attempts(), 1);
    }
    assert_eq!(rules.rejections(), 0);
    let elapsed = server.clock.elapsed();
    assert!((secs(95)..=secs(130)).contains(&elapsed), "20 windows: {elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn requests_before_the_first_response_are_rejected_once_and_then_paced() {
    let (rules, server) = WindowServer::start(10, 5);
    let client = server.client(plain().max_wait(secs(3_600)));
    let requests: Vec<_> = (0..100).map(|_| tokio::spawn(client.get(URL).send())).collect();
    let mut sent = 0;
    for request in requests {
        sent += u32::from(request.await.unwrap().is_ok());
    }
    let rejections = rules.rejections.lock().unwrap().clone();
    assert!(rejections.iter().all(|at| *at < secs(1)), "no stampede at a reset: {rejections:?}");
    assert!(sent >= 30, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn request_with_nothing_left_waits_for_the_reset_and_only_one_tests_it() {
    let headers = [("x-ratelimit-limit", "5"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30")];
    let server = TestServer::new(move |number, _| match number {
        0 => respond_with(200, &headers),
        1 => Script::Delay(Duration::from_millis(500), 200),
        _ => respond(200),
    });
    let client = server.client(plain());
    client.get(URL).send().await.unwrap();
    let requests: Vec<_> = (0..5).map(|_| tokio::spawn(client.get(URL).send())).collect();
    for request in requests {
        request.await.unwrap().unwrap();
    }
    let times = server.times();
    assert!((secs(30)..=secs(33)).contains(&times[1]), "{times:?}");
    assert!(times[2] >= times[1] + Duration::from_millis(500), "others wait for the response: {times:?}");
}

#[tokio::test(start_paused = true)]
async fn wait_beyond_max_wait_or_deadline_is_an_error_at_once() {
    let headers = [("ratelimit-policy", "\"daily\";q=5;w=86400"), ("ratelimit", "\"daily\";r=0;t=600")];
    let server = TestServer::new(move |_, _| respond_with(200, &headers));
    let client = server.client(plain());
    client.get(URL).send().await.unwrap();
    for deadline in [None, Some(secs(30))] {
        let request = client.get(URL);
        let request = if let Some(deadline) = deadline { request.deadline(deadline) } else { request };
        let ClientError::RateLimited { policy, retry_after, limit } = request.send().await.unwrap_err()
        else {
            panic!("another error")
        };
        assert_eq!((policy.as_deref(), limit), (Some("daily"), Some(5)));
        assert!((secs(600)..=secs(660)).contains(&retry_after.unwrap()), "{retry_after:?}");
    }
    assert_eq!((server.count(), server.clock.elapsed()), (1, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn limit_of_one_endpoint_does_not_delay_the_others() {
    let (rules, server) = WindowServer::start(2, 50);
    let client = server.client(plain());
    let get = async |path: &str| client.get(format!("http://api.example/{path}")).send().await.unwrap();
    for path in ["search", "search", "items", "users"] {
        get(path).await;
    }
    assert!(server.clock.elapsed() < secs(1), "{:?}", server.clock.elapsed());
    get("search").await;
    assert!(server.clock.elapsed() >= secs(50), "its own limit is respected");
    assert_eq!(rules.rejections(), 0);
}

#[tokio::test(start_paused = true)]
async fn partitions_and_hosts_have_a_pace_of_their_own() {
    let server = TestServer::new(|_, _| respond_with(429, &[("retry-after", "60")]));
    let client = server.client(plain().attempts(1));
    for (url, partition) in [(URL, ""), (URL, "b"), ("http://b.example/items", "")] {
        client.get(url).partition(partition).send().await.unwrap_err();
    }
    assert_eq!((server.count(), server.clock.elapsed()), (3, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn low_limit_is_spread_over_the_rest_of_its_window() {
    let server = TestServer::new(|number, _| {
        let (remaining, reset) = (20_u64.saturating_sub(number as u64), "60");
        let remaining = remaining.to_string();
        let limits = [("x-ratelimit-limit", "100"), ("x-ratelimit-remaining", remaining.as_str())];
        respond_with(200, &[limits[0], limits[1], ("x-ratelimit-reset", reset)])
    });
    let client = server.client(plain());
    for _ in 0..3 {
        client.get(URL).send().await.unwrap();
    }
    let times = server.times();
    assert_eq!(times[1], Duration::ZERO, "the first one after the response is not delayed");
    assert!((secs(2)..=secs(4)).contains(&times[2]), "60 s / 20: {times:?}");
}

#[tokio::test(start_paused = true)]
async fn request_that_is_dropped_while_it_waits_charges_nothing() {
    let (rules, server) = WindowServer::start(4, 10);
    let client = server.client(plain());
    for _ in 0..4 {
        client.get(URL).send().await.unwrap();
    }
    let waiting: Vec<_> = (0..50).map(|_| tokio::spawn(client.get(URL).send())).collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    client.get(URL).send().await.unwrap();
    let elapsed = server.clock.elapsed();
    assert!(elapsed <= secs(21), "only the reset delays it: {elapsed:?}");
    assert_eq!((rules.rejections(), server.count()), (0, 5));
}

#[tokio::test(start_paused = true)]
async fn request_that_is_dropped_in_the_queue_of_the_bulkhead_charges_nothing() {
    let server = TestServer::new(|number, received| match received.path.as_str() {
        "/items" if number == 0 => {
            respond_with(200, &[("ratelimit-policy", "\"a\";q=4;w=50"), ("ratelimit", "\"a\";r=3;t=50")])
        }
        "/slow" => Script::Hang,
        _ => respond(200),
    });
    let bulkhead = BulkheadConfig::new(1).queue(100, secs(10));
    let client = server.client(Client::builder().bulkhead(bulkhead));
    client.get(URL).send().await.unwrap();
    let slow = tokio::spawn(client.get("http://api.example/slow").send());
    tokio::task::yield_now().await;
    for _ in 0..20 {
        let waiting = tokio::spawn(client.get(URL).send());
        tokio::task::yield_now().await;
        waiting.abort();
        assert!(waiting.await.is_err());
    }
    slow.abort();
    client.get(URL).send().await.unwrap();
    assert_eq!((server.count(), server.clock.elapsed()), (3, Duration::ZERO));
}
