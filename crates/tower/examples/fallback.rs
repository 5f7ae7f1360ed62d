//! A fallback in an axum service: while the breaker is open, clients get a cached response.
//!
//! `cargo run -p tidegate-tower --example fallback`

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::get;
use http::{Request, StatusCode};
use tidegate_tower::breaker::{BreakerConfig, BreakerLayer, CircuitBreaker};
use tidegate_tower::fallback::FallbackLayer;
use tidegate_tower::{BoxError, HttpErrorLayer, LayerError, is_rejection};
use tower::{ServiceBuilder, ServiceExt};

/// The service for prices is down.
async fn prices() -> StatusCode {
    StatusCode::BAD_GATEWAY
}

/// The response to requests that were rejected; other errors stay errors.
fn last_known_prices(error: LayerError) -> Result<Response, LayerError> {
    if is_rejection(&error) { Ok(Response::new("prices of yesterday\n".into())) } else { Err(error) }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let breaker = CircuitBreaker::new(BreakerConfig { failures: Some(2), ..BreakerConfig::default() })?;
    let layers = ServiceBuilder::new()
        .layer(HttpErrorLayer::default())
        .layer(FallbackLayer::new(last_known_prices))
        .layer(BreakerLayer::new(breaker));
    let app = Router::new().route("/prices", get(prices)).layer(layers);
    for _ in 0..4 {
        let response = app.clone().oneshot(Request::get("/prices").body(Body::empty())?).await?;
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1_000).await?;
        println!("{status}: {}", String::from_utf8_lossy(&body).trim_end());
    }
    Ok(())
}
