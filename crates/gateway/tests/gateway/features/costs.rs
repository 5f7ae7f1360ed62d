//! Costs that are known only later: reserved up front, settled by the response or by the body.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Channel, Empty, Full};
use hyper::body::Incoming;
use tidegate_core::Timestamp;
use tidegate_store::ManualClock;
use tidegate_testkit::client::http1;
use tidegate_testkit::server::{AnyBody, HttpServer, breaks_off, full};
use tidegate_testkit::wait::soon;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::fixture::{ResourceLimits, TestGateway, active};

const LOGIN: &str = "
rate_limits:
  rules:
    - name: failed-logins
      match: { path: /login }
      requests: 3
      window: 1d
      algorithm: sliding_window_log
      charge: { after: { status: [401, 403] } }
";

const TOKENS: &str = "
rate_limits:
  rules:
    - name: tokens
      requests: 1000
      window: 1h
      algorithm: token_bucket
      cost: 100
      charge: { after: { header: X-Tokens-Used } }
";

const BODIES: &str = "
rate_limits:
  rules: [{ name: bytes, requests: 1000, window: 1d, algorithm: sliding_window_log, cost: { body: 1KiB } }]
";

/// Time stands still, so that nothing drains.
fn proxy(upstream: &HttpServer, rest: &str) -> TestGateway {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_800_000_000)));
    TestGateway::with_clock(clock, active(&[upstream.url()], rest, &[]), ResourceLimits::default())
}

/// Answers with what the request asks for.
async fn as_asked(request: Request<Incoming>) -> Response<AnyBody> {
    let asked = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let mut response =
        Response::builder().status(asked("x-status").map_or(200, |status| status.parse().unwrap()));
    for used in asked("x-use").iter().flat_map(|used| used.split('+')) {
        response = response.header("x-tokens-used", used);
    }
    let read = request.into_body().collect().await;
    response.body(full(if read.is_ok() { "served" } else { "broken off" })).unwrap()
}

#[tokio::test]
async fn only_failed_logins_are_charged() {
    let upstream = HttpServer::start(as_asked).await;
    let proxy = proxy(&upstream, LOGIN);
    for _ in 0..10 {
        assert_eq!(proxy.get_with("/login", &[("x-status", "200")]).await.status, 200);
    }
    for status in ["401", "403", "404", "401"] {
        assert_eq!(proxy.get_with("/login", &[("x-status", status)]).await.status.as_str(), status);
    }
    let refused = proxy.get_with("/login", &[("x-status", "200")]).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["rule"]), (429, &"failed-logins".into()));
}

#[tokio::test]
async fn a_hundred_guesses_at_once_get_no_further_than_the_limit() {
    let (go, tried) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let upstream = HttpServer::start({
        let (go, tried) = (Arc::clone(&go), Arc::clone(&tried));
        move |_| {
            let go = Arc::clone(&go);
            tried.fetch_add(1, Ordering::SeqCst);
            async move {
                go.acquire().await.unwrap().forget();
                Response::builder().status(401).body(full("wrong")).unwrap()
            }
        }
    })
    .await;
    let proxy = proxy(&upstream, LOGIN);
    let address = proxy.address;
    let guesses: Vec<_> = (0..100)
        .map(|_| {
            tokio::spawn(async move {
                let request = Request::post("/login").header("host", "test").body(Empty::<Bytes>::new());
                http1(address).await.send_request(request.unwrap()).await.unwrap().status()
            })
        })
        .collect();
    go.add_permits(100);
    let mut statuses = Vec::new();
    for guess in guesses {
        statuses.push(soon(guess).await.unwrap().as_u16());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [[401; 3].as_slice(), &[429; 97]].concat());
    assert_eq!(tried.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn who_hangs_up_before_the_answer_has_paid() {
    let (go, tried) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let upstream = HttpServer::start({
        let (go, tried) = (Arc::clone(&go), Arc::clone(&tried));
        move |_| {
            let go = Arc::clone(&go);
            tried.add_permits(1);
            async move {
                go.acquire().await.unwrap().forget();
                Response::new(full("right"))
            }
        }
    })
    .await;
    let proxy = proxy(&upstream, LOGIN);
    for _ in 0..3 {
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        stream.write_all(b"POST /login HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        soon(tried.acquire()).await.unwrap().forget();
    }
    go.add_permits(100);
    assert_eq!(proxy.get("/login").await.status, 429);
}

#[tokio::test]
async fn what_reached_no_server_is_given_back_and_what_broke_off_is_not() {
    let nobody = TestGateway::before(&["http://127.0.0.1:9".to_owned()], LOGIN);
    for _ in 0..10 {
        assert_eq!(nobody.get("/login").await.status, 502);
    }
    let breaking = breaks_off().await;
    let broken = TestGateway::before(&[breaking.url()], LOGIN);
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(broken.get("/login").await.status.as_u16());
    }
    assert_eq!(statuses, [502, 502, 502, 429, 429]);
}

/// What is left for a request, before it is charged itself.
async fn left(proxy: &TestGateway, lines: &[(&str, &str)]) -> u64 {
    let answer = proxy.get_with("/", lines).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.number("x-ratelimit-remaining") + 100
}

#[tokio::test]
async fn tokens_are_charged_as_the_response_says_even_into_debt() {
    let upstream = HttpServer::start(as_asked).await;
    let proxy = proxy(&upstream, TOKENS);
    assert_eq!(left(&proxy, &[("x-use", "10")]).await, 1_000);
    assert_eq!(left(&proxy, &[("x-use", "0")]).await, 990, "90 were given back");
    assert_eq!(left(&proxy, &[("x-use", "100")]).await, 990, "all of them were");
    assert_eq!(left(&proxy, &[("x-use", "340")]).await, 890);
    assert_eq!(left(&proxy, &[]).await, 550, "240 more were charged");
    assert_eq!(left(&proxy, &[("x-use", "a few")]).await, 450, "the reservation stands");
    assert_eq!(left(&proxy, &[("x-use", "1+1")]).await, 350, "and does so");
    // 2250 in debt, and a thousand an hour.
    assert_eq!(left(&proxy, &[("x-use", "2500")]).await, 250);
    let refused = proxy.get("/").await;
    assert_eq!(refused.status, 429);
    let hours = refused.number("retry-after") / 3_600;
    assert_eq!(hours, 2, "{refused:?}");
    assert_eq!(refused.number("x-ratelimit-remaining"), 0);
}

async fn post(proxy: &TestGateway, body: Vec<u8>) -> u64 {
    let request = Request::post("/").header("host", "test").body(Full::new(Bytes::from(body))).unwrap();
    let answer = proxy.send(request).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "served"));
    answer.number("x-ratelimit-remaining")
}

#[tokio::test]
async fn a_body_of_known_length_costs_up_front_and_one_too_large_never_passes() {
    let upstream = HttpServer::start(as_asked).await;
    let proxy = proxy(&upstream, BODIES);
    assert_eq!(post(&proxy, vec![0; 1_024]).await, 999);
    assert_eq!(post(&proxy, vec![0; 1_025]).await, 997);
    assert_eq!(post(&proxy, Vec::new()).await, 996);
    let large = Request::post("/").header("host", "test").body(Full::new(Bytes::from(vec![0; 1_001 << 10])));
    let refused = proxy.send(large.unwrap()).await;
    assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (429, None));
}

#[tokio::test]
async fn a_body_of_unknown_length_is_charged_at_its_end_and_on_its_way() {
    let upstream = HttpServer::start(as_asked).await;
    let proxy = proxy(&upstream, BODIES);
    let (mut sender, body) = Channel::<Bytes>::new(1);
    let request = Request::post("/").header("host", "test").body(body).unwrap();
    let mut connection = http1(proxy.address).await;
    let answer = tokio::spawn(async move { connection.send_request(request).await.unwrap() });
    sender.send_data(vec![0; 100 << 10].into()).await.unwrap();
    // It has not ended, and is charged already; a request that asks costs one itself.
    let mut asked = 0;
    let on_its_way = async {
        loop {
            asked += 1;
            let spent = 1_000 - post(&proxy, Vec::new()).await - asked;
            if spent >= 64 {
                return spent;
            }
        }
    };
    let spent = soon(on_its_way).await;
    assert!(spent <= 100, "{spent}");
    sender.send_data(vec![0; 5].into()).await.unwrap();
    drop(sender);
    assert_eq!(soon(answer).await.unwrap().status(), 200);
    assert_eq!(post(&proxy, Vec::new()).await, 1_000 - 101 - asked - 1);
}

#[tokio::test]
async fn who_hangs_up_within_a_body_has_paid_for_what_came() {
    let upstream = HttpServer::start(as_asked).await;
    let proxy = proxy(&upstream, BODIES);
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    stream.write_all(format!("{:x}\r\n", 10 << 10).as_bytes()).await.unwrap();
    stream.write_all(&vec![b'x'; 10 << 10]).await.unwrap();
    stream.write_all(b"\r\n").await.unwrap();
    drop(stream);
    let mut asked = 0;
    let charged = async {
        loop {
            asked += 1;
            if post(&proxy, Vec::new()).await == 1_000 - 10 - asked {
                return;
            }
        }
    };
    soon(charged).await;
}

#[tokio::test]
async fn a_shadow_is_settled_too_and_shows_nothing() {
    let upstream = HttpServer::start(as_asked).await;
    let shadow = format!("{LOGIN}      mode: shadow\n");
    let proxy = proxy(&upstream, &shadow);
    for _ in 0..5 {
        assert_eq!(proxy.get_with("/login", &[("x-status", "200")]).await.status, 200);
    }
    for _ in 0..5 {
        assert_eq!(proxy.get_with("/login", &[("x-status", "401")]).await.status, 401);
    }
    let would_have = proxy.metric("rate_limit_shadow_exceeded_total{rule=\"failed-logins\"}");
    assert_eq!(would_have, 2, "the fourth and the fifth failure");
}
