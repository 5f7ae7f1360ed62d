//! A rate limit in an axum service: three requests per minute for each client address, with headers and 429.
//!
//! `cargo run -p tidegate-tower --example rate_limit`, then `curl -i http://127.0.0.1:3000/`

use axum::Router;
use axum::routing::get;
use tidegate_tower::HttpErrorLayer;
use tidegate_tower::rate_limit::{ByAddress, RateLimitLayer, RateLimiter};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    serve(TcpListener::bind("127.0.0.1:3000").await?).await
}

pub(crate) async fn serve(listener: TcpListener) -> Result<(), Box<dyn std::error::Error>> {
    let app = Router::new().route("/", get(async || "hello\n"));
    let limiter = RateLimiter::in_memory(3, std::time::Duration::from_mins(1))?;
    let app = app.layer((HttpErrorLayer::default(), RateLimitLayer::new(limiter, ByAddress::connect_info())));
    let app = app.into_make_service_with_connect_info::<std::net::SocketAddr>();
    Ok(axum::serve(listener, app).await?)
}
