//! Which requests are sent again, and when.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http_body_util::Full;
use tidegate_core::{Jitter, RetryBudget};

use super::{Script, TestServer, URL, respond, respond_with, secs};
use crate::{Client, ClientBuilder, ClientError};

fn plain() -> ClientBuilder {
    Client::builder().breaker(None).bulkhead(None)
}

/// The times between requests.
fn waits(server: &TestServer) -> Vec<Duration> {
    server.times().windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect()
}

/// The same in whole seconds, rounded down.
fn gaps(server: &TestServer) -> Vec<u64> {
    waits(server).iter().map(Duration::as_secs).collect()
}

#[tokio::test(start_paused = true)]
async fn get_that_fails_is_sent_five_times_with_growing_waits() {
    for status in [500, 502, 503, 504] {
        let server = TestServer::new(move |_, _| respond(status));
        let client = server.client(plain().backoff(secs(1), secs(30), Jitter::None));
        let response = client.get(URL).send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.attempts()), (status, 5));
        assert_eq!(gaps(&server), [1, 2, 4, 8], "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn default_backoff_stays_between_base_and_cap() {
    let server = TestServer::new(|_, _| Script::RefuseConnection);
    let client = server.client(plain().attempts(12));
    let error = client.get(URL).send().await.unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    assert_eq!(server.count(), 12);
    assert!(gaps(&server).iter().all(|gap| (1..=30).contains(gap)), "{:?}", gaps(&server));
}

#[tokio::test(start_paused = true)]
async fn request_that_succeeds_later_is_not_sent_again() {
    let server = TestServer::new(|number, _| match number {
        0 => Script::Reset,
        1 => Script::RefuseConnection,
        _ => respond(200),
    });
    let response = server.client(plain()).put(URL).body("data").send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.attempts(), server.count()), (200, 3, 3));
    assert!(server.received().iter().all(|received| received.body == "data"), "the whole body each time");
}

#[tokio::test(start_paused = true)]
async fn other_statuses_are_not_retried() {
    for status in [200, 301, 400, 404, 408, 501, 505] {
        let server = TestServer::new(move |_, _| respond(status));
        let response = server.client(plain()).get(URL).send().await.unwrap();
        assert_eq!((response.status().as_u16(), server.count()), (status, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn post_and_patch_that_fail_are_not_sent_again_unless_allowed() {
    let failures: [fn() -> Script; 3] = [|| respond(503), || Script::RefuseConnection, || Script::Reset];
    for failure in failures {
        let server = TestServer::new(move |_, _| failure());
        let client = server.client(plain());
        let _ = client.post(URL).body("x").send().await;
        let _ = client.patch(URL).body("x").send().await;
        assert_eq!(server.count(), 2);
        let _ = client.patch(URL).body("x").allow_replay(true).send().await;
        assert_eq!(server.count(), 2 + 5);
    }
}

#[tokio::test(start_paused = true)]
async fn post_with_idempotency_key_is_retried_with_the_same_key() {
    let server = TestServer::new(|number, _| respond(if number % 3 < 2 { 503 } else { 201 }));
    let client = server.client(plain());
    for _ in 0..2 {
        let response = client.post(URL).body("order").idempotency_key(true).send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.attempts()), (201, 3));
    }
    let received = server.received();
    let keys: Vec<_> = received.iter().map(|received| received.headers["idempotency-key"].clone()).collect();
    assert!(keys[..3].iter().all(|key| *key == keys[0]) && keys[3..].iter().all(|key| *key == keys[3]));
    assert_ne!(keys[0], keys[3], "each request has a key of its own");
    assert_eq!((keys[0].len(), keys[0].as_bytes()[14]), (36, b'4'), "a UUID of version 4");
}

#[tokio::test(start_paused = true)]
async fn stream_body_is_never_sent_twice() {
    let server = TestServer::new(|_, _| respond(503));
    let client = server.client(plain());
    let response = client.put(URL).stream(Full::from("part")).send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.attempts(), server.count()), (503, 1, 1));
    let server = TestServer::new(|_, _| respond_with(429, &[("retry-after", "1")]));
    let client = server.client(plain());
    assert!(client.put(URL).stream(Full::from("part")).send().await.is_err());
    assert_eq!(server.count(), 1, "not even after a rejection");
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_a_503_is_honoured_and_never_early() {
    let server = TestServer::new(|number, _| match number {
        0 => respond_with(503, &[("retry-after", "20")]),
        _ => respond(200),
    });
    let client = server.client(plain());
    client.get(URL).send().await.unwrap();
    let wait = server.times()[1];
    assert!((secs(20)..=secs(22)).contains(&wait), "{wait:?}");
    let server = TestServer::new(|_, _| respond_with(503, &[("retry-after", "3600")]));
    let response = server.client(plain()).get(URL).send().await.unwrap();
    assert_eq!((response.status().as_u16(), server.count()), (503, 1), "longer than the longest wait");
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_zero_does_not_shorten_the_backoff() {
    let server = TestServer::new(|_, _| respond_with(503, &[("retry-after", "0")]));
    let client = server.client(plain().backoff(secs(1), secs(30), Jitter::None));
    client.get(URL).send().await.unwrap();
    assert_eq!(gaps(&server), [1, 2, 4, 8]);
}

#[tokio::test(start_paused = true)]
async fn rejected_post_is_sent_again_after_retry_after() {
    let server = TestServer::new(|number, _| match number {
        0 => respond_with(429, &[("retry-after", "7")]),
        _ => respond(201),
    });
    let response = server.client(plain()).post(URL).body("x").send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.attempts()), (201, 2));
    let wait = server.times()[1];
    assert!((secs(7)..=Duration::from_millis(7_701)).contains(&wait), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn rejections_without_retry_after_wait_one_second_doubling_to_sixty() {
    let server = TestServer::new(|_, _| respond(429));
    let client = server.client(plain().attempts(9).max_wait(secs(600)));
    let error = client.get(URL).send().await.unwrap_err();
    assert!(matches!(error, ClientError::RateLimited { policy: None, .. }), "{error}");
    let waits = waits(&server);
    assert_eq!(waits.len(), 8);
    for (wait, expected) in waits.iter().zip([1, 2, 4, 8, 16, 32, 60, 60]) {
        let expected = secs(expected);
        let latest = (expected + expected / 10).min(secs(60)) + Duration::from_millis(2);
        assert!((expected..=latest).contains(wait), "{waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rejections_with_retry_after_of_zero_or_a_past_date_wait_as_without() {
    for value in ["0", "0.0", "Tue, 14 Nov 2000 22:13:00 GMT"] {
        let server = TestServer::new(move |_, _| respond_with(429, &[("retry-after", value)]));
        let client = server.client(plain());
        client.get(URL).send().await.unwrap_err();
        assert_eq!(gaps(&server), [1, 2, 4, 8], "{value}");
    }
}

#[tokio::test(start_paused = true)]
async fn failing_host_does_not_use_the_retries_of_others() {
    let server = TestServer::new(|_, received| match received.host.as_str() {
        "good.example" if received.at >= secs(1) => respond(200),
        _ => respond(503),
    });
    let client = server.client(plain().retry_budget(RetryBudget::new(RetryBudget::SHARE, 1)));
    let failing: Vec<_> = (0..20).map(|_| tokio::spawn(client.get(URL).send())).collect();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let response = client.get("http://good.example/").deadline(secs(5)).send().await.unwrap();
    assert!(response.attempts() > 1, "it has a budget of its own");
    for request in failing {
        request.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn success_resets_the_wait_after_rejections() {
    let server = TestServer::new(|number, _| respond(if number == 3 { 200 } else { 429 }));
    let client = server.client(plain().attempts(4));
    client.get(URL).send().await.unwrap();
    client.get(URL).send().await.unwrap_err();
    assert_eq!(gaps(&server), [1, 2, 4, 0, 1, 2, 4]);
}

#[tokio::test(start_paused = true)]
async fn thousand_failing_requests_cause_at_most_a_hundred_retries_plus_the_minimum() {
    let failures: [fn() -> Script; 2] = [|| respond(503), || Script::Reset];
    for failure in failures {
        let server = TestServer::new(move |_, _| failure());
        let client = server.client(plain());
        let requests: Vec<_> = (0..1_000).map(|_| tokio::spawn(client.get(URL).send())).collect();
        let mut exhausted = 0;
        for request in requests {
            exhausted += usize::from(match request.await.unwrap() {
                // A response stays a response when it cannot be retried.
                Ok(response) => response.status() == 503 && response.attempts() == 1,
                Err(error) => matches!(error, ClientError::BudgetExhausted { last }
                    if matches!(*last, ClientError::ConnectionLost { .. })),
            });
        }
        let retries = server.count() - 1_000;
        let minimum = 10 * (usize::try_from(server.clock.elapsed().as_secs()).unwrap() + 1);
        assert!(exhausted >= 890, "{exhausted}");
        assert!((100..=100 + minimum).contains(&retries), "{retries} retries, minimum {minimum}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_that_is_dropped_while_it_waits_returns_to_the_budget() {
    let server = TestServer::new(|_, _| respond_with(503, &[("retry-after", "30")]));
    let client = server.client(plain().retry_budget(RetryBudget::new(RetryBudget::SHARE, 1)));
    let waiting = tokio::spawn(client.get(URL).send());
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(
        (server.count(), client.retries_left(URL).unwrap()),
        (1, 0),
        "the retry is withdrawn before its wait"
    );
    waiting.abort();
    assert!(waiting.await.is_err());
    assert_eq!(client.retries_left(URL).unwrap(), 1, "a retry that is not sent is returned");
}

#[tokio::test(start_paused = true)]
async fn attempt_that_hangs_times_out_and_is_retried() {
    let server = TestServer::new(|number, _| if number == 0 { Script::Hang } else { respond(200) });
    let client = server.client(plain().timeout(secs(2)));
    assert_eq!(client.get(URL).send().await.unwrap().attempts(), 2);
    let server = TestServer::new(|_, _| Script::Hang);
    let error = server.client(plain().attempts(1)).get(URL).timeout(secs(3)).send().await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { after } if after == secs(3)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn requests_of_every_method_have_their_body_and_default_headers() {
    let server = TestServer::new(|_, _| respond(200));
    let client = Arc::new(server.client(plain()));
    for method in [Method::GET, Method::OPTIONS, Method::DELETE] {
        let request = http::Request::builder().method(method).uri(URL).body("body").unwrap();
        client.request(request).header("x-a", "1").send().await.unwrap();
    }
    for received in server.received() {
        assert_eq!((received.body.as_ref(), received.path.as_str()), (&b"body"[..], "/items"));
        assert_eq!(received.headers["x-a"], "1");
        assert!(received.headers["user-agent"].to_str().unwrap().starts_with("tidegate-client/"));
    }
}
