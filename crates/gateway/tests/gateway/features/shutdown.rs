//! A gateway that shuts down completes the requests in progress.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_testkit::client::{CollectedResponse, http1};
use tidegate_testkit::server::{HttpServer, full};
use tidegate_testkit::wait::soon;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::fixture::{ResourceLimits, TestGateway, active};

const LIMIT: &str = "rate_limits: { default: { requests: 1000, window: 1h } }\n";

#[tokio::test]
async fn shutdown_completes_http2_streams_and_then_closes_the_connection() {
    let (arrive, mut arrived) = mpsc::unbounded_channel();
    let (release, released) = tokio::sync::watch::channel(false);
    let upstream = HttpServer::start(move |_| {
        arrive.send(()).unwrap();
        let mut released = released.clone();
        async move {
            released.wait_for(|released| *released).await.unwrap();
            Response::new(full("served"))
        }
    })
    .await;
    let policy = active(&[upstream.url()], LIMIT, &[]);
    let gateway = TestGateway::draining(policy, ResourceLimits::default(), Duration::from_secs(20));
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let pending: Vec<_> = (0..20)
        .map(|n| {
            let request = Request::get(format!("http://test/{n}")).body(Empty::<Bytes>::new()).unwrap();
            tokio::spawn(sender.send_request(request))
        })
        .collect();
    for _ in 0..20 {
        soon(arrived.recv()).await.unwrap();
    }
    let stopping = tokio::spawn(gateway.stop());
    release.send(true).unwrap();
    for pending in pending {
        let response = CollectedResponse::of(soon(pending).await.unwrap().unwrap()).await;
        assert_eq!((response.status.as_u16(), response.text()), (200, "served"));
    }
    soon(connection).await.unwrap().unwrap();
    soon(stopping).await.unwrap();
}

#[tokio::test]
async fn shutdown_admits_one_more_request_over_an_idle_connection_and_closes_it() {
    let upstream = HttpServer::named("served").await;
    let policy = active(&[upstream.url()], LIMIT, &[]);
    let gateway = TestGateway::draining(policy, ResourceLimits::default(), Duration::from_secs(20));
    let request = || Request::get("/").header("host", "test").body(Empty::<Bytes>::new()).unwrap();
    let mut sender = http1(gateway.address).await;
    let before = CollectedResponse::of(soon(sender.send_request(request())).await.unwrap()).await;
    assert_eq!(before.header("connection"), None);
    let address = gateway.address;
    let stopping = tokio::spawn(gateway.stop());
    let closed = async { while TcpStream::connect(address).await.is_ok() {} };
    soon(closed).await;
    let after = CollectedResponse::of(soon(sender.send_request(request())).await.unwrap()).await;
    assert_eq!((after.status.as_u16(), after.header("connection")), (200, Some("close")));
    soon(stopping).await.unwrap();
}
