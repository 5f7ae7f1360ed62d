//! A leaky bucket holds requests until their turn comes.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use tidegate_testkit::client::{CollectedResponse, http1, http2 as connect_http2};
use tidegate_testkit::server::{HttpServer, full};
use tidegate_testkit::wait::soon;
use tokio::task::JoinHandle;

use crate::fixture::{ResourceLimits, TestGateway};

/// One departs, so many wait for up to a day; the next departure is an hour away.
fn hourly(waiting: u32) -> String {
    let burst = waiting + 1;
    format!(
        "rate_limits: {{ endpoints: {{ /held: {{ requests: 1, window: 1h, algorithm: leaky_bucket, burst: {burst}, \
         max_wait: 1d }} }} }}\n"
    )
}

/// A client with one HTTP/2 connection: the gateway takes its requests in the order in which they are sent.
struct Client(http2::SendRequest<Empty<Bytes>>);

type Asked = JoinHandle<hyper::Result<Response<Incoming>>>;

impl Client {
    async fn of(proxy: &TestGateway) -> Self {
        Self(connect_http2(proxy.address).await)
    }

    fn ask(&mut self, path: &str) -> Asked {
        let request = Request::get(format!("http://test{path}")).body(Empty::new()).unwrap();
        tokio::spawn(self.0.send_request(request))
    }

    /// What was asked before has been decided, and refused if it was to be, when this is over.
    async fn probe(&mut self) {
        for _ in 0..2 {
            assert_eq!(soon(self.ask("/probe")).await.unwrap().unwrap().status(), 200);
        }
    }

    async fn is_held(&mut self, asked: &Asked) -> bool {
        self.probe().await;
        !asked.is_finished()
    }

    /// Asks until it is held and not refused.
    async fn ask_until_held(&mut self) -> Asked {
        for _ in 0..1_000 {
            let asked = self.ask("/held");
            if self.is_held(&asked).await {
                return asked;
            }
            assert_eq!(asked.await.unwrap().unwrap().status(), 429);
        }
        panic!("no place in the queue became free");
    }
}

async fn answer(asked: Asked) -> CollectedResponse {
    CollectedResponse::of(soon(asked).await.unwrap().unwrap()).await
}

#[tokio::test]
async fn requests_depart_in_the_order_in_which_they_came() {
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
    let proxy = TestGateway::before(&[upstream.url()], policy);
    let mut client = Client::of(&proxy).await;
    let asked: Vec<_> = (0..12).map(|n| client.ask(&format!("/{n}"))).collect();
    for asked in asked {
        assert_eq!(answer(asked).await.status, 200);
    }
    let in_order: Vec<_> = (0..12).map(|n| format!("/{n}")).collect();
    assert_eq!(*arrived.lock().unwrap(), in_order);
}

#[tokio::test]
async fn a_held_request_has_not_reached_the_upstream_while_others_have() {
    let arrived = Arc::new(Mutex::new(Vec::new()));
    let upstream = HttpServer::start({
        let arrived = Arc::clone(&arrived);
        move |request| {
            arrived.lock().unwrap().push(request.uri().path().to_owned());
            async { Response::new(full("served")) }
        }
    })
    .await;
    let proxy = TestGateway::with(&[upstream.url()], &hourly(5), &[], ResourceLimits::default());
    let mut client = Client::of(&proxy).await;
    assert_eq!(answer(client.ask("/held")).await.status, 200);
    let held = client.ask("/held");
    assert!(client.is_held(&held).await);
    assert_eq!(*arrived.lock().unwrap(), ["/held", "/probe", "/probe"]);
}

#[tokio::test]
async fn a_full_queue_refuses_with_429_and_a_time() {
    let upstream = HttpServer::named("served").await;
    let proxy = TestGateway::with(&[upstream.url()], &hourly(2), &[], ResourceLimits::default());
    let mut client = Client::of(&proxy).await;
    assert_eq!(answer(client.ask("/held")).await.status, 200);
    let (second, third) = (client.ask("/held"), client.ask("/held"));
    let refused = answer(client.ask("/held")).await;
    assert_eq!(refused.status, 429);
    assert!((3_590..=3_960).contains(&refused.number("retry-after")), "{refused:?}");
    assert!(client.is_held(&second).await && client.is_held(&third).await);
}

#[tokio::test]
async fn the_last_in_the_queue_gives_its_departure_back_when_its_stream_is_reset() {
    let upstream = HttpServer::named("served").await;
    let proxy = TestGateway::with(&[upstream.url()], &hourly(1), &[], ResourceLimits::default());
    let mut client = Client::of(&proxy).await;
    assert_eq!(answer(client.ask("/held")).await.status, 200);
    let held = client.ask("/held");
    assert!(client.is_held(&held).await);
    assert_eq!(answer(client.ask("/held")).await.status, 429);
    held.abort();
    client.ask_until_held().await;
}

#[tokio::test]
async fn the_last_in_the_queue_gives_its_departure_back_when_its_connection_ends() {
    let upstream = HttpServer::named("served").await;
    let proxy = TestGateway::with(&[upstream.url()], &hourly(1), &[], ResourceLimits::default());
    let mut client = Client::of(&proxy).await;
    assert_eq!(answer(client.ask("/held")).await.status, 200);
    let mut leaver = http1(proxy.address).await;
    let request = Request::get("/held").header("host", "test").body(Empty::<Bytes>::new()).unwrap();
    let leaving = tokio::spawn(async move { leaver.send_request(request).await });
    let full = async {
        loop {
            let asked = client.ask("/held");
            if !client.is_held(&asked).await {
                return answer(asked).await;
            }
            // It came before the leaver and took its place.
            asked.abort();
        }
    };
    assert_eq!(soon(full).await.status, 429);
    leaving.abort();
    client.ask_until_held().await;
}

#[tokio::test]
async fn one_in_the_middle_of_the_queue_gives_nothing_back() {
    let upstream = HttpServer::named("served").await;
    let proxy = TestGateway::with(&[upstream.url()], &hourly(2), &[], ResourceLimits::default());
    let mut client = Client::of(&proxy).await;
    assert_eq!(answer(client.ask("/held")).await.status, 200);
    let (middle, last) = (client.ask("/held"), client.ask("/held"));
    assert!(client.is_held(&middle).await && client.is_held(&last).await);
    middle.abort();
    client.probe().await;
    assert_eq!(answer(client.ask("/held")).await.status, 429);
    assert!(client.is_held(&last).await);
}

#[tokio::test]
async fn only_so_many_are_held_at_once() {
    let upstream = HttpServer::named("served").await;
    let bounds = ResourceLimits { max_delayed: 1, ..ResourceLimits::default() };
    let proxy = TestGateway::with(&[upstream.url()], &hourly(9), &[], bounds);
    let mut client = Client::of(&proxy).await;
    assert_eq!(answer(client.ask("/held")).await.status, 200);
    let held = client.ask("/held");
    assert_eq!(answer(client.ask("/held")).await.status, 503);
    assert!(client.is_held(&held).await);
}

#[tokio::test]
async fn leaky_bucket_wait_over_max_wait_is_rejected_with_the_time_until_it_would_be_admitted() {
    let upstream = HttpServer::named("served").await;
    let policy = "rate_limits: { default: { requests: 10, window: 1h, algorithm: leaky_bucket } }\n";
    let proxy = TestGateway::before(&[upstream.url()], policy);
    assert_eq!(proxy.get("/").await.status, 200);
    for _ in 0..3 {
        let rejected = proxy.get("/").await;
        assert_eq!(rejected.status, 429);
        // Departures are 360 s apart, and a request waits for at most 30 of them.
        assert!((329..=363).contains(&rejected.number("retry-after")), "{rejected:?}");
        let body = rejected.json();
        assert_eq!((&body["error"], &body["rule"]), (&"rate_limit_exceeded".into(), &"default".into()));
        assert_eq!((rejected.number("x-ratelimit-limit"), rejected.number("x-ratelimit-remaining")), (10, 0));
    }
    assert_eq!(proxy.metric("rate_limit_requests_total{decision=\"refused\"}"), 3);
}

#[tokio::test]
async fn leaky_bucket_burst_includes_the_departing_request() {
    let upstream = HttpServer::named("served").await;
    let policy = "rate_limits: { default: { requests: 1, window: 1h, algorithm: leaky_bucket, burst: 1 } }\n";
    let proxy = TestGateway::before(&[upstream.url()], policy);
    assert_eq!(proxy.get("/").await.status, 200);
    assert_eq!(proxy.get("/").await.status, 429);
}
