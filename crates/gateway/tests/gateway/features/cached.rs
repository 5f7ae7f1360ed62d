//! Stored responses in place of rejections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use proptest::prelude::*;
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_store::ManualClock;
use tidegate_testkit::client::CollectedResponse;
use tidegate_testkit::server::{HttpServer, RecordingServer, Reply, full};

use crate::fixture::{ResourceLimits, TestGateway, active};

const NONE: &[(&str, &str)] = &[];

/// A limit of `requests` for everybody together, so that every later request exceeds it.
fn limit(requests: u32, more: &str) -> String {
    format!(
        "clients: {{ identify_by: [api_key, ip], api_key: {{ verify: none }} }}\n\
         rate_limits:\n  global: {{ requests: {requests}, window: 1h, algorithm: token_bucket, on_exceed: {{ cached: {{ for: 60s }} }} }}\n{more}\n"
    )
}

/// Responds with the number of the request and these headers.
async fn counting(headers: &'static [(&'static str, &'static str)]) -> HttpServer {
    let count = Arc::new(AtomicUsize::new(0));
    HttpServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::Relaxed) + 1;
        async move {
            let mut response = Response::new(full(number.to_string()));
            for (name, value) in headers {
                response.headers_mut().append(*name, value.parse().unwrap());
            }
            response
        }
    })
    .await
}

fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request<Empty<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", "test");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Empty::new()).unwrap()
}

fn assert_hit(response: &CollectedResponse, body: &str) {
    assert_eq!((response.status.as_u16(), response.text()), (200, body));
    let status = response.header("cache-status").expect("Cache-Status");
    assert!(status.starts_with("tidegate; hit; ttl="), "{status}");
    assert!(response.header("age").is_some() && response.header("warning").is_none());
}

#[tokio::test]
async fn request_above_the_limit_gets_the_last_response_to_its_url() {
    let server =
        counting(&[("x-b", "1"), ("x-ratelimit-limit", "7"), ("x-request-id", "upstream"), ("age", "3")])
            .await;
    for url in [server.url(), server.h2c()] {
        let gateway = TestGateway::before(&[url], &limit(2, ""));
        let before: u64 = gateway.get("/a?b").await.text().parse().unwrap();
        let last = gateway.get("/a?b").await;
        assert_eq!(last.text(), (before + 1).to_string());
        assert_eq!(last.header("cache-status"), None);
        let hit = gateway.get("/a?b").await;
        assert_hit(&hit, last.text());
        assert_eq!((hit.header("x-b"), hit.header("x-request-id")), (Some("1"), None));
        assert!((3..10).contains(&hit.number("age")), "{:?}", hit.header("age"));
        assert_eq!((hit.number("x-ratelimit-limit"), hit.number("x-ratelimit-remaining")), (2, 0));
        let head = gateway.send(request("HEAD", "/a?b", NONE)).await;
        assert_eq!(
            (head.status.as_u16(), head.number("content-length"), head.text()),
            (200, last.text().len() as u64, "")
        );
        for other in ["/a", "/a?c", "/a?b=", "/A?b"] {
            assert_eq!(gateway.get(other).await.status, 429, "{other}");
        }
        // A service may build links with the port.
        for host in ["other.example", "test:81"] {
            let other = gateway.send_raw(&format!("GET /a?b HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
            assert_eq!(other.status, 429, "{host}");
        }
        assert_eq!(gateway.send(request("POST", "/a?b", NONE)).await.status, 429);
        let actions = "rate_limit_actions_total{action=\"cached\",mode=\"enforce\",rule=\"global\"}";
        assert_eq!(gateway.metric(actions), 2);
        assert_eq!(
            gateway.metric("rate_limit_requests_total{decision=\"rejected\",protocol=\"gateway\"}"),
            7
        );
    }
}

#[tokio::test]
async fn response_is_served_at_most_as_long_as_the_limit_says() {
    let server = counting(&[("age", "5"), ("cache-control", "max-age=35")]).await;
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_800_000_000)));
    let active = active(&[server.url()], &limit(1, ""), &[]);
    let gateway = TestGateway::with_clock(clock.clone(), active, ResourceLimits::default());
    gateway.get("/").await;
    for (seconds, age, status) in
        [(20, "25", "hit; ttl=10"), (20, "45", "hit; ttl=-10"), (15, "60", "hit; ttl=-25")]
    {
        clock.advance(TimeSpan::from_secs(seconds));
        let hit = gateway.get("/").await;
        assert_eq!(
            (hit.header("age"), hit.header("cache-status")),
            (Some(age), Some(&*format!("tidegate; {status}")))
        );
    }
    clock.advance(TimeSpan::from_micros(1));
    assert_eq!(gateway.get("/").await.status, 429);
}

#[tokio::test]
async fn hit_charges_nothing_and_is_no_violation() {
    let server = counting(&[]).await;
    let gateway = TestGateway::before(
        &[server.url()],
        "rate_limits:\n  global: { requests: 3, window: 1h, algorithm: token_bucket }\n  \
         default: { requests: 1, window: 1h, algorithm: token_bucket, on_exceed: { cached: { for: 1h } }, penalty: { after: 1, for: 1h } }\n",
    );
    for _ in 0..5 {
        assert_eq!(gateway.get("/").await.text(), "1");
    }
    // Two units of `global` are left, so that is not what refuses this one.
    let refused = gateway.get("/other").await;
    assert_eq!((refused.status.as_u16(), refused.json()["rule"].as_str()), (429, Some("default")));
    assert_eq!(gateway.get("/").await.status, 429, "the refusal was a violation");
}

#[tokio::test]
async fn response_that_may_be_personal_or_must_be_validated_is_not_served() {
    for header in [
        ("cache-control", "private"),
        ("cache-control", "max-age=60, No-Store"),
        ("cache-control", "no-cache"),
        ("cache-control", "must-revalidate"),
        ("cache-control", "s-maxage=0"),
        ("cache-control", "proxy-revalidate"),
        ("set-cookie", "a=b"),
        ("vary", "*"),
        // The gateway writes these, so the headers of a client do not tell what the server has seen.
        ("vary", "Accept, X-Forwarded-For"),
        ("vary", "X-Request-Id"),
        ("age", "61"),
        ("pragma", "no-cache"),
    ] {
        let headers: &'static [(&str, &str)] = Box::leak(Box::new([header]));
        let server = counting(headers).await;
        let gateway = TestGateway::before(&[server.url()], &limit(1, ""));
        assert_eq!(gateway.get("/").await.status, 200);
        assert_eq!(gateway.get("/").await.status, 429, "{header:?}");
    }
}

#[tokio::test]
async fn client_that_wants_a_confirmed_response_is_refused() {
    let server = counting(&[("age", "10"), ("cache-control", "max-age=60")]).await;
    let gateway = TestGateway::before(&[server.url()], &limit(1, ""));
    gateway.get("/").await;
    for (value, status) in
        [("max-age=5", 429), ("no-cache", 429), ("max-age=30", 200), ("only-if-cached", 200)]
    {
        assert_eq!(gateway.get_with("/", &[("cache-control", value)]).await.status, status, "{value}");
    }
    for (name, status) in
        [("range", 429), ("if-match", 429), ("if-none-match", 200), ("authorization", 429), ("cookie", 429)]
    {
        assert_eq!(gateway.get_with("/", &[(name, "\"a\"")]).await.status, status, "{name}");
    }
}

#[tokio::test]
async fn truncated_response_is_not_stored() {
    for bytes in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        // Without a length a truncated body looks like a whole one.
        "HTTP/1.1 200 OK\r\n\r\nhalf",
        "HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nhalf",
    ] {
        let reply = Reply::Close(bytes.into());
        let server = RecordingServer::scripted(move |_| reply.clone()).await;
        let gateway = TestGateway::before(&[server.url()], &limit(1, ""));
        let mut client = gateway.client().await;
        client.send(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").await;
        client.rest().await;
        assert_eq!(gateway.get("/").await.status, 429, "{bytes:?}");
    }
}

#[tokio::test]
async fn response_that_its_client_does_not_read_to_the_end_is_not_stored() {
    let server = HttpServer::start(|_| async { Response::new(full(vec![b'a'; 3 << 20])) }).await;
    let gateway = TestGateway::before(&[server.url()], &limit(1, ""));
    let mut client = gateway.client().await;
    client.send(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
    client.first_bytes().await;
    drop(client);
    assert_eq!(gateway.get("/").await.status, 429);
}

#[tokio::test]
async fn get_with_a_body_is_neither_stored_nor_served() {
    let server = counting(&[]).await;
    let gateway = TestGateway::before(&[server.url()], &limit(3, ""));
    let with_body = |framing: &str| format!("GET / HTTP/1.1\r\nHost: test\r\n{framing}");
    for framing in [
        "Content-Length: 2\r\n\r\n{}",
        "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "Content-Length: 0\r\n\r\n",
    ] {
        assert_eq!(gateway.send_raw(&with_body(framing)).await.status, 200);
    }
    assert_eq!(gateway.get("/").await.status, 429);
    let gateway = TestGateway::before(&[server.url()], &limit(1, ""));
    gateway.get("/").await;
    assert_eq!(gateway.get("/").await.status, 200);
    assert_eq!(gateway.send_raw(&with_body("Content-Length: 2\r\n\r\n{}")).await.status, 429);
}

#[tokio::test]
async fn header_that_changes_the_response_for_all_does_not_fill_the_memory() {
    for (name, value) in [
        ("x-forwarded-host", "evil.example"),
        ("x-host", "evil.example"),
        ("x-original-url", "/evil"),
        ("x-rewrite-url", "/evil"),
        ("x-http-method-override", "DELETE"),
        ("x-forwarded-proto", "evil"),
        ("x-forwarded-for", "evil"),
        ("forwarded", "host=evil.example"),
        ("accept", "evil/evil"),
        ("accept-language", "evil"),
        ("origin", "https://evil.example"),
        ("user-agent", "evil"),
        ("referer", "https://evil.example"),
        ("if-none-match", "\"evil\""),
        ("tracestate", "evil=1"),
        ("x-request-id", "<evil>"),
        ("x-tidegate-degrade", "1"),
        ("x-api-key", "evil"),
    ] {
        for trusted in ["[192.0.2.1]", "[127.0.0.1]"] {
            let server = HttpServer::echo_headers().await;
            let policy = limit(1, "")
                .replace("identify_by", &format!("ip: {{ trusted_proxies: {trusted} }}, identify_by"));
            let gateway = TestGateway::before(&[server.url()], &policy);
            gateway.get_with("/", &[(name, value)]).await;
            let victim = gateway.get("/").await;
            assert!(!victim.text().contains("evil"), "{name} {}", victim.text());
            let is_removed = trusted == "[192.0.2.1]"
                && (name.starts_with("x-original")
                    || name.starts_with("x-rewrite")
                    || ["x-forwarded-host", "x-tidegate-degrade"].contains(&name));
            assert_eq!(victim.status, if is_removed { 200 } else { 429 }, "{name} {trusted}");
        }
    }
}

#[tokio::test]
async fn flood_of_queries_displaces_no_response_that_is_used() {
    let server = HttpServer::start(|_| async { Response::new(full(vec![b'a'; 30_000])) }).await;
    let gateway = TestGateway::before(&[server.url()], &limit(202, "cache: { memory: 1MiB }"));
    gateway.get("/used").await;
    gateway.get("/used").await;
    for number in 0..200 {
        assert_eq!(gateway.get(&format!("/used?{number}")).await.status, 200);
    }
    assert_eq!(gateway.get("/used").await.status, 200);
    assert_eq!(gateway.get("/used?0").await.status, 429);
    assert_eq!(gateway.get("/used?199").await.status, 200);
}

#[tokio::test]
async fn change_of_the_resource_makes_its_response_invalid() {
    let server = HttpServer::start(|request: Request<hyper::body::Incoming>| async move {
        let mut response = Response::new(full("a"));
        if request.method() == "PUT" {
            *response.status_mut() = http::StatusCode::CONFLICT;
        }
        response
    })
    .await;
    for (method, status) in [("PUT", 200), ("OPTIONS", 200), ("POST", 429), ("DELETE", 429)] {
        let gateway = TestGateway::before(&[server.url()], &limit(3, ""));
        gateway.get("/a").await;
        gateway.send(request(method, "/a", NONE)).await;
        gateway.send(request(method, "/b", NONE)).await;
        assert_eq!(gateway.get("/a").await.status, status, "{method}");
    }
    // One that is refused changes nothing.
    let gateway = TestGateway::before(&[server.url()], &limit(1, ""));
    gateway.get("/a").await;
    assert_eq!(gateway.send(request("POST", "/a", NONE)).await.status, 429);
    assert_eq!(gateway.get("/a").await.status, 200);
}

#[tokio::test]
async fn degraded_response_and_that_of_a_fallback_are_not_stored() {
    let server = HttpServer::start(|request: Request<hyper::body::Incoming>| async move {
        let mark = request.headers().contains_key("x-tidegate-degrade");
        Response::new(full(if mark { "cheap" } else { "usual" }))
    })
    .await;
    let gateway = TestGateway::before(
        &[server.url()],
        "rate_limits:\n  global: { requests: 2, window: 1h, algorithm: token_bucket, on_exceed: { cached: { for: 1h } } }\n  \
         default: { requests: 1, window: 1h, algorithm: token_bucket, on_exceed: degrade }\n",
    );
    for expected in ["usual", "cheap", "usual"] {
        assert_eq!(gateway.get("/").await.text(), expected);
    }
    let policy = format!(
        "upstreams:\n  api: {{ servers: ['http://127.0.0.1:1'], breaker: {{ failures: 1 }}, fallback: {{ upstream: other }} }}\n  \
         other: {{ servers: ['{}'] }}\nroutes: [{{ path: /**, upstream: api }}]\n{}",
        server.url(),
        limit(3, "")
    );
    let gateway = TestGateway::start(&policy, ResourceLimits::default());
    let mut statuses = Vec::new();
    for _ in 0..8 {
        statuses.push(gateway.get("/").await.status.as_u16());
    }
    assert!(statuses.contains(&200), "the fallback responds: {statuses:?}");
    assert_eq!(statuses.last(), Some(&429), "{statuses:?}");
}

#[tokio::test]
async fn reload_starts_with_an_empty_memory() {
    let server = counting(&[]).await;
    let gateway = TestGateway::before(&[server.url()], &limit(1, ""));
    gateway.get("/").await;
    assert_eq!(gateway.get("/").await.status, 200);
    gateway.replace(&[server.url()], &limit(1, "error_body: nested"));
    assert_eq!(gateway.get("/").await.status, 429);
}

/// The headers that the server of the property test repeats, besides the target. A request without one has `-`.
const WHO: [&str; 8] =
    ["x-api-key", "authorization", "cookie", "x-user", "accept", "accept-language", "origin", "x-custom"];

/// Repeats who has asked for what. The path says which headers the response has.
async fn who_asks() -> HttpServer {
    HttpServer::start(|request: Request<hyper::body::Incoming>| async move {
        let mut response = Response::new(full(who(&request)));
        let path = request.uri().path().to_owned();
        for (part, name, value) in [
            ("public", "cache-control", "public, max-age=600"),
            ("short", "cache-control", "max-age=0"),
            ("agent", "vary", "User-Agent, accept"),
            ("custom", "vary", "X-Custom"),
            ("tagged", "etag", "\"a\""),
        ] {
            if path.contains(part) {
                response.headers_mut().append(name, value.parse().unwrap());
            }
        }
        if request.method() == "HEAD" { Response::new(full("")) } else { response }
    })
    .await
}

fn who<B>(request: &Request<B>) -> String {
    let value = |name: &str| {
        let values = request.headers().get_all(name).iter().map(|value| value.to_str().unwrap());
        let values: Vec<_> = values.collect();
        if values.is_empty() { "-".to_owned() } else { values.join("|") }
    };
    let mut lines = vec![request.uri().path_and_query().unwrap().to_string(), value("host")];
    lines.extend(WHO.map(value));
    // The response says that it depends on this one.
    lines.extend(request.uri().path().contains("agent").then(|| value("user-agent")));
    lines.join("\n")
}

fn any_get() -> impl Strategy<Value = Request<Empty<Bytes>>> {
    let path =
        proptest::sample::select(vec!["/public", "/short", "/agent", "/custom/public", "/tagged", "/"]);
    let query = proptest::sample::select(vec!["", "?a", "?b"]);
    let host = proptest::sample::select(vec!["a.example", "b.example"]);
    let value = proptest::sample::select(vec!["a", "b"]);
    let name = proptest::sample::select(
        WHO.into_iter()
            .chain(["user-agent", "x-request-id", "cache-control", "x-forwarded-for"])
            .collect::<Vec<_>>(),
    );
    let headers = proptest::collection::vec((name, value), 0..3);
    (path, query, host, headers).prop_map(|(path, query, host, headers)| {
        let request = Request::get(format!("{path}{query}")).header("host", host);
        let mut request = request.body(Empty::new()).unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        request
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn nobody_gets_the_answer_to_another(requests in proptest::collection::vec(any_get(), 90)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = who_asks().await;
            let gateway = TestGateway::before(&[server.url()], &limit(46, ""));
            let plain = || request("GET", "/public", NONE);
            assert_eq!(gateway.send(plain()).await.text(), who(&plain()));
            for request in requests {
                let expected = who(&request);
                let response = gateway.send(request).await;
                if response.status == 200 {
                    assert_eq!(response.text(), expected);
                } else {
                    assert_eq!(response.status, 429);
                }
            }
            assert_hit(&gateway.send(plain()).await, &who(&plain()));
        });
    }
}
