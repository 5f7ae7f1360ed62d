//! A real tonic server and client with the layers around the server.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::{BodyExt, Full};
use tidegate_core::{BreakerConfig, BreakerState, CallOutcome, TimeSpan};
use tidegate_store::MemoryStore;
use tidegate_tower::GrpcErrorLayer;
use tidegate_tower::breaker::{BreakerLayer, CircuitBreaker};
use tidegate_tower::rate_limit::{OneCounter, RateLimitLayer, RateLimitRule, RateLimiter};
use tidegate_tower::timeout::TimeoutLayer;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use crate::support::TokioClock;

/// Messages of plain bytes.
#[derive(Clone, Copy, Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining()).to_vec()))
    }
}

/// A response with one empty message and this status in its trailers.
fn response(status: &'static str) -> Response<Body> {
    let trailers = HeaderMap::from_iter([(
        http::header::HeaderName::from_static("grpc-status"),
        HeaderValue::from_static(status),
    )]);
    let body = Full::new(Bytes::from_static(&[0; 5])).with_trailers(async { Some(Ok(trailers)) });
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

/// `/test.Calls/OK` responds, `/test.Calls/Unavailable` fails in its trailers, every other method hangs.
#[derive(Clone)]
struct Calls;

impl NamedService for Calls {
    const NAME: &'static str = "test.Calls";
}

impl Service<http::Request<Body>> for Calls {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path().to_owned();
        Box::pin(async move {
            match &*path {
                "/test.Calls/OK" => Ok(response("0")),
                "/test.Calls/Unavailable" => Ok(response("14")),
                _ => pending().await,
            }
        })
    }
}

async fn listen() -> (TcpIncoming, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (TcpIncoming::from(listener), address)
}

async fn connect(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

async fn call(channel: &Channel, method: &'static str) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static(method);
    client.unary(tonic::Request::new(Vec::new()), path, Plain).await.map(|_| ())
}

#[tokio::test]
async fn grpc_rejections_and_timeouts_are_statuses() {
    let rules = vec![RateLimitRule::per_window("calls", 2, TimeSpan::from_secs(3_600)).unwrap()];
    let limiter = RateLimiter::new(rules, Arc::new(MemoryStore::with_cap(1 << 20))).unwrap();
    let layers = ServiceBuilder::new()
        .layer(GrpcErrorLayer)
        .layer(RateLimitLayer::grpc(limiter, OneCounter))
        .layer(TimeoutLayer::new(Duration::from_millis(20)));
    let (incoming, address) = listen().await;
    tokio::spawn(Server::builder().layer(layers).add_service(Calls).serve_with_incoming(incoming));
    let channel = connect(address).await;
    call(&channel, "/test.Calls/OK").await.unwrap();
    assert_eq!(call(&channel, "/test.Calls/Hang").await.unwrap_err().code(), Code::DeadlineExceeded);
    let rejected = call(&channel, "/test.Calls/OK").await.unwrap_err();
    assert_eq!(rejected.code(), Code::ResourceExhausted);
    assert!(rejected.metadata().contains_key("retry-after"), "{:?}", rejected.metadata());
    assert!(rejected.metadata().contains_key("grpc-retry-pushback-ms"));
    assert_eq!(rejected.metadata().get("x-ratelimit-remaining").unwrap(), "0");
}

#[tokio::test]
async fn grpc_breaker_counts_failures_in_trailers() {
    let breaker = CircuitBreaker::new(BreakerConfig::default()).unwrap();
    let layers = ServiceBuilder::new().layer(GrpcErrorLayer).layer(BreakerLayer::grpc(breaker.clone()));
    let (incoming, address) = listen().await;
    tokio::spawn(Server::builder().layer(layers).add_service(Calls).serve_with_incoming(incoming));
    let channel = connect(address).await;
    for _ in 0..4 {
        assert_eq!(call(&channel, "/test.Calls/Unavailable").await.unwrap_err().code(), Code::Unavailable);
    }
    assert_eq!(breaker.status().consecutive_failures, 4);
    call(&channel, "/test.Calls/OK").await.unwrap();
    assert_eq!(breaker.status().consecutive_failures, 0);
    for _ in 0..5 {
        call(&channel, "/test.Calls/Unavailable").await.unwrap_err();
    }
    assert_eq!(breaker.state(), BreakerState::Open);
    let rejected = call(&channel, "/test.Calls/OK").await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unavailable);
    let (sentence, time) = rejected.message().split_once(" Please retry after ").expect("a time");
    assert_eq!((sentence, time.ends_with(" seconds.")), ("Service is failing.", true), "{rejected}");
}

#[tokio::test]
async fn grpc_breaker_ends_a_call_with_its_body() {
    let breaker = CircuitBreaker::new(BreakerConfig::default()).unwrap();
    let service = ServiceBuilder::new()
        .layer(BreakerLayer::grpc(breaker.clone()))
        .service(service_fn(|status: &'static str| async move { Ok::<_, Infallible>(response(status)) }));
    let response = service.clone().oneshot("14").await.unwrap();
    assert_eq!(breaker.status().consecutive_failures, 0, "the call has not ended");
    response.into_body().collect().await.unwrap();
    assert_eq!(breaker.status().consecutive_failures, 1);
    drop(service.oneshot("14").await.unwrap());
    assert_eq!(breaker.status().consecutive_failures, 1, "a dropped body cancels the call");
}

#[tokio::test]
async fn grpc_breaker_counts_responses_that_end_without_a_status() {
    let breaker = CircuitBreaker::new(BreakerConfig::default()).unwrap();
    let service = ServiceBuilder::new()
        .layer(BreakerLayer::grpc(breaker.clone()))
        .service(service_fn(|body: Full<Bytes>| async move { Ok::<_, Infallible>(Response::new(body)) }));
    drop(service.clone().oneshot(Full::default()).await.unwrap());
    assert_eq!(breaker.status().consecutive_failures, 1, "the head is the end");
    let mut body = service.oneshot(Full::new(Bytes::from_static(&[0; 5]))).await.unwrap().into_body();
    assert_eq!(breaker.status().consecutive_failures, 1, "a message follows");
    body.frame().await.unwrap().unwrap();
    // As a connection does, which does not poll a body that has ended.
    drop(body);
    assert_eq!(breaker.status().consecutive_failures, 2);
}

#[tokio::test(start_paused = true)]
async fn grpc_breaker_probe_that_is_a_long_stream_leaves_its_slot_with_its_first_message() {
    let breaker = CircuitBreaker::with_clock(BreakerConfig::default(), TokioClock::shared()).unwrap();
    for _ in 0..5 {
        breaker.try_acquire().unwrap().record(CallOutcome::Failure);
    }
    tokio::time::advance(Duration::from_mins(1)).await;
    let service = ServiceBuilder::new()
        .layer(BreakerLayer::grpc(breaker.clone()))
        .service(service_fn(|()| async { Ok::<_, Infallible>(response("14")) }));
    let mut stream = service.clone().oneshot(()).await.unwrap().into_body();
    assert!(service.clone().oneshot(()).await.is_err(), "one probe at a time");
    stream.frame().await.unwrap().unwrap();
    let second = service.oneshot(()).await.expect("the first probe has shown a sign of life");
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    stream.frame().await.unwrap().unwrap();
    assert_eq!(breaker.state(), BreakerState::Open, "its end counts nevertheless");
    drop(second);
    assert_eq!(breaker.status().probes, 0);
}
