//! HTTP/2 in and HTTP/2 out, as gRPC needs it.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body_util::BodyExt;
use http_body_util::channel::Channel;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use tidegate_testkit::client::{CollectedResponse, http2 as connect_http2};
use tidegate_testkit::server::{AnyBody, HttpServer, full};
use tidegate_testkit::wait::soon;

use crate::fixture::TestGateway;

/// A length-prefixed message of gRPC.
fn message(text: &str) -> Bytes {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(text.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.into()
}

fn trailers(name: &'static str, value: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(http::HeaderName::from_static(name), HeaderValue::from_static(value))])
}

async fn client(gateway: &TestGateway) -> http2::SendRequest<Channel<Bytes, Infallible>> {
    connect_http2(gateway.address).await
}

fn call(path: &str, body: Channel<Bytes, Infallible>) -> Request<Channel<Bytes, Infallible>> {
    let request = Request::post(format!("http://greeter.test{path}"));
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    request.body(body).unwrap()
}

/// Sends each message back, then the status: 0 if the checksum trailer is right.
async fn echo_messages(request: Request<Incoming>) -> Response<AnyBody> {
    assert_eq!(request.version(), Version::HTTP_2);
    assert_eq!(request.uri().authority().unwrap(), "greeter.test");
    assert_eq!(request.headers()["te"], "trailers");
    let mut request_body = request.into_body();
    let (mut sending, body) = Channel::<Bytes, Infallible>::new(1);
    tokio::spawn(async move {
        let mut status = "2";
        while let Some(Ok(frame)) = request_body.frame().await {
            match frame.into_data() {
                Ok(data) => sending.send_data(data).await.unwrap(),
                Err(frame) if frame.trailers_ref().is_some_and(|sent| sent["x-checksum"] == "7") => {
                    status = "0";
                }
                Err(_) => {}
            }
        }
        sending.send_trailers(trailers("grpc-status", status)).await.unwrap();
    });
    let body = body.map_err(|never| match never {}).boxed_unsync();
    Response::builder().header("content-type", "application/grpc").body(body).unwrap()
}

const LIMIT: &str = "rate_limits: { default: { requests: 2, window: 1h, algorithm: sliding_window_log } }\n";

#[tokio::test]
async fn grpc_call_streams_messages_and_trailers_both_ways() {
    let upstream = HttpServer::start(echo_messages).await;
    let gateway = TestGateway::before(&[upstream.h2c()], LIMIT);
    let (mut sending, body) = Channel::new(1);
    let mut request = call("/Greeter/Chat", body);
    request.headers_mut().insert("trailer", HeaderValue::from_static("x-checksum"));
    let mut response = soon(client(&gateway).await.send_request(request)).await.unwrap();
    assert_eq!(response.status(), 200);
    for text in ["one", "two", "three"] {
        sending.send_data(message(text)).await.unwrap();
        let frame = soon(response.frame()).await.unwrap().unwrap();
        assert_eq!(
            frame.into_data().unwrap(),
            message(text),
            "the response to a message arrives before the next is sent"
        );
    }
    sending.send_trailers(trailers("x-checksum", "7")).await.unwrap();
    drop(sending);
    let last = soon(response.frame()).await.unwrap().unwrap();
    assert_eq!(last.into_trailers().unwrap()["grpc-status"], "0");
}

#[tokio::test]
async fn grpc_status_without_a_message_is_forwarded() {
    let upstream = HttpServer::start(|_| async {
        Response::builder().header("grpc-status", "12").body(full("")).unwrap()
    })
    .await;
    let gateway = TestGateway::before(&[upstream.h2c()], LIMIT);
    let (sending, body) = Channel::new(1);
    drop(sending);
    let response = soon(client(&gateway).await.send_request(call("/Greeter/Unknown", body))).await.unwrap();
    let response = CollectedResponse::of(response).await;
    assert_eq!(response.header("grpc-status"), Some("12"));
}

#[tokio::test]
async fn grpc_calls_over_one_connection_are_limited_like_other_requests() {
    let upstream = HttpServer::start(echo_messages).await;
    let gateway = TestGateway::before(&[upstream.h2c()], LIMIT);
    let mut client = client(&gateway).await;
    for expected in [None, None, Some("8")] {
        let (sending, body) = Channel::new(1);
        drop(sending);
        let response =
            CollectedResponse::of(soon(client.send_request(call("/Greeter/Hello", body))).await.unwrap())
                .await;
        assert_eq!((response.status.as_u16(), response.header("grpc-status")), (200, expected));
    }
}

#[tokio::test]
async fn http1_clients_reach_http2_upstreams_and_http2_clients_http1_upstreams() {
    let upstream = HttpServer::start(|request: Request<Incoming>| async move {
        let host = request.uri().authority().map(|host| host.as_str().to_owned());
        let host = host.or_else(|| Some(request.headers().get("host")?.to_str().unwrap().to_owned()));
        Response::new(full(format!("{:?} {}", request.version(), host.unwrap())))
    })
    .await;
    let gateway = TestGateway::before(&[upstream.h2c()], LIMIT);
    assert_eq!(gateway.get("/").await.text(), "HTTP/2.0 test");
    let gateway = TestGateway::before(&[upstream.url()], LIMIT);
    let (sending, body) = Channel::new(1);
    drop(sending);
    let response = soon(client(&gateway).await.send_request(call("/", body))).await.unwrap();
    assert_eq!(CollectedResponse::of(response).await.text(), "HTTP/1.1 greeter.test");
}

#[tokio::test]
async fn split_cookie_headers_over_http2_are_joined_for_http1() {
    let upstream = HttpServer::start(|request: Request<Incoming>| async move {
        let cookies = request.headers().get_all("cookie").iter().map(|value| value.to_str().unwrap());
        Response::new(full(cookies.collect::<Vec<_>>().join(" | ")))
    })
    .await;
    let gateway = TestGateway::before(&[upstream.url()], LIMIT);
    let (sending, body) = Channel::new(1);
    drop(sending);
    let mut request = call("/", body);
    for cookie in ["a=1", "b=2", "c=3"] {
        request.headers_mut().append("cookie", HeaderValue::from_static(cookie));
    }
    let response = soon(client(&gateway).await.send_request(request)).await.unwrap();
    assert_eq!(CollectedResponse::of(response).await.text(), "a=1; b=2; c=3");
}
