//! How many requests at once: a place is given back however a request ends.

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

/// Answers when it is told to.
async fn waiting() -> (HttpServer, Arc<Semaphore>) {
    let go = Arc::new(Semaphore::new(0));
    let told = Arc::clone(&go);
    let upstream = HttpServer::start(move |_| {
        let told = Arc::clone(&told);
        async move {
            told.acquire().await.unwrap().forget();
            Response::new(full("served"))
        }
    })
    .await;
    (upstream, go)
}

/// Waits until so many places are taken.
async fn taken(proxy: &TestGateway, count: u64) {
    eventually("so many permits are in use", || proxy.permits().in_use() == count).await;
}

fn ask(proxy: &TestGateway, path: &'static str) -> tokio::task::JoinHandle<CollectedResponse> {
    let address = proxy.address;
    tokio::spawn(async move {
        let request = Request::get(path).header("host", "test").body(Empty::<Bytes>::new()).unwrap();
        CollectedResponse::of(http1(address).await.send_request(request).await.unwrap()).await
    })
}

#[tokio::test]
async fn no_more_than_so_many_at_once_and_whoever_is_refused_is_charged_nothing() {
    let (upstream, go) = waiting().await;
    let proxy = TestGateway::before(&[upstream.url()], TWO);
    let under_way = [ask(&proxy, "/export"), ask(&proxy, "/export")];
    taken(&proxy, 2).await;
    for _ in 0..3 {
        let refused = proxy.get("/export").await;
        assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (429, Some("1")));
        let body = refused.json();
        assert_eq!(body["error"], "concurrency_exceeded");
        assert_eq!((&body["rule"], &body["limit"]), (&"exports".into(), &2.into()));
    }
    go.add_permits(3);
    assert_eq!(proxy.get_with("/export", &[("x-api-key", "another client")]).await.status, 200);
    for one in under_way {
        assert_eq!(soon(one).await.unwrap().status, 200);
    }
    taken(&proxy, 0).await;
    go.add_permits(1);
    let next = proxy.get("/export").await;
    assert_eq!(
        (next.status.as_u16(), next.number("x-ratelimit-remaining")),
        (200, 97),
        "of its own only those that passed"
    );
}

#[tokio::test]
async fn a_place_is_given_back_when_a_limit_refuses() {
    let upstream = HttpServer::named("served").await;
    let rest = "rate_limits: { default: { requests: 1, window: 1d }, rules: [{ name: a, concurrent: 1 }] }";
    let proxy = TestGateway::before(&[upstream.url()], rest);
    assert_eq!(proxy.get("/").await.status, 200);
    for _ in 0..3 {
        let refused = proxy.get("/").await;
        assert_eq!(refused.json()["rule"], "default", "not by a place that nobody has given back");
    }
    taken(&proxy, 0).await;
}

#[tokio::test]
async fn a_thousand_clients_that_hang_up_before_the_answer_leave_nothing_behind() {
    let (upstream, go) = waiting().await;
    let proxy = TestGateway::before(&[upstream.url()], MANY);
    let mut clients = Vec::new();
    for n in 0..1_000 {
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        let head = match n % 2 {
            0 => "GET / HTTP/1.1\r\nhost: test\r\n\r\n",
            // Half of them are still sending.
            _ => "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n\r\nsome",
        };
        stream.write_all(head.as_bytes()).await.unwrap();
        clients.push(stream);
    }
    taken(&proxy, 1_000).await;
    drop(clients);
    // The upstream sees that half of them have left. Of the others it does not read the bodies, and works on.
    taken(&proxy, 500).await;
    go.add_permits(500);
    taken(&proxy, 0).await;
}

#[tokio::test]
async fn a_thousand_clients_that_hang_up_within_the_answer_leave_nothing_behind() {
    let upstream = HttpServer::start(|_| async {
        let (mut sender, body) = Channel::<Bytes, hyper::Error>::new(1);
        tokio::spawn(async move {
            sender.send_data("begun".into()).await.unwrap();
            // The rest never comes.
            std::future::pending::<()>().await;
            drop(sender);
        });
        Response::new(body.boxed_unsync())
    })
    .await;
    let proxy = TestGateway::before(&[upstream.url()], MANY);
    for _ in 0..10 {
        let mut clients = Vec::new();
        for _ in 0..100 {
            let mut stream = TcpStream::connect(proxy.address).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
            soon(stream.read_u8()).await.unwrap();
            clients.push(stream);
        }
        assert_eq!(proxy.permits().in_use(), 100);
        drop(clients);
        taken(&proxy, 0).await;
    }
}

#[tokio::test]
async fn a_place_is_given_back_when_the_upstream_fails() {
    let breaking = breaks_off().await;
    let proxy = TestGateway::before(&[breaking.url()], MANY);
    for _ in 0..3 {
        assert_eq!(proxy.get("/").await.status, 502);
    }
    taken(&proxy, 0).await;
    let proxy = TestGateway::before(&["http://127.0.0.1:9".to_owned()], MANY);
    assert_eq!(proxy.get("/").await.status, 502);
    taken(&proxy, 0).await;
}

#[tokio::test]
async fn a_place_is_given_back_when_the_upstream_does_not_answer_in_time() {
    let (upstream, _go) = waiting().await;
    let bounds = ResourceLimits { response_timeout: Duration::from_millis(1), ..ResourceLimits::default() };
    let proxy = TestGateway::with(&[upstream.url()], MANY, &[], bounds);
    assert_eq!(proxy.get("/").await.status, 504);
    taken(&proxy, 0).await;
}

async fn agree(mut request: Request<Incoming>) -> Response<AnyBody> {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let (mut read, mut write) = split(TokioIo::new(upgrade.await.unwrap()));
        // How the tunnel ends is the client's business.
        let _ = copy(&mut read, &mut write).await;
    });
    let response = Response::builder().status(101).header("connection", "upgrade").header("upgrade", "echo");
    response.body(full("")).unwrap()
}

#[tokio::test]
async fn a_tunnel_keeps_its_place_to_its_end() {
    let upstream = HttpServer::start(agree).await;
    let proxy =
        TestGateway::before(&[upstream.url()], "rate_limits: { rules: [{ name: a, concurrent: 1 }] }");
    for _ in 0..3 {
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        let head = "GET / HTTP/1.1\r\nhost: test\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        soon(stream.read_exact(&mut answer)).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 101");
        assert_eq!(proxy.permits().in_use(), 1);
        assert_eq!(proxy.get("/").await.status, 429);
        drop(stream);
        taken(&proxy, 0).await;
    }
}

#[tokio::test]
async fn in_shadow_nobody_is_refused() {
    let (upstream, go) = waiting().await;
    let rest = "rate_limits: { rules: [{ name: a, concurrent: 1, mode: shadow }] }";
    let proxy = TestGateway::before(&[upstream.url()], rest);
    let under_way = [ask(&proxy, "/"), ask(&proxy, "/"), ask(&proxy, "/")];
    taken(&proxy, 1).await;
    go.add_permits(3);
    for one in under_way {
        assert_eq!(soon(one).await.unwrap().status, 200);
    }
    assert_eq!(proxy.metric("rate_limit_shadow_exceeded_total{rule=\"a\"}"), 2);
}
