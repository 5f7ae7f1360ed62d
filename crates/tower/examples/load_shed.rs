//! Load shedding in an axum service: when the adaptive limit is reached, batch jobs are rejected before the requests of users.
//!
//! `cargo run -p tidegate-tower --example load_shed`

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode};
use tidegate_tower::load_shed::{AdaptiveConfig, ByCriticalityHeader, LoadShedLayer, LoadShedder};
use tidegate_tower::{BoxError, HttpErrorLayer};
use tokio::task::JoinSet;
use tower::{ServiceBuilder, ServiceExt};

async fn work() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

async fn send(app: Router, criticality: &'static str) -> Result<(&'static str, StatusCode), BoxError> {
    let request = Request::get("/").header("x-criticality", criticality).body(Body::empty())?;
    Ok((criticality, app.oneshot(request).await?.status()))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let shedder = LoadShedder::new(AdaptiveConfig { initial: 20, ..AdaptiveConfig::default() })?;
    let layers = ServiceBuilder::new()
        .layer(HttpErrorLayer::default())
        // Only trusted clients reach this service, so each of them may say how important its requests are.
        .layer(LoadShedLayer::new(shedder.clone()).criticality(ByCriticalityHeader::trusted()));
    let app = Router::new().route("/", get(work)).layer(layers);

    println!("the limit is {}", shedder.limit().limit());
    let kinds = ["sheddable", "critical", "critical_plus"];
    // More than the limit at once, in turn.
    let mut requests = JoinSet::new();
    for criticality in kinds.into_iter().cycle().take(30) {
        requests.spawn(send(app.clone(), criticality));
    }
    let (mut served, mut shed) = ([0; 3], [0; 3]);
    while let Some(result) = requests.join_next().await {
        let (criticality, status) = result??;
        let counts = if status.is_success() { &mut served } else { &mut shed };
        for (kind, count) in kinds.into_iter().zip(counts) {
            *count += u32::from(kind == criticality);
        }
    }
    for ((kind, served), shed) in kinds.into_iter().zip(served).zip(shed) {
        println!("{kind}: {served} served, {shed} rejected");
    }
    Ok(())
}
