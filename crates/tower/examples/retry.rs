//! Retries of calls to an axum service that fails now and then: idempotent requests are sent again after a growing wait, a
//! POST is not, and the budget bounds all retries together.
//!
//! `cargo run -p tidegate-tower --example retry`

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::routing::get;
use http::{Method, Request, StatusCode};
use tidegate_tower::retry::{HttpRetry, RetryBudget, RetryConfig, RetryLayer, SharedRetryBudget};
use tidegate_tower::{BoxError, Ratio};
use tower::{Service, ServiceBuilder, ServiceExt};

static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Every third call succeeds.
async fn flaky() -> StatusCode {
    let number = CALLS.fetch_add(1, Ordering::Relaxed);
    if number % 3 == 2 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let flaky = Router::new().route("/", get(flaky).post(flaky));
    // At most one retry for ten requests, and five per second in addition.
    let budget = SharedRetryBudget::new(RetryBudget::new(Ratio::from_percent(10), 5));
    // The body of axum cannot be cloned; only requests without one are sent again.
    let copy = |request: &Request<Body>| {
        if !request.body().is_end_stream() {
            return None;
        }
        let mut copy = Request::new(Body::empty());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        Some(copy)
    };
    let layer =
        RetryLayer::new(RetryConfig::default(), budget.clone()).rules(HttpRetry::new().clone_with(copy));
    let mut client = ServiceBuilder::new().layer(layer).service(flaky);

    for method in [Method::GET, Method::POST, Method::GET, Method::GET, Method::GET, Method::GET] {
        let before = CALLS.load(Ordering::Relaxed);
        let request = Request::builder().method(&method).body(Body::empty())?;
        let response = client.ready().await?.call(request).await?;
        let attempts = CALLS.load(Ordering::Relaxed) - before;
        println!(
            "{method}: {} after {attempts} attempts; {} retries left",
            response.status(),
            budget.remaining()
        );
    }
    Ok(())
}
