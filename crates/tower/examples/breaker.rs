//! A circuit breaker in an axum service: five failures open it, later requests are rejected at once, and after the open time
//! one probe decides.
//!
//! `cargo run -p tidegate-tower --example breaker`

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode};
use tidegate_tower::breaker::{BreakerConfig, BreakerLayer, CircuitBreaker};
use tidegate_tower::{BoxError, HttpErrorLayer, Ratio, TimeSpan};
use tower::{ServiceBuilder, ServiceExt};

/// Whether the database works.
static WORKS: AtomicBool = AtomicBool::new(false);

async fn orders() -> (StatusCode, &'static str) {
    if WORKS.load(Ordering::Relaxed) {
        (StatusCode::OK, "orders")
    } else {
        (StatusCode::BAD_GATEWAY, "the database is down")
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let open_for = TimeSpan::from_millis(500);
    let config = BreakerConfig {
        open_for,
        max_open_for: open_for,
        open_jitter: Ratio::ZERO,
        ..BreakerConfig::default()
    };
    let breaker = CircuitBreaker::new(config)?;
    let layers = ServiceBuilder::new()
        // Turns the errors of the layers below into responses.
        .layer(HttpErrorLayer::default())
        .layer(BreakerLayer::new(breaker.clone()));
    let app = Router::new().route("/orders", get(orders)).layer(layers);

    for _ in 0..7 {
        send(&app, &breaker).await?;
    }
    println!("the database works again; the open time passes");
    WORKS.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(600)).await;
    for _ in 0..2 {
        send(&app, &breaker).await?;
    }
    Ok(())
}

async fn send(app: &Router, breaker: &CircuitBreaker) -> Result<(), BoxError> {
    let response = app.clone().oneshot(Request::get("/orders").body(Body::empty())?).await?;
    println!("{} (the breaker is {})", response.status(), breaker.state().name());
    Ok(())
}
