//! Clients that cause failures on purpose cannot open a breaker, eject a server or spend the budget for others.

use bytes::Bytes;
use http::Request;
use tidegate_core::BreakerState;
use tidegate_testkit::client::http2_streams;
use tidegate_testkit::server::{AcceptLoop, RecordingServer, Reply, ok};
use tidegate_testkit::wait::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{GET, LIMIT, policy, status};
use crate::fixture::{MinRate, ResourceLimits, TestGateway};

const ATTACKS: usize = 20;

/// Two servers that never respond to `/slow`, with everything that a client could trigger set to its most sensitive value.
struct Target {
    gateway: TestGateway,
    servers: [RecordingServer; 2],
}

impl Target {
    async fn start(limits: ResourceLimits) -> Self {
        let server = || {
            RecordingServer::replying(|request| match request.target.as_str() {
                "/slow" => Reply::Hang(Vec::new()),
                "/large" => {
                    let body = "x".repeat(4 << 20);
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                    Reply::Keep(format!("{head}{body}").into())
                }
                "/deadline" => Reply::Keep(status("504 Gateway Timeout", "")),
                _ => ok("ok"),
            })
        };
        let servers = [server().await, server().await];
        let settings = "breaker: { failures: 1 }, eject: { after: 1 }, timeouts: { request: 5s }, \
                        retry: { attempts: 3, on: [connect, reset, timeout, 503] }";
        let text = policy(&[servers[0].url(), servers[1].url()], settings, LIMIT);
        Self { gateway: TestGateway::start(&text, limits), servers }
    }

    async fn assert_unharmed(&self) {
        let requests = |server: &RecordingServer| server.count();
        let in_flight =
            || self.gateway.upstream().servers.iter().map(|server| server.in_flight).sum::<usize>();
        eventually("all exchanges have ended", || in_flight() == 0).await;
        let status = self.gateway.upstream();
        assert_eq!(status.retries, 0);
        assert!(status.retry_budget_left >= 10, "{}", status.retry_budget_left);
        for server in &status.servers {
            let breaker = server.breaker.expect("a breaker");
            assert_eq!((breaker.state, breaker.opened, breaker.rejected), (BreakerState::Closed, 0, 0));
            assert_eq!((server.ejected_for, breaker.probes), (None, 0));
        }
        let before = self.servers.each_ref().map(requests);
        for _ in 0..10 {
            assert_eq!(self.gateway.send_raw(GET).await.status, 200);
        }
        let after = self.servers.each_ref().map(requests);
        assert_eq!([after[0] - before[0], after[1] - before[1]], [5, 5], "both servers get requests");
    }
}

#[tokio::test]
async fn client_that_aborts_harms_no_server() {
    let target = Target::start(ResourceLimits::default()).await;
    for turn in 0..ATTACKS {
        let mut client = target.gateway.client().await;
        client.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let arrived = || target.servers[0].count() + target.servers[1].count();
        eventually("it arrives", || arrived() > turn).await;
    }
    let (client, _connection) = http2_streams(target.gateway.address).await;
    for _ in 0..ATTACKS {
        let mut client = within("capacity", client.clone().ready()).await.expect("the connection is open");
        let request =
            Request::put("http://a/slow").header("content-length", "10").body(()).expect("a request");
        let (_, mut body) = client.send_request(request, false).expect("a stream");
        body.send_data(Bytes::from_static(b"part"), false).expect("capacity");
        tokio::task::yield_now().await;
        body.send_reset(h2::Reason::CANCEL);
    }
    // Its response shows that all streams before it have arrived.
    let mut client = within("capacity", client.ready()).await.expect("the connection is open");
    let last = Request::get("http://a/").body(()).expect("a request");
    let (response, _) = client.send_request(last, true).expect("a stream");
    within("a response", response).await.expect("a response");
    target.assert_unharmed().await;
}

#[tokio::test]
async fn client_with_bad_bodies_harms_no_server() {
    let target = Target::start(ResourceLimits::default()).await;
    for method in ["PUT", "POST"] {
        for _ in 0..ATTACKS {
            let head = format!("{method} /slow HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
            let response = target.gateway.send_raw(&format!("{head}3\r\nabc\r\nzz\r\n")).await;
            assert_eq!(response.status, 400);
            let mut client = target.gateway.client().await;
            client
                .send(format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc").as_bytes())
                .await;
            client.shut_down().await;
            client.rest().await;
        }
    }
    target.assert_unharmed().await;
}

#[tokio::test]
async fn client_that_sends_or_reads_slowly_harms_no_server() {
    let limits = ResourceLimits {
        request_min_rate: MinRate { period: std::time::Duration::from_millis(50), bytes: 1_000 },
        ..ResourceLimits::default()
    };
    let target = Target::start(limits).await;
    let mut clients = Vec::new();
    for _ in 0..ATTACKS {
        let mut client = target.gateway.client().await;
        client.send(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\na").await;
        clients.push(client);
    }
    for mut client in clients {
        assert_eq!(client.response().await.map(|response| response.status), Some(408));
    }
    for _ in 0..ATTACKS {
        let mut client = target.gateway.client().await;
        client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await;
        client.first_bytes().await;
    }
    target.assert_unharmed().await;
}

#[tokio::test]
async fn client_with_impossible_deadlines_harms_no_server() {
    let target = Target::start(ResourceLimits::default()).await;
    for millis in ["0", "1", "5"] {
        for _ in 0..ATTACKS {
            let request = format!("GET /slow HTTP/1.1\r\nHost: a\r\nX-Request-Deadline-Ms: {millis}\r\n\r\n");
            assert_eq!(target.gateway.send_raw(&request).await.status, 504);
        }
    }
    target.assert_unharmed().await;
}

#[tokio::test]
async fn client_whose_deadline_the_next_hop_reports_harms_no_server() {
    let target = Target::start(ResourceLimits::default()).await;
    for _ in 0..ATTACKS {
        let request = "GET /deadline HTTP/1.1\r\nHost: a\r\nX-Request-Deadline-Ms: 4000\r\n\r\n";
        assert_eq!(target.gateway.send_raw(request).await.status, 504);
    }
    target.assert_unharmed().await;
}

/// A server that gives up on a request body that does not arrive: it sends these bytes and closes the connection.
async fn server_with_body_timeout(reply: &'static [u8]) -> AcceptLoop {
    AcceptLoop::start(move |_, mut stream| async move {
        let mut read = Vec::<u8>::new();
        while !read.windows(4).any(|bytes| bytes == b"part") {
            if !matches!(stream.read_buf(&mut read).await, Ok(1..)) {
                return;
            }
        }
        // The gateway may have closed it.
        let _ = stream.write_all(reply).await;
    })
    .await
}

#[tokio::test]
async fn client_that_does_not_complete_its_body_harms_no_server_that_gives_up_on_it() {
    let replies: [&'static [u8]; 2] =
        [b"", b"HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"];
    for reply in replies {
        let servers = [server_with_body_timeout(reply).await, server_with_body_timeout(reply).await];
        let settings = "breaker: { failures: 1 }, eject: { after: 1 }, timeouts: { request: 5s }";
        let text = policy(&servers.each_ref().map(AcceptLoop::url), settings, LIMIT);
        let gateway = TestGateway::start(&text, ResourceLimits::default());
        for method in ["POST", "PUT"] {
            for framing in ["Content-Length: 10\r\n\r\npart", "Transfer-Encoding: chunked\r\n\r\n8\r\npart"] {
                let mut client = gateway.client().await;
                client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\n{framing}").as_bytes()).await;
                let status = client.response().await.expect("a response").status;
                assert!([500, 502].contains(&status), "{status}");
            }
        }
        for server in gateway.upstream().servers {
            let breaker = server.breaker.expect("a breaker");
            assert_eq!((breaker.opened, server.ejected_for), (0, None));
        }
    }
}
