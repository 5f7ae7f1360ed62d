//! A leaky bucket delays requests until they may depart.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use tidegate_limiter::WaitBounds;
use tidegate_testkit::client::{CollectedResponse, http1, http2 as connect_http2};
use tidegate_testkit::server::{HttpServer, full};
use tidegate_testkit::wait::soon;
use tokio::task::JoinHandle;

use crate::fixture::{ResourceLimits, TestGateway};

/// One request departs and `waiting` requests wait for up to a day. The next departure is an hour away.
fn hourly(waiting: u32) -> String {
    let burst = waiting + 1;
    format!(
        "rate_limits: {{ endpoints: {{ /held: {{ requests: 1, window: 1h, algorithm: leaky_bucket, burst: {burst}, \
         max_wait: 1d }} }} }}\n"
    )
}

/// A client with one HTTP/2 connection: the gateway takes its requests in the order in which they are sent.
struct Client(http2::SendRequest<Empty<Bytes>>);

type PendingResponse = JoinHandle<hyper::Result<Response<Incoming>>>;

impl Client {
    async fn connect(gateway: &TestGateway) -> Self {
        Self(connect_http2(gateway.address).await)
    }

    fn send_get(&mut self, path: &str) -> PendingResponse {
        let request = Request::get(format!("http://test{path}")).body(Empty::new()).unwrap();
        tokio::spawn(self.0.send_request(request))
    }

    /// Returns once all earlier requests are decided and the rejected ones have their responses.
    async fn probe(&mut self) {
        for _ in 0..2 {
            assert_eq!(soon(self.send_get("/probe")).await.unwrap().unwrap().status(), 200);
        }
    }

    async fn is_delayed(&mut self, pending: &PendingResponse) -> bool {
        self.probe().await;
        !pending.is_finished()
    }

    /// Sends requests until one is delayed and not rejected.
    async fn send_until_delayed(&mut self) -> PendingResponse {
        for _ in 0..1_000 {
            let pending = self.send_get("/held");
            if self.is_delayed(&pending).await {
                return pending;
            }
            assert_eq!(pending.await.unwrap().unwrap().status(), 429);
        }
        panic!("no place in the queue became free");
    }
}

async fn collect(pending: PendingResponse) -> CollectedResponse {
    CollectedResponse::of(soon(pending).await.unwrap().unwrap()).await
}

#[tokio::test]
async fn delayed_requests_depart_in_order_of_arrival() {
    let arrived = Arc::new(Mutex::new(Vec::new()));
    let upstream = HttpServer::start({
        let arrived = Arc::clone(&arrived);
        move |request| {
            arrived.lock().unwrap().push(request.uri().path().to_owned());
            async { Response::new(full("served")) }
        }
    })
    .await;
    let policy =
        "rate_limits: { default: { requests: 50, window: 1s, algorithm: leaky_bucket, burst: 20 } }\n";
    let gateway = TestGateway::before(&[upstream.url()], policy);
    let mut client = Client::connect(&gateway).await;
    let pending: Vec<_> = (0..12).map(|n| client.send_get(&format!("/{n}"))).collect();
    for pending in pending {
        assert_eq!(collect(pending).await.status, 200);
    }
    let in_order: Vec<_> = (0..12).map(|n| format!("/{n}")).collect();
    assert_eq!(*arrived.lock().unwrap(), in_order);
}

#[tokio::test]
async fn delayed_request_does_not_reach_the_upstream_while_others_do() {
    let arrived = Arc::new(Mutex::new(Vec::new()));
    let upstream = HttpServer::start({
        let arrived = Arc::clone(&arrived);
        move |request| {
            arrived.lock().unwrap().push(request.uri().path().to_owned());
            async { Response::new(full("served")) }
        }
    })
    .await;
    let gateway = TestGateway::with(&[upstream.url()], &hourly(5), &[], ResourceLimits::default());
    let mut client = Client::connect(&gateway).await;
    assert_eq!(collect(client.send_get("/held")).await.status, 200);
    let delayed = client.send_get("/held");
    assert!(client.is_delayed(&delayed).await);
    assert_eq!(*arrived.lock().unwrap(), ["/held", "/probe", "/probe"]);
}

#[tokio::test]
async fn delayed_requests_beyond_the_burst_get_429_with_retry_after() {
    let upstream = HttpServer::named("served").await;
    let gateway = TestGateway::with(&[upstream.url()], &hourly(2), &[], ResourceLimits::default());
    let mut client = Client::connect(&gateway).await;
    assert_eq!(collect(client.send_get("/held")).await.status, 200);
    let (second, third) = (client.send_get("/held"), client.send_get("/held"));
    let rejected = collect(client.send_get("/held")).await;
    assert_eq!(rejected.status, 429);
    assert!((3_590..=3_960).contains(&rejected.number("retry-after")), "{rejected:?}");
    assert!(client.is_delayed(&second).await && client.is_delayed(&third).await);
}

#[tokio::test]
async fn last_delayed_request_is_refunded_when_its_stream_is_reset() {
    let upstream = HttpServer::named("served").await;
    let gateway = TestGateway::with(&[upstream.url()], &hourly(1), &[], ResourceLimits::default());
    let mut client = Client::connect(&gateway).await;
    assert_eq!(collect(client.send_get("/held")).await.status, 200);
    let delayed = client.send_get("/held");
    assert!(client.is_delayed(&delayed).await);
    assert_eq!(collect(client.send_get("/held")).await.status, 429);
    delayed.abort();
    client.send_until_delayed().await;
}

#[tokio::test]
async fn last_delayed_request_is_refunded_when_its_connection_closes() {
    let upstream = HttpServer::named("served").await;
    let gateway = TestGateway::with(&[upstream.url()], &hourly(1), &[], ResourceLimits::default());
    let mut client = Client::connect(&gateway).await;
    assert_eq!(collect(client.send_get("/held")).await.status, 200);
    let mut other_client = http1(gateway.address).await;
    let request = Request::get("/held").header("host", "test").body(Empty::<Bytes>::new()).unwrap();
    let other_request = tokio::spawn(async move { other_client.send_request(request).await });
    let full = async {
        loop {
            let pending = client.send_get("/held");
            if !client.is_delayed(&pending).await {
                return collect(pending).await;
            }
            // This request arrived before the other one and took its place.
            pending.abort();
        }
    };
    assert_eq!(soon(full).await.status, 429);
    other_request.abort();
    client.send_until_delayed().await;
}

#[tokio::test]
async fn delayed_request_in_the_middle_of_the_queue_is_not_refunded() {
    let upstream = HttpServer::named("served").await;
    let gateway = TestGateway::with(&[upstream.url()], &hourly(2), &[], ResourceLimits::default());
    let mut client = Client::connect(&gateway).await;
    assert_eq!(collect(client.send_get("/held")).await.status, 200);
    let (middle, last) = (client.send_get("/held"), client.send_get("/held"));
    assert!(client.is_delayed(&middle).await && client.is_delayed(&last).await);
    middle.abort();
    client.probe().await;
    assert_eq!(collect(client.send_get("/held")).await.status, 429);
    assert!(client.is_delayed(&last).await);
}

#[tokio::test]
async fn delayed_requests_beyond_the_maximum_get_503() {
    let upstream = HttpServer::named("served").await;
    let gateway = TestGateway::before(&[upstream.url()], &hourly(9));
    gateway.bound_waits(WaitBounds { total: 1, ..WaitBounds::default() });
    let mut client = Client::connect(&gateway).await;
    assert_eq!(collect(client.send_get("/held")).await.status, 200);
    let delayed = client.send_get("/held");
    assert_eq!(collect(client.send_get("/held")).await.status, 503);
    assert!(client.is_delayed(&delayed).await);
}

#[tokio::test]
async fn leaky_bucket_wait_over_max_wait_is_rejected_with_the_time_until_it_would_be_admitted() {
    let upstream = HttpServer::named("served").await;
    let policy = "rate_limits: { default: { requests: 10, window: 1h, algorithm: leaky_bucket } }\n";
    let gateway = TestGateway::before(&[upstream.url()], policy);
    assert_eq!(gateway.get("/").await.status, 200);
    for _ in 0..3 {
        let rejected = gateway.get("/").await;
        assert_eq!(rejected.status, 429);
        // Departures are 360 s apart, and a request waits for at most 30 of them.
        assert!((329..=363).contains(&rejected.number("retry-after")), "{rejected:?}");
        let body = rejected.json();
        assert_eq!((&body["error"], &body["rule"]), (&"rate_limit_exceeded".into(), &"default".into()));
        assert_eq!((rejected.number("x-ratelimit-limit"), rejected.number("x-ratelimit-remaining")), (10, 0));
    }
    assert_eq!(gateway.metric("rate_limit_requests_total{decision=\"rejected\",protocol=\"gateway\"}"), 3);
}

#[tokio::test]
async fn leaky_bucket_burst_includes_the_departing_request() {
    let upstream = HttpServer::named("served").await;
    let policy = "rate_limits: { default: { requests: 1, window: 1h, algorithm: leaky_bucket, burst: 1 } }\n";
    let gateway = TestGateway::before(&[upstream.url()], policy);
    assert_eq!(gateway.get("/").await.status, 200);
    assert_eq!(gateway.get("/").await.status, 429);
}
