//! Rate limits in an axum service: three requests per minute for each API key, with headers and 429.
//!
//! `cargo run -p tidegate-tower --example rate_limit`

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::error_handling::HandleErrorLayer;
use axum::routing::get;
use http::Request;
use http::header::HeaderName;
use tidegate_core::TimeSpan;
use tidegate_headers::BodyStyle;
use tidegate_store::MemoryStore;
use tidegate_tower::rate_limit::{ByHeader, RateLimitLayer, RateLimitRule, RateLimiter};
use tidegate_tower::{BoxError, into_response};
use tower::{ServiceBuilder, ServiceExt};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let rules = vec![RateLimitRule::per_window("default", 3, TimeSpan::from_secs(60))?];
    // Counters of up to 100,000 clients in this process; any other store works too.
    let store = Arc::new(MemoryStore::with_cap(MemoryStore::cap_for(100_000)));
    let limiter = RateLimiter::new(rules, store)?;
    let by_api_key = ByHeader::new(HeaderName::from_static("x-api-key"));
    let layers = ServiceBuilder::new()
        // Only for errors of the store: the layer responds to rejected requests itself.
        .layer(HandleErrorLayer::new(|error: BoxError| async {
            into_response::<Body>(error, BodyStyle::Flat)
        }))
        .layer(RateLimitLayer::new(limiter, by_api_key));
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(layers);

    for client in ["alice", "alice", "alice", "alice", "bob"] {
        let request = Request::get("/").header("x-api-key", client).body(Body::empty())?;
        let response = app.clone().oneshot(request).await?;
        println!("{client}: {}", response.status());
        for name in ["ratelimit-policy", "ratelimit", "retry-after"] {
            if let Some(value) = response.headers().get(name) {
                println!("  {name}: {}", value.to_str()?);
            }
        }
    }
    Ok(())
}
