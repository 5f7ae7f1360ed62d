//! Concurrency limits: a permit is released however a request ends.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Channel, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tidegate_testkit::client::{CollectedResponse, http1};
use tidegate_testkit::server::{AnyBody, HttpServer, breaks_off, full};
use tidegate_testkit::wait::{eventually, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::fixture::{ResourceLimits, TestGateway};

const TWO: &str = "
clients: { api_key: { verify: none } }
rate_limits:
  default: { requests: 100, window: 1d, algorithm: sliding_window_log }
  rules: [{ name: exports, match: { path: /export }, concurrent: 2 }]
";

const MANY: &str = "rate_limits: { rules: [{ name: all, concurrent: 5000 }] }";

/// An upstream that sends one response per permit of the semaphore.
async fn blocking_upstream() -> (HttpServer, Arc<Semaphore>) {
    let release = Arc::new(Semaphore::new(0));
    let permits = Arc::clone(&release);
    let upstream = HttpServer::start(move |_| {
        let permits = Arc::clone(&permits);
        async move {
            permits.acquire().await.unwrap().forget();
            Response::new(full("served"))
        }
    })
    .await;
    (upstream, release)
}

/// Waits until `count` permits are in use.
async fn until_permits_in_use(gateway: &TestGateway, count: u64) {
    eventually("the permits are in use", || gateway.permits().in_use() == count).await;
}

fn send_get(gateway: &TestGateway, path: &'static str) -> tokio::task::JoinHandle<CollectedResponse> {
    let address = gateway.address;
    tokio::spawn(async move {
        let request = Request::get(path).header("host", "test").body(Empty::<Bytes>::new()).unwrap();
        CollectedResponse::of(http1(address).await.send_request(request).await.unwrap()).await
    })
}

#[tokio::test]
async fn concurrency_limit_reached_rejects_requests_without_charging_them() {
    let (upstream, release) = blocking_upstream().await;
    let gateway = TestGateway::before(&[upstream.url()], TWO);
    let in_progress = [send_get(&gateway, "/export"), send_get(&gateway, "/export")];
    until_permits_in_use(&gateway, 2).await;
    for _ in 0..3 {
        let rejected = gateway.get("/export").await;
        assert_eq!((rejected.status.as_u16(), rejected.header("retry-after")), (429, Some("1")));
        let body = rejected.json();
        assert_eq!(body["error"], "concurrency_exceeded");
        assert_eq!((&body["rule"], &body["limit"]), (&"exports".into(), &2.into()));
    }
    release.add_permits(3);
    assert_eq!(gateway.get_with("/export", &[("x-api-key", "another client")]).await.status, 200);
    for request in in_progress {
        assert_eq!(soon(request).await.unwrap().status, 200);
    }
    until_permits_in_use(&gateway, 0).await;
    release.add_permits(1);
    let next = gateway.get("/export").await;
    assert_eq!(
        (next.status.as_u16(), next.number("x-ratelimit-remaining")),
        (200, 97),
        "only admitted requests are charged"
    );
}

#[tokio::test]
async fn concurrency_permit_is_released_when_a_rate_limit_rejects() {
    let upstream = HttpServer::named("served").await;
    let rest = "rate_limits: { default: { requests: 1, window: 1d }, rules: [{ name: a, concurrent: 1 }] }";
    let gateway = TestGateway::before(&[upstream.url()], rest);
    assert_eq!(gateway.get("/").await.status, 200);
    for _ in 0..3 {
        let rejected = gateway.get("/").await;
        assert_eq!(rejected.json()["rule"], "default", "a leaked permit would reject by rule `a`");
    }
    until_permits_in_use(&gateway, 0).await;
}

#[tokio::test]
async fn concurrency_permits_are_released_when_clients_disconnect_before_the_response() {
    let (upstream, release) = blocking_upstream().await;
    let gateway = TestGateway::before(&[upstream.url()], MANY);
    let mut clients = Vec::new();
    for n in 0..1_000 {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        let head = match n % 2 {
            0 => "GET / HTTP/1.1\r\nhost: test\r\n\r\n",
            // Half of the clients are still sending.
            _ => "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n\r\nsome",
        };
        stream.write_all(head.as_bytes()).await.unwrap();
        clients.push(stream);
    }
    until_permits_in_use(&gateway, 1_000).await;
    drop(clients);
    // The upstream notices the disconnects of one half. It does not read the bodies of the others and keeps working.
    until_permits_in_use(&gateway, 500).await;
    release.add_permits(500);
    until_permits_in_use(&gateway, 0).await;
}

#[tokio::test]
async fn concurrency_permits_are_released_when_clients_disconnect_during_the_response() {
    let upstream = HttpServer::start(|_| async {
        let (mut sender, body) = Channel::<Bytes, hyper::Error>::new(1);
        tokio::spawn(async move {
            sender.send_data("begun".into()).await.unwrap();
            // The rest is never sent.
            std::future::pending::<()>().await;
            drop(sender);
        });
        Response::new(body.boxed_unsync())
    })
    .await;
    let gateway = TestGateway::before(&[upstream.url()], MANY);
    for _ in 0..10 {
        let mut clients = Vec::new();
        for _ in 0..100 {
            let mut stream = TcpStream::connect(gateway.address).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
            soon(stream.read_u8()).await.unwrap();
            clients.push(stream);
        }
        assert_eq!(gateway.permits().in_use(), 100);
        drop(clients);
        until_permits_in_use(&gateway, 0).await;
    }
}

#[tokio::test]
async fn concurrency_permit_is_released_when_the_upstream_fails() {
    let breaking = breaks_off().await;
    let gateway = TestGateway::before(&[breaking.url()], MANY);
    for _ in 0..3 {
        assert_eq!(gateway.get("/").await.status, 502);
    }
    until_permits_in_use(&gateway, 0).await;
    let gateway = TestGateway::before(&["http://127.0.0.1:9".to_owned()], MANY);
    assert_eq!(gateway.get("/").await.status, 502);
    until_permits_in_use(&gateway, 0).await;
}

#[tokio::test]
async fn concurrency_permit_is_released_when_the_upstream_times_out() {
    let (upstream, _go) = blocking_upstream().await;
    let bounds = ResourceLimits { response_timeout: Duration::from_millis(1), ..ResourceLimits::default() };
    let gateway = TestGateway::with(&[upstream.url()], MANY, &[], bounds);
    assert_eq!(gateway.get("/").await.status, 504);
    until_permits_in_use(&gateway, 0).await;
}

async fn accept_upgrade(mut request: Request<Incoming>) -> Response<AnyBody> {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let (mut read, mut write) = split(TokioIo::new(upgrade.await.unwrap()));
        // How the connection ends does not matter here.
        let _ = copy(&mut read, &mut write).await;
    });
    let response = Response::builder().status(101).header("connection", "upgrade").header("upgrade", "echo");
    response.body(full("")).unwrap()
}

#[tokio::test]
async fn upgraded_connection_keeps_its_permit_until_it_closes() {
    let upstream = HttpServer::start(accept_upgrade).await;
    let gateway =
        TestGateway::before(&[upstream.url()], "rate_limits: { rules: [{ name: a, concurrent: 1 }] }");
    for _ in 0..3 {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        let head = "GET / HTTP/1.1\r\nhost: test\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut response = [0; 12];
        soon(stream.read_exact(&mut response)).await.unwrap();
        assert_eq!(&response, b"HTTP/1.1 101");
        assert_eq!(gateway.permits().in_use(), 1);
        assert_eq!(gateway.get("/").await.status, 429);
        drop(stream);
        until_permits_in_use(&gateway, 0).await;
    }
}

#[tokio::test]
async fn concurrency_limit_in_shadow_mode_rejects_nothing() {
    let (upstream, release) = blocking_upstream().await;
    let rest = "rate_limits: { rules: [{ name: a, concurrent: 1, mode: shadow }] }";
    let gateway = TestGateway::before(&[upstream.url()], rest);
    let in_progress = [send_get(&gateway, "/"), send_get(&gateway, "/"), send_get(&gateway, "/")];
    until_permits_in_use(&gateway, 1).await;
    release.add_permits(3);
    for request in in_progress {
        assert_eq!(soon(request).await.unwrap().status, 200);
    }
    assert_eq!(gateway.metric("rate_limit_shadow_exceeded_total{rule=\"a\"}"), 2);
}
