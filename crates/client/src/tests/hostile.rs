//! Servers that send nonsense.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use proptest::prelude::*;

use super::{Script, TestServer, URL, respond_with, secs};
use crate::{Client, ClientError};

const NAMES: [&str; 11] = [
    "retry-after",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-rate-limit-remaining",
    "x-ratelimit-retry-after",
];

const VALUES: [&str; 22] = [
    "0",
    "-1",
    "1",
    "5",
    "60",
    "3600",
    "18446744073709551615",
    "999999999999999999999999999999",
    "1700000000000",
    "999999999",
    "1e9",
    "NaN",
    "",
    ",,,;;;",
    "\"a\";r=0;t=0",
    "\"a\";r=0;t=999999999999999",
    "\"a\";r=-5;t=-5, \"b\";r=999999999999999;t=1",
    "\"a\";q=0;w=0",
    "limit=0, remaining=0, reset=0",
    "Thu, 01 Jan 1970 00:00:00 GMT",
    "Fri, 31 Dec 9999 23:59:59 GMT",
    "Sun, 99 Foo 0000 99:99:99 GMT",
];

/// Runs a test on paused time.
pub(super) fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(test);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn client_survives_any_headers_and_never_waits_longer_than_it_may(
        script in prop::collection::vec(
            (prop::sample::select(vec![200_u16, 429, 503]),
             prop::collection::vec((prop::sample::select(&NAMES[..]), prop::sample::select(&VALUES[..])), 0..6)),
            1..12),
    ) {
        run(async move {
            let server = TestServer::new(move |number, _| {
                let (status, headers) = &script[number % script.len()];
                respond_with(*status, headers)
            });
            let client = server.client(Client::builder().attempts(2).max_wait(secs(30)).breaker(None));
            for _ in 0..12 {
                let before = server.clock.elapsed();
                let result = client.get(URL).send().await;
                // The wait for limits, and a backoff.
                let waited = server.clock.elapsed().saturating_sub(before);
                assert!(waited <= secs(33 + 3), "{waited:?}");
                assert!(matches!(
                    &result,
                    Ok(_) | Err(ClientError::RateLimited { .. } | ClientError::BudgetExhausted { .. })
                ));
                if result.is_err() {
                    // An unreachable reset is given up after an hour at most.
                    tokio::time::sleep(secs(10)).await;
                }
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn reset_in_the_far_future_is_tested_again_after_an_hour() {
    let server = TestServer::new(|_, _| {
        respond_with(200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9000000000")])
    });
    let client = server.client(Client::builder());
    client.get(URL).send().await.unwrap();
    assert!(client.get(URL).send().await.is_err());
    tokio::time::sleep(secs(3_960)).await;
    assert!(client.get(URL).send().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn server_that_keeps_renaming_its_limits_does_not_fill_the_memory_or_stop_the_client() {
    let server = TestServer::new(|number, _| {
        let limits: Vec<_> = (0..40).map(|index| format!("\"{number}-{index}\";r=9;t=9")).collect();
        respond_with(200, &[("ratelimit", &limits.join(", "))])
    });
    let client = server.client(Client::builder());
    for number in 0..2_000 {
        client.get(format!("{URL}/{number}")).send().await.unwrap();
    }
    assert_eq!(server.count(), 2_000);
}

#[tokio::test(start_paused = true)]
async fn rejection_names_the_policy_of_its_body_or_headers() {
    let cases: [(&str, &str, Option<&str>, Option<u64>); 4] = [
        ("", r#"{"error":"rate_limit_exceeded","limit":30,"rule":"search"}"#, Some("search"), Some(30)),
        ("", r#"{"violated-policies":["daily"]}"#, Some("daily"), None),
        ("\"burst\";r=3;t=9, \"hourly\";r=0;t=9", "Slow down!", Some("hourly"), None),
        ("", "", None, None),
    ];
    for (header, body, expected, quota) in cases {
        let server = TestServer::new(move |_, _| {
            let headers = vec![("ratelimit", header.to_owned()), ("retry-after", "9".to_owned())];
            Script::Respond(429, headers, body)
        });
        let client = server.client(Client::builder().attempts(1));
        let error = client.get(URL).send().await.unwrap_err();
        assert_eq!((error.policy(), error.retry_after()), (expected, Some(secs(9))), "{error}");
        assert!(matches!(error, ClientError::RateLimited { limit, .. } if limit == quota));
        let unsent = client.get(URL).deadline(secs(5)).send().await.unwrap_err();
        assert_eq!((unsent.policy(), server.count()), (expected, 1), "the client knows it too: {unsent}");
    }
}

#[tokio::test(start_paused = true)]
async fn body_beyond_the_longest_accepted_one_is_an_error() {
    let server = TestServer::new(|_, _| Script::Respond(200, Vec::new(), "four"));
    let client = server.client(Client::builder().max_response_body(3));
    let error = client.get(URL).send().await.unwrap().bytes().await.unwrap_err();
    assert!(matches!(error, ClientError::BodyTooLarge { limit: 3 }), "{error}");
}

/// The buffer of a part of a body: counts those that are kept.
struct ReadBuffer(Arc<AtomicUsize>);

impl AsRef<[u8]> for ReadBuffer {
    fn as_ref(&self) -> &[u8] {
        b"x"
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A body of single bytes, each in a buffer of its own.
struct TinyParts {
    left: usize,
    kept: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl http_body::Body for TinyParts {
    type Data = Bytes;
    type Error = crate::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, crate::BoxError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        let kept = self.kept.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(kept, Ordering::SeqCst);
        let data = Bytes::from_owner(ReadBuffer(Arc::clone(&self.kept)));
        Poll::Ready(Some(Ok(Frame::data(data))))
    }
}

#[tokio::test(start_paused = true)]
async fn body_of_many_small_parts_does_not_keep_the_buffers_of_all_of_them() {
    let most = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&most);
    let server = TestServer::new(move |_, _| {
        let body = TinyParts { left: 10_000, kept: Arc::default(), most: Arc::clone(&seen) };
        Script::Custom(http::Response::new(body.boxed_unsync()))
    });
    let client = server.client(Client::builder());
    let body = client.get(URL).send().await.unwrap().bytes().await.unwrap();
    assert_eq!((body.len(), most.load(Ordering::SeqCst)), (10_000, 1));
}

#[tokio::test]
async fn invalid_requests_are_errors() {
    let client = Client::new().unwrap();
    for url in [
        "",
        "/path",
        "ftp://a.example",
        "http://",
        "http://a b",
        "http://ü.example/?secret=1",
        "http://a:b@c/",
        "http://a.example/\r\nadmin logged in",
    ] {
        let error = client.get(url).send().await.unwrap_err();
        assert!(matches!(error, ClientError::InvalidUrl { .. }), "{url}: {error}");
        assert!(!error.to_string().contains("secret"), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    let secret = http::HeaderValue::from_static("secret");
    let builder = Client::builder().default_header(http::header::AUTHORIZATION, secret);
    assert!(!format!("{builder:?}").contains("secret"));
    assert!(!format!("{:?}", builder.build().unwrap()).contains("secret"));
    for length in ["3", "9", "+8", ""] {
        let request = client.put("http://127.0.0.1:1/").header("content-length", length).body("8 bytes.");
        let error = request.send().await.unwrap_err();
        assert!(matches!(error, ClientError::InvalidRequest { .. }), "{length}: {error}");
    }
    for url in [
        "ftp://user:secret@a.example/",
        "http://user:secret@a b/",
        "http://user:secret?@a.example/",
        "http://user:sec/secret@a.example/",
        "user:secret@a.example",
        "http://a b/?user=a@b&key=secret",
        "https://user:secret@:80/",
    ] {
        let request = client.get(url).header("authorization", "secret");
        assert!(!format!("{request:?}").contains("secret"), "{request:?}");
        let error = request.send().await.unwrap_err();
        assert!(matches!(error, ClientError::InvalidUrl { .. }), "{url}: {error}");
        assert!(!format!("{error} {error:?}").contains("secret"), "{url}: {error}");
    }
    let error = client.get(URL).header("bad header", "x").send().await.unwrap_err();
    assert!(matches!(error, ClientError::InvalidRequest { .. }), "{error}");
}
