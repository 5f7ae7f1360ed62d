//! A bulkhead for each route of an axum service: slow searches do not take the places of orders.
//!
//! `cargo run -p tidegate-tower --example bulkhead`

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{MethodRouter, get};
use http::Request;
use tidegate_tower::bulkhead::{Bulkhead, BulkheadConfig, BulkheadLayer};
use tidegate_tower::{BoxError, HttpErrorLayer};
use tokio::task::JoinSet;
use tower::{ServiceBuilder, ServiceExt};

async fn search() -> &'static str {
    tokio::time::sleep(Duration::from_millis(200)).await;
    "results"
}

async fn orders() -> &'static str {
    "orders"
}

/// Puts a bulkhead around a handler.
fn isolated(handler: MethodRouter, config: BulkheadConfig) -> MethodRouter {
    handler.layer(
        ServiceBuilder::new()
            .layer(HttpErrorLayer::default())
            .layer(BulkheadLayer::new(Bulkhead::new(config))),
    )
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // Two searches at a time; two more wait for up to 300 ms.
    let for_search = BulkheadConfig::new(2).queue(2, Duration::from_millis(300));
    let app = Router::new()
        .route("/search", isolated(get(search), for_search))
        .route("/orders", isolated(get(orders), BulkheadConfig::new(30)));

    let mut searches = JoinSet::new();
    for number in 1..=6 {
        let app = app.clone();
        searches.spawn(async move { (number, send(&app, "/search").await) });
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    println!("orders, while searches are slow: {}", send(&app, "/orders").await?);
    while let Some(result) = searches.join_next().await {
        let (number, status) = result?;
        println!("search {number}: {}", status?);
    }
    Ok(())
}

async fn send(app: &Router, path: &str) -> Result<String, BoxError> {
    let response = app.clone().oneshot(Request::get(path).body(Body::empty())?).await?;
    let retry_after = response.headers().get("retry-after").map(|value| format!(", Retry-After: {value:?}"));
    Ok(format!("{}{}", response.status(), retry_after.unwrap_or_default()))
}
