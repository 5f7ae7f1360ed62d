//! A whole stack on a plain hyper server, in a task of its own: its futures are `Send`.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tidegate_tower::HttpErrorLayer;
use tidegate_tower::breaker::{BreakerLayer, CircuitBreaker};
use tidegate_tower::bulkhead::{Bulkhead, BulkheadConfig, BulkheadLayer};
use tidegate_tower::deadline::DeadlineLayer;
use tidegate_tower::load_shed::{LoadShedLayer, LoadShedder};
use tidegate_tower::rate_limit::{OneCounter, RateLimitLayer, RateLimiter};
use tidegate_tower::timeout::TimeoutLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tower::{ServiceBuilder, ServiceExt, service_fn};

#[tokio::test]
async fn stack_on_plain_hyper_serves_and_fails_a_connection_without_our_responses_to_errors() {
    let stack = || {
        ServiceBuilder::new()
            .layer(DeadlineLayer::new().at_most(Duration::from_secs(30)))
            .layer(RateLimitLayer::new(
                RateLimiter::in_memory(9, Duration::from_mins(1)).unwrap(),
                OneCounter,
            ))
            .layer(LoadShedLayer::new(LoadShedder::default()))
            .layer(BulkheadLayer::new(Bulkhead::new(BulkheadConfig::new(0))))
            .layer(BreakerLayer::new(CircuitBreaker::default()))
            .layer(TimeoutLayer::new(Duration::from_secs(5)))
            .service(service_fn(async |_: Request<Incoming>| {
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
            }))
    };
    let with_responses = ServiceBuilder::new().layer(HttpErrorLayer::default()).service(stack());
    for (has_responses, start) in [(true, "HTTP/1.1 503"), (false, "")] {
        let (mut client, server) = duplex(10_000);
        let io = TokioIo::new(server);
        let (stack, with_responses) = (stack(), with_responses.clone());
        let connection = tokio::spawn(async move {
            if has_responses {
                http1::Builder::new().serve_connection(io, TowerToHyperService::new(with_responses)).await
            } else {
                // With a boxed trait object as the error of the layers, this task cannot be proved to be `Send`.
                let service = hyper::service::service_fn(move |request| {
                    let stack = stack.clone();
                    async move { stack.oneshot(request).await }
                });
                http1::Builder::new().serve_connection(io, service).await
            }
        });
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with(start) && response.is_empty() != has_responses, "{response}");
        let result = connection.await.unwrap();
        let text = result.err().map(|error| format!("{error:?}")).unwrap_or_default();
        assert_eq!(text.contains("BulkheadFull"), !has_responses, "{text}");
    }
}
