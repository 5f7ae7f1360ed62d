//! A timeout in an axum service: slow requests get 504 and are cancelled.
//!
//! `cargo run -p tidegate-tower --example timeout`

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::get;
use http::Request;
use tidegate_tower::timeout::TimeoutLayer;
use tidegate_tower::{BoxError, HttpErrorLayer};
use tower::{ServiceBuilder, ServiceExt};

async fn work(Path(millis): Path<String>) -> String {
    let millis = millis.parse().unwrap_or_default();
    tokio::time::sleep(Duration::from_millis(millis)).await;
    format!("worked for {millis} ms")
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let layers = ServiceBuilder::new()
        .layer(HttpErrorLayer::default())
        .layer(TimeoutLayer::new(Duration::from_millis(100)));
    let app = Router::new().route("/work/{millis}", get(work)).layer(layers);
    for millis in [10, 50, 500] {
        let request = Request::get(format!("/work/{millis}")).body(Body::empty())?;
        let response = app.clone().oneshot(request).await?;
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1_000).await?;
        println!("{status}: {}", String::from_utf8_lossy(&body).trim_end());
    }
    Ok(())
}
