//! Several servers of one upstream.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::support::{Proxy, Upstream, soon};

const LIMIT: &str = "rate_limits: { default: { requests: 1000, window: 1h } }\n";

#[tokio::test]
async fn two_servers_take_turns() {
    let (left, right) = (Upstream::named("left").await, Upstream::named("right").await);
    let proxy = Proxy::before(&[left.url(), right.url()], LIMIT);
    let mut seen = Vec::new();
    for _ in 0..6 {
        seen.push(proxy.get("/").await.text().to_owned());
    }
    assert_ne!(seen[0], seen[1]);
    assert_eq!((&seen[0], &seen[1]), (&seen[2], &seen[3]));
    assert_eq!((&seen[0], &seen[1]), (&seen[4], &seen[5]));
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_passed_over() {
    let (left, right) = (Upstream::named("left").await, Upstream::named("right").await);
    let nobody = Nobody::new();
    let proxy = Proxy::before(&[nobody.url(), left.url(), right.url()], LIMIT);
    for _ in 0..9 {
        let answer = proxy.get("/").await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[tokio::test]
async fn a_server_that_goes_away_is_passed_over_from_then_on() {
    let (left, right) = (Upstream::named("left").await, Upstream::named("right").await);
    let proxy = Proxy::before(&[left.url(), right.url()], LIMIT);
    for _ in 0..4 {
        assert_eq!(proxy.get("/").await.status, 200);
    }
    left.leave().await;
    for _ in 0..8 {
        let answer = proxy.get("/").await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "right"));
    }
}

#[tokio::test]
async fn a_server_that_a_reload_left_out_loses_its_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let old = format!("http://{}", listener.local_addr().unwrap());
    let new = Upstream::named("new").await;
    let proxy = Proxy::before(&[old], LIMIT);
    let (answer, mut kept) = tokio::join!(proxy.get("/"), async {
        let (mut stream, _) = soon(listener.accept()).await.unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            asked.push(soon(stream.read_u8()).await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold").await.unwrap();
        stream
    });
    assert_eq!(answer.text(), "old");
    proxy.replace(&[new.url()], LIMIT);
    assert_eq!(proxy.get("/").await.text(), "new");
    assert_eq!(soon(kept.read(&mut [0; 1])).await.unwrap(), 0);
}

#[tokio::test]
async fn with_no_server_left_the_answer_is_502() {
    let (nobody, no_other) = (Nobody::new(), Nobody::new());
    let proxy = Proxy::before(&[nobody.url(), no_other.url()], LIMIT);
    let answer = proxy.get("/").await;
    assert_eq!(answer.status, 502);
    assert_eq!(answer.json()["error"], "upstream_unreachable");
    assert_eq!(answer.number("x-ratelimit-limit"), 1000, "also failures tell the limit");
}

/// A server that is not there: its port is taken, and nobody listens.
struct Nobody(socket2::Socket);

impl Nobody {
    fn new() -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        Self(socket)
    }

    fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap().as_socket().unwrap())
    }
}
