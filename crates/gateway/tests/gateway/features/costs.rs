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

/// A gateway whose clock stands still, so that nothing refills.
fn gateway(upstream: &HttpServer, rest: &str) -> TestGateway {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_800_000_000)));
    TestGateway::with_clock(clock, active(&[upstream.url()], rest, &[]), ResourceLimits::default())
}

/// Responds with the status and the costs that the headers of the request name.
async fn respond_as_requested(request: Request<Incoming>) -> Response<AnyBody> {
    let requested = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let mut response =
        Response::builder().status(requested("x-status").map_or(200, |status| status.parse().unwrap()));
    for used in requested("x-use").iter().flat_map(|used| used.split('+')) {
        response = response.header("x-tokens-used", used);
    }
    let read = request.into_body().collect().await;
    response.body(full(if read.is_ok() { "served" } else { "broken off" })).unwrap()
}

#[tokio::test]
async fn charge_after_status_counts_failed_logins_only() {
    let upstream = HttpServer::start(respond_as_requested).await;
    let gateway = gateway(&upstream, LOGIN);
    for _ in 0..10 {
        assert_eq!(gateway.get_with("/login", &[("x-status", "200")]).await.status, 200);
    }
    for status in ["401", "403", "404", "401"] {
        assert_eq!(gateway.get_with("/login", &[("x-status", status)]).await.status.as_str(), status);
    }
    let rejected = gateway.get_with("/login", &[("x-status", "200")]).await;
    assert_eq!((rejected.status.as_u16(), &rejected.json()["rule"]), (429, &"failed-logins".into()));
}

#[tokio::test]
async fn charge_after_status_admits_no_more_parallel_guesses_than_the_limit() {
    let (release, attempts) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let upstream = HttpServer::start({
        let (release, attempts) = (Arc::clone(&release), Arc::clone(&attempts));
        move |_| {
            let release = Arc::clone(&release);
            attempts.fetch_add(1, Ordering::SeqCst);
            async move {
                release.acquire().await.unwrap().forget();
                Response::builder().status(401).body(full("wrong")).unwrap()
            }
        }
    })
    .await;
    let gateway = gateway(&upstream, LOGIN);
    let address = gateway.address;
    let guesses: Vec<_> = (0..100)
        .map(|_| {
            tokio::spawn(async move {
                let request = Request::post("/login").header("host", "test").body(Empty::<Bytes>::new());
                http1(address).await.send_request(request.unwrap()).await.unwrap().status()
            })
        })
        .collect();
    release.add_permits(100);
    let mut statuses = Vec::new();
    for guess in guesses {
        statuses.push(soon(guess).await.unwrap().as_u16());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [[401; 3].as_slice(), &[429; 97]].concat());
    assert_eq!(attempts.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn client_that_disconnects_before_the_response_stays_charged() {
    let (release, attempts) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let upstream = HttpServer::start({
        let (release, attempts) = (Arc::clone(&release), Arc::clone(&attempts));
        move |_| {
            let release = Arc::clone(&release);
            attempts.add_permits(1);
            async move {
                release.acquire().await.unwrap().forget();
                Response::new(full("right"))
            }
        }
    })
    .await;
    let gateway = gateway(&upstream, LOGIN);
    for _ in 0..3 {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(b"POST /login HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        soon(attempts.acquire()).await.unwrap().forget();
    }
    release.add_permits(100);
    assert_eq!(gateway.get("/login").await.status, 429);
}

#[tokio::test]
async fn request_that_reached_no_server_is_refunded_and_an_aborted_one_is_not() {
    let unreachable = TestGateway::before(&["http://127.0.0.1:9".to_owned()], LOGIN);
    for _ in 0..10 {
        assert_eq!(unreachable.get("/login").await.status, 502);
    }
    let aborting = breaks_off().await;
    let behind_aborting = TestGateway::before(&[aborting.url()], LOGIN);
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(behind_aborting.get("/login").await.status.as_u16());
    }
    assert_eq!(statuses, [502, 502, 502, 429, 429]);
}

#[tokio::test]
async fn request_that_a_server_received_is_not_refunded_although_its_retry_reached_none() {
    let aborting = breaks_off().await;
    let gateway = TestGateway::before(&[aborting.url(), "http://127.0.0.1:9".to_owned()], LOGIN);
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(gateway.get("/login").await.status.as_u16());
    }
    assert_eq!(statuses, [502, 502, 502, 429, 429]);
}

/// The remaining quota before the request itself is charged.
async fn remaining_before(gateway: &TestGateway, lines: &[(&str, &str)]) -> u64 {
    let response = gateway.get_with("/", lines).await;
    assert_eq!(response.status, 200, "{response:?}");
    response.number("x-ratelimit-remaining") + 100
}

#[tokio::test]
async fn charge_after_header_charges_the_reported_cost_even_beyond_the_limit() {
    let upstream = HttpServer::start(respond_as_requested).await;
    let gateway = gateway(&upstream, TOKENS);
    assert_eq!(remaining_before(&gateway, &[("x-use", "10")]).await, 1_000);
    assert_eq!(remaining_before(&gateway, &[("x-use", "0")]).await, 990, "90 were refunded");
    assert_eq!(
        remaining_before(&gateway, &[("x-use", "100")]).await,
        990,
        "the whole reservation was refunded"
    );
    assert_eq!(remaining_before(&gateway, &[("x-use", "340")]).await, 890);
    assert_eq!(remaining_before(&gateway, &[]).await, 550, "240 more were charged");
    assert_eq!(
        remaining_before(&gateway, &[("x-use", "a few")]).await,
        450,
        "a missing header leaves the reservation"
    );
    assert_eq!(
        remaining_before(&gateway, &[("x-use", "1+1")]).await,
        350,
        "an invalid value leaves the reservation"
    );
    // 2250 beyond the limit, which refills by 1000 an hour.
    assert_eq!(remaining_before(&gateway, &[("x-use", "2500")]).await, 250);
    let rejected = gateway.get("/").await;
    assert_eq!(rejected.status, 429);
    let hours = rejected.number("retry-after") / 3_600;
    assert_eq!(hours, 2, "{rejected:?}");
    assert_eq!(rejected.number("x-ratelimit-remaining"), 0);
}

async fn post(gateway: &TestGateway, body: Vec<u8>) -> u64 {
    let request = Request::post("/").header("host", "test").body(Full::new(Bytes::from(body))).unwrap();
    let response = gateway.send(request).await;
    assert_eq!((response.status.as_u16(), response.text()), (200, "served"));
    response.number("x-ratelimit-remaining")
}

#[tokio::test]
async fn body_of_known_length_is_charged_up_front_and_rejected_above_the_limit() {
    let upstream = HttpServer::start(respond_as_requested).await;
    let gateway = gateway(&upstream, BODIES);
    assert_eq!(post(&gateway, vec![0; 1_024]).await, 999);
    assert_eq!(post(&gateway, vec![0; 1_025]).await, 997);
    assert_eq!(post(&gateway, Vec::new()).await, 996);
    let large = Request::post("/").header("host", "test").body(Full::new(Bytes::from(vec![0; 1_001 << 10])));
    let rejected = gateway.send(large.unwrap()).await;
    assert_eq!((rejected.status.as_u16(), rejected.header("retry-after")), (429, None));
}

#[tokio::test]
async fn body_of_unknown_length_is_charged_while_it_arrives_and_at_its_end() {
    let upstream = HttpServer::start(respond_as_requested).await;
    let gateway = gateway(&upstream, BODIES);
    let (mut sender, body) = Channel::<Bytes>::new(1);
    let request = Request::post("/").header("host", "test").body(body).unwrap();
    let mut connection = http1(gateway.address).await;
    let response = tokio::spawn(async move { connection.send_request(request).await.unwrap() });
    sender.send_data(vec![0; 100 << 10].into()).await.unwrap();
    // The body has not ended and is charged already. Each request of this loop costs one itself.
    let mut requests = 0;
    let partly_charged = async {
        loop {
            requests += 1;
            let spent = 1_000 - post(&gateway, Vec::new()).await - requests;
            if spent >= 64 {
                return spent;
            }
        }
    };
    let spent = soon(partly_charged).await;
    assert!(spent <= 100, "{spent}");
    sender.send_data(vec![0; 5].into()).await.unwrap();
    drop(sender);
    assert_eq!(soon(response).await.unwrap().status(), 200);
    assert_eq!(post(&gateway, Vec::new()).await, 1_000 - 101 - requests - 1);
}

#[tokio::test]
async fn client_that_disconnects_within_a_body_is_charged_for_the_received_part() {
    let upstream = HttpServer::start(respond_as_requested).await;
    let gateway = gateway(&upstream, BODIES);
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    stream.write_all(format!("{:x}\r\n", 10 << 10).as_bytes()).await.unwrap();
    stream.write_all(&vec![b'x'; 10 << 10]).await.unwrap();
    stream.write_all(b"\r\n").await.unwrap();
    drop(stream);
    let mut requests = 0;
    let charged = async {
        loop {
            requests += 1;
            if post(&gateway, Vec::new()).await == 1_000 - 10 - requests {
                return;
            }
        }
    };
    soon(charged).await;
}

#[tokio::test]
async fn rule_in_shadow_mode_is_settled_and_rejects_nothing() {
    let upstream = HttpServer::start(respond_as_requested).await;
    let shadow = format!("{LOGIN}      mode: shadow\n");
    let gateway = gateway(&upstream, &shadow);
    for _ in 0..5 {
        assert_eq!(gateway.get_with("/login", &[("x-status", "200")]).await.status, 200);
    }
    for _ in 0..5 {
        assert_eq!(gateway.get_with("/login", &[("x-status", "401")]).await.status, 401);
    }
    let shadow_rejections = gateway.metric("rate_limit_shadow_exceeded_total{rule=\"failed-logins\"}");
    assert_eq!(shadow_rejections, 2, "the fourth and the fifth failure");
}
