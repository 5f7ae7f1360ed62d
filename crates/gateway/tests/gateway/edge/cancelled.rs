//! Requests that their client cancels: a concurrency permit is held until the upstream is done with the request.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use tidegate_testkit::client::http2_streams;
use tidegate_testkit::server::AcceptLoop;
use tidegate_testkit::wait::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::fixture::{ResourceLimits, TestGateway};

const RESETS: usize = 50;
const LIMIT: usize = 2;

/// What an upstream does with a request until the test lets it finish.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Attention {
    /// It reads on, so it notices that the gateway closes the connection, and stops working.
    Reads,
    /// It notices nothing and works on.
    Ignores,
}

/// An upstream that counts the requests that it has neither answered nor seen cancelled.
struct Worker {
    arrived: watch::Sender<usize>,
    in_progress: AtomicUsize,
    max_in_progress: AtomicUsize,
    finish: Semaphore,
}

impl Worker {
    fn new() -> Arc<Self> {
        let (in_progress, max_in_progress) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self {
            arrived: watch::Sender::new(0),
            in_progress,
            max_in_progress,
            finish: Semaphore::new(0),
        })
    }

    async fn http1(attention: Attention) -> (Arc<Self>, AcceptLoop) {
        let worker = Self::new();
        let shared = Arc::clone(&worker);
        let accepting = AcceptLoop::start(move |_, stream| {
            let worker = Arc::clone(&shared);
            async move { worker.work(stream, attention).await }
        })
        .await;
        (worker, accepting)
    }

    /// Counts streams that are neither answered nor reset. It answers none.
    async fn http2() -> (Arc<Self>, AcceptLoop) {
        let worker = Self::new();
        let shared = Arc::clone(&worker);
        let accepting = AcceptLoop::start(move |_, stream| {
            let worker = Arc::clone(&shared);
            async move {
                let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
                let mut open: Vec<h2::server::SendResponse<Bytes>> = Vec::new();
                while let Some(Ok((_, respond))) = connection.accept().await {
                    poll_fn(|cx| {
                        open.retain_mut(|respond| respond.poll_reset(cx).is_pending());
                        std::task::Poll::Ready(())
                    })
                    .await;
                    open.push(respond);
                    worker.max_in_progress.fetch_max(open.len(), Ordering::SeqCst);
                    worker.arrived.send_modify(|arrived| *arrived += 1);
                }
            }
        })
        .await;
        (worker, accepting)
    }

    async fn work(&self, mut stream: TcpStream, attention: Attention) {
        let mut head = Vec::new();
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            if !matches!(stream.read_buf(&mut head).await, Ok(1..)) {
                return;
            }
        }
        let in_progress = self.in_progress.fetch_add(1, Ordering::SeqCst) + 1;
        self.max_in_progress.fetch_max(in_progress, Ordering::SeqCst);
        self.arrived.send_modify(|arrived| *arrived += 1);
        let mut rest = Vec::new();
        let is_finished = match attention {
            Attention::Reads => tokio::select! {
                _ = stream.read_to_end(&mut rest) => false,
                permit = self.finish.acquire() => permit.map(SemaphorePermit::forget).is_ok(),
            },
            Attention::Ignores => self.finish.acquire().await.map(SemaphorePermit::forget).is_ok(),
        };
        // It counts as answered from the first byte of the response on.
        self.in_progress.fetch_sub(1, Ordering::SeqCst);
        if is_finished {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        }
    }

    /// Waits until one more request than `before` has arrived.
    async fn arrives(&self, before: usize) {
        let _ = self.arrived.subscribe().wait_for(|arrived| *arrived > before).await;
    }

    fn arrived(&self) -> usize {
        *self.arrived.borrow()
    }

    fn max_in_progress(&self) -> usize {
        self.max_in_progress.load(Ordering::SeqCst)
    }
}

/// A gateway with the limit, in front of this server.
fn limited(url: &str, bounds: ResourceLimits) -> TestGateway {
    let policy = format!(
        "upstreams: {{ app: {{ servers: [\"{url}\"] }} }}\nroutes: [{{ upstream: app }}]\n\
         rate_limits: {{ rules: [{{ name: work, concurrent: {LIMIT} }}] }}\n"
    );
    TestGateway::start(&policy, bounds)
}

/// What a client has sent when it leaves.
#[derive(Clone, Copy, Debug)]
enum SentPart {
    Everything,
    PartOfTheBody,
}

fn request(sent: SentPart) -> Request<()> {
    let request = match sent {
        SentPart::Everything => Request::get("http://a.example/"),
        SentPart::PartOfTheBody => Request::post("http://a.example/").header("content-length", "10"),
    };
    request.body(()).expect("a request")
}

/// Opens and resets streams over one connection. Each is reset once it has reached the upstream or was answered.
async fn reset_streams(gateway: &TestGateway, worker: &Worker, sent: SentPart) {
    let (client, _connection) = http2_streams(gateway.address).await;
    for _ in 0..RESETS {
        let before = worker.arrived();
        let mut client = within("capacity", client.clone().ready()).await.expect("the connection is open");
        let is_complete = matches!(sent, SentPart::Everything);
        let (response, mut body) = client.send_request(request(sent), is_complete).expect("a stream");
        if !is_complete {
            body.send_data(Bytes::from_static(b"part"), false).expect("capacity");
        }
        let either = async {
            tokio::select! {
                response = response => {
                    assert_eq!(response.expect("a response").status(), StatusCode::TOO_MANY_REQUESTS);
                }
                () = worker.arrives(before) => {}
            }
        };
        within("it arrives or is rejected", either).await;
        body.send_reset(h2::Reason::CANCEL);
    }
}

/// The same without waiting for anything.
async fn reset_streams_in_a_burst(gateway: &TestGateway) {
    let (client, _connection) = http2_streams(gateway.address).await;
    for _ in 0..RESETS {
        let mut client = within("capacity", client.clone().ready()).await.expect("the connection is open");
        let (_, mut body) = client.send_request(request(SentPart::Everything), true).expect("a stream");
        tokio::task::yield_now().await;
        body.send_reset(h2::Reason::CANCEL);
    }
}

/// HTTP/1.1 clients that leave once their request has reached the upstream or was answered.
async fn disconnect(gateway: &TestGateway, worker: &Worker, sent: SentPart) {
    for _ in 0..RESETS {
        let before = worker.arrived();
        let mut client = gateway.client().await;
        client
            .send(match sent {
                SentPart::Everything => b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                SentPart::PartOfTheBody => b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\npart",
            })
            .await;
        let either = async {
            tokio::select! {
                response = client.response() => assert_eq!(response.expect("a response").status, 429),
                () = worker.arrives(before) => {}
            }
        };
        within("it arrives or is rejected", either).await;
    }
}

#[tokio::test]
async fn concurrency_limit_with_http2_resets_is_never_exceeded_in_the_upstream() {
    for attention in [Attention::Reads, Attention::Ignores] {
        for sent in [SentPart::Everything, SentPart::PartOfTheBody] {
            let (worker, accepting) = Worker::http1(attention).await;
            let gateway = limited(&accepting.url(), ResourceLimits::default());
            reset_streams(&gateway, &worker, sent).await;
            reset_streams_in_a_burst(&gateway).await;
            assert!(
                worker.max_in_progress() <= LIMIT,
                "{attention:?}, {sent:?}: {} at once",
                worker.max_in_progress()
            );
            if attention == Attention::Ignores {
                assert_eq!(worker.arrived(), LIMIT, "{sent:?}: nothing was cancelled");
                assert_eq!(gateway.permits_in_use(), LIMIT as u64);
            }
            // Requests of the burst that the gateway reads only now are answered at once.
            worker.finish.add_permits(LIMIT + RESETS);
            eventually("the permits are released", || gateway.permits_in_use() == 0).await;
        }
    }
}

#[tokio::test]
async fn concurrency_limit_with_http1_disconnects_is_never_exceeded_in_the_upstream() {
    for attention in [Attention::Reads, Attention::Ignores] {
        for sent in [SentPart::Everything, SentPart::PartOfTheBody] {
            let (worker, accepting) = Worker::http1(attention).await;
            let gateway = limited(&accepting.url(), ResourceLimits::default());
            disconnect(&gateway, &worker, sent).await;
            assert!(
                worker.max_in_progress() <= LIMIT,
                "{attention:?}, {sent:?}: {} at once",
                worker.max_in_progress()
            );
            if attention == Attention::Ignores {
                assert_eq!(worker.arrived(), LIMIT, "{sent:?}: nothing was cancelled");
            }
            worker.finish.add_permits(LIMIT);
            eventually("the permits are released", || gateway.permits_in_use() == 0).await;
        }
    }
}

#[tokio::test]
async fn concurrency_limit_with_an_http2_upstream_resets_a_stream_before_the_next_request() {
    let (worker, accepting) = Worker::http2().await;
    let gateway = limited(&accepting.h2c(), ResourceLimits::default());
    for _ in 0..4 {
        reset_streams(&gateway, &worker, SentPart::Everything).await;
        reset_streams(&gateway, &worker, SentPart::PartOfTheBody).await;
        reset_streams_in_a_burst(&gateway).await;
    }
    assert!(worker.arrived() > LIMIT, "resets release permits");
    assert!(worker.max_in_progress() <= LIMIT, "{} at once", worker.max_in_progress());
    eventually("the permits are released", || gateway.permits_in_use() == 0).await;
}

#[tokio::test]
async fn concurrency_permit_after_an_upstream_timeout_is_kept_until_the_upstream_is_done() {
    let (worker, accepting) = Worker::http1(Attention::Ignores).await;
    let gateway = limited(
        &accepting.url(),
        ResourceLimits { response_timeout: Duration::from_millis(300), ..ResourceLimits::default() },
    );
    let (first, second) = tokio::join!(gateway.get_raw("/"), gateway.get_raw("/"));
    assert_eq!((first.status, second.status), (504, 504));
    assert_eq!(gateway.get_raw("/").await.status, 429, "both are still in progress");
    worker.finish.add_permits(LIMIT);
    eventually("the permits are released", || gateway.permits_in_use() == 0).await;
}

#[tokio::test]
async fn concurrency_permit_of_an_upstream_that_never_responds_is_released_after_the_response_timeout() {
    let (worker, accepting) = Worker::http1(Attention::Ignores).await;
    let gateway = limited(
        &accepting.url(),
        ResourceLimits { response_timeout: Duration::from_millis(100), ..ResourceLimits::default() },
    );
    disconnect(&gateway, &worker, SentPart::Everything).await;
    eventually("the permits are released", || gateway.permits_in_use() == 0).await;
    assert_eq!(worker.finish.available_permits(), 0);
    assert_eq!(gateway.get_raw("/").await.status, 504, "it is admitted");
}

#[tokio::test]
async fn concurrency_permit_is_released_when_the_client_leaves_within_the_response() {
    // It sends part of a response, and neither reads nor closes.
    let accepting = AcceptLoop::start(|_, mut stream| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab").await.expect("capacity");
        std::future::pending::<()>().await;
    })
    .await;
    let gateway = limited(
        &accepting.url(),
        ResourceLimits { response_timeout: Duration::from_millis(200), ..ResourceLimits::default() },
    );
    let mut client = gateway.client().await;
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    client.first_bytes().await;
    assert_eq!(gateway.permits_in_use(), 1);
    drop(client);
    eventually("the permit is released", || gateway.permits_in_use() == 0).await;
}

#[tokio::test]
async fn concurrency_permit_is_released_after_the_response_while_the_client_stays_connected() {
    let (worker, accepting) = Worker::http1(Attention::Reads).await;
    let gateway = limited(&accepting.url(), ResourceLimits::default());
    worker.finish.add_permits(10);
    let mut client = gateway.client().await;
    for _ in 0..10 {
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(client.response().await.map(|response| response.status), Some(200));
        eventually("the permit is released", || gateway.permits_in_use() == 0).await;
    }
}
