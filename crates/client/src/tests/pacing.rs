//! The client against servers with limits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Received, Script, TestServer, URL, delayed, respond, respond_with, secs};
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
        1 => delayed(Duration::from_millis(500), respond(200)),
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

#[tokio::test(start_paused = true)]
async fn slow_response_of_the_old_window_does_not_exhaust_the_new_one() {
    let report = |remaining: u64, reset: u64| {
        let (remaining, reset) = (remaining.to_string(), reset.to_string());
        let limits = [("x-ratelimit-limit", "5000"), ("x-ratelimit-remaining", remaining.as_str())];
        respond_with(200, &[limits[0], limits[1], ("x-ratelimit-reset", &reset)])
    };
    let server = TestServer::new(move |number, received| match received.path.as_str() {
        "/slow" => delayed(secs(3), report(0, 1)),
        _ if received.at < secs(1) => report(20, 1),
        _ => report(5_000 - number as u64, 3_600 - received.at.as_secs()),
    });
    let client = server.client(plain());
    let get = |path| client.get(format!("http://api.example{path}")).send();
    // Both paths are known.
    get("/items").await.unwrap();
    let slow = tokio::spawn(get("/slow"));
    tokio::time::sleep(secs(2)).await;
    for _ in 0..3 {
        get("/items").await.unwrap();
    }
    slow.await.unwrap().unwrap();
    for _ in 0..50 {
        assert_eq!(get("/items").await.unwrap().attempts(), 1);
    }
    assert!(server.clock.elapsed() < secs(5), "{:?}", server.clock.elapsed());
}

#[tokio::test(start_paused = true)]
async fn slow_rejection_of_the_old_window_blocks_only_until_its_own_reset() {
    let server = TestServer::new(move |number, received| {
        let (remaining, reset) = ((5_000 - number).to_string(), (3_600 - received.at.as_secs()).to_string());
        let policy = ("ratelimit-policy", "\"hourly\";q=5000;w=3600");
        match received.path.as_str() {
            "/slow" => delayed(secs(3), respond_with(429, &[policy, ("ratelimit", "\"hourly\";r=0;t=2")])),
            _ => respond_with(200, &[policy, ("ratelimit", &format!("\"hourly\";r={remaining};t={reset}"))]),
        }
    });
    let client = server.client(plain().attempts(1));
    let get = |path| client.get(format!("http://api.example{path}")).send();
    get("/items").await.unwrap();
    let slow = tokio::spawn(get("/slow"));
    tokio::time::sleep(secs(2)).await;
    get("/items").await.unwrap();
    slow.await.unwrap().unwrap_err();
    get("/items").await.unwrap();
    assert!((secs(5)..secs(6)).contains(&server.clock.elapsed()), "{:?}", server.clock.elapsed());
}

#[tokio::test(start_paused = true)]
async fn rejection_holds_back_requests_that_wait_in_the_bulkhead() {
    let rejected_at = Duration::from_millis(100);
    let server = TestServer::new(move |number, _| match number {
        0..64 => delayed(rejected_at, respond_with(429, &[("retry-after", "20")])),
        _ => respond(200),
    });
    let client = server.client(Client::builder());
    let requests: Vec<_> = (0..1_000).map(|_| tokio::spawn(client.get(URL).send())).collect();
    let mut responses = 0;
    for request in requests {
        responses += usize::from(request.await.unwrap().is_ok());
    }
    assert!(responses >= 936, "the others were sent later: {responses}");
    let early = server.times().into_iter().filter(|at| (rejected_at..secs(20)).contains(at)).count();
    assert_eq!(early, 0, "requests between the rejection and its end");
}

#[tokio::test(start_paused = true)]
async fn rejection_holds_back_requests_before_its_body_arrives() {
    let server = TestServer::new(|number, _| match number {
        0 => Script::HangingBody(429, &[("retry-after", "20")]),
        _ => respond(200),
    });
    let client = server.client(plain());
    let rejected = tokio::spawn(client.get(URL).send());
    tokio::time::sleep(Duration::from_millis(10)).await;
    client.get(URL).send().await.unwrap();
    assert!(server.times()[1] >= secs(20), "{:?}", server.times());
    rejected.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn rejection_applies_to_paths_with_ids_although_another_path_has_no_limit() {
    let unnamed = [("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "60")];
    let named = [("ratelimit-policy", "\"a\";q=10;w=60"), ("ratelimit", "\"a\";r=0;t=60")];
    for (headers, most) in [(&unnamed[..], 1), (&named[..], 2)] {
        let headers: Vec<_> = headers.iter().copied().chain([("retry-after", "60")]).collect();
        let server = TestServer::new(move |_, received| match received.path.as_str() {
            "/health" => respond(200),
            _ => respond_with(429, &headers),
        });
        let client = server.client(plain().attempts(1).max_wait(secs(30)));
        let get = async |path: String| client.get(format!("http://api.example{path}")).send().await;
        get("/health".to_owned()).await.unwrap();
        for number in 0..100_u8 {
            let name = char::from(b'a' + number % 26);
            get(format!("/items/{number}")).await.unwrap_err();
            get(format!("/users/{name}{name}")).await.unwrap_err();
        }
        assert!(server.count() <= 1 + most, "{} of 200 sent", server.count() - 1);
        if most == 2 {
            assert!(get("/health".to_owned()).await.is_ok(), "a path that is known to have no limit");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn limit_of_paths_with_ids_is_known_for_other_ids() {
    let server = TestServer::new(move |_, received| match received.path.as_str() {
        "/health" => respond(200),
        _ => respond_with(200, &[("ratelimit", "\"a\";r=0;t=600")]),
    });
    let client = server.client(plain());
    let get = async |path: &str| client.get(format!("http://api.example{path}")).send().await;
    get("/health").await.unwrap();
    get("/items/17").await.unwrap();
    assert!(matches!(get("/items/18").await, Err(ClientError::RateLimited { .. })));
    assert!(get("/items/popular").await.is_ok(), "another path");
}

#[tokio::test(start_paused = true)]
async fn max_wait_is_the_sum_of_the_waits_of_all_attempts() {
    let server = TestServer::new(|_, _| respond_with(429, &[("retry-after", "1")]));
    let client = server.client(plain().max_wait(secs(1)));
    let error = client.get(URL).send().await.unwrap_err();
    assert!(matches!(error, ClientError::RateLimited { .. }), "{error}");
    assert_eq!(server.count(), 2);
    assert!(server.clock.elapsed() <= Duration::from_millis(1_101), "{:?}", server.clock.elapsed());
}

#[tokio::test(start_paused = true)]
async fn request_that_need_not_wait_is_sent_without_any_max_wait() {
    let server = TestServer::new(|_, _| delayed(secs(1), respond(200)));
    let client = server.client(plain().max_wait(Duration::ZERO));
    let requests: Vec<_> = (0..100).map(|_| tokio::spawn(client.get(URL).send())).collect();
    for request in requests {
        request.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn rejections_of_requests_that_were_sent_together_count_once() {
    let server = TestServer::new(|number, _| match number {
        0..8 => delayed(Duration::from_millis(10 + number as u64), respond(429)),
        _ => respond(200),
    });
    let client = server.client(plain());
    let requests: Vec<_> = (0..8).map(|_| tokio::spawn(client.get(URL).send())).collect();
    for request in requests {
        assert_eq!(request.await.unwrap().unwrap().attempts(), 2);
    }
    assert!(server.clock.elapsed() < secs(2), "{:?}", server.clock.elapsed());
}

#[tokio::test(start_paused = true)]
async fn rejection_without_a_body_in_time_holds_back_requests_although_its_caller_gave_up() {
    let exhausted =
        &[("x-ratelimit-limit", "5"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "50")];
    let server = TestServer::new(|number, _| match number {
        0 => Script::HangingBody(429, exhausted),
        _ => respond(200),
    });
    let client = server.client(plain());
    let given_up = tokio::time::timeout(Duration::from_millis(500), client.get(URL).send()).await;
    assert!(given_up.is_err());
    client.get(URL).send().await.unwrap();
    assert!(server.times()[1] >= secs(50), "{:?}", server.times());
}

#[tokio::test(start_paused = true)]
async fn limit_without_a_quota_after_its_reset_waits_for_a_response_and_rejects_nothing() {
    let exhausted = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "3000")];
    let server = TestServer::new(move |number, _| match number {
        0 | 1 => respond_with(200, &exhausted),
        _ => delayed(Duration::from_millis(20), respond(200)),
    });
    let client = server.client(plain());
    let get = |path: &str| tokio::spawn(client.get(format!("http://api.example{path}")).send());
    for request in [get("/a"), get("/b")] {
        request.await.unwrap().unwrap();
    }
    tokio::time::sleep(secs(3_400)).await;
    let requests: Vec<_> = (0..20).map(|number| get(["/a", "/b"][number % 2])).collect();
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(server.count(), 3, "one request tests the limit");
    for request in requests {
        request.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn limit_with_an_endless_name_is_not_kept() {
    let name = "n".repeat(1_000);
    let server = TestServer::new(move |_, _| {
        respond_with(200, &[("ratelimit", &format!("\"{name}\";r=0;t=50, \"short\";r=5;t=50"))])
    });
    let client = server.client(plain());
    for _ in 0..2 {
        client.get(URL).send().await.unwrap();
    }
    assert_eq!(server.clock.elapsed(), Duration::ZERO);
}
