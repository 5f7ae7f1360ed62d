//! Deadlines along a chain of three axum services: each works for 100 ms, then calls the next with the time that remains. A
//! service whose deadline has passed does not start.
//!
//! `cargo run -p tidegate-tower --example deadline`

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::Request;
use tidegate_tower::deadline::{Deadline, DeadlineLayer, OutgoingDeadlineLayer, OutgoingDeadlineService};
use tidegate_tower::{BodyStyle, BoxError, HttpErrorLayer, into_response, system_clock};
use tower::{Layer, ServiceBuilder, ServiceExt};

/// A client of the next service. In a real system this is an HTTP or gRPC client.
type Next = Option<OutgoingDeadlineService<Router>>;

/// The last service of the chain has no next one.
async fn handle(State((name, next)): State<(&'static str, Next)>) -> Response {
    // Any code of the task finds the deadline.
    let remaining = Deadline::current().map(|deadline| deadline.remaining(system_clock().now()));
    println!("  {name} starts; remaining time: {remaining:.0?}");
    tokio::time::sleep(Duration::from_millis(100)).await;
    match next {
        None => Response::new("done\n".into()),
        Some(next) => match next.oneshot(Request::new(Body::empty())).await {
            Ok(response) => response,
            Err(error) => into_response(error, BodyStyle::Flat),
        },
    }
}

fn service(name: &'static str, next: Option<Router>) -> Router {
    let next = next.map(|next| OutgoingDeadlineLayer::new().layer(next));
    let layers = ServiceBuilder::new()
        .layer(HttpErrorLayer::default())
        .layer(DeadlineLayer::new().at_most(Duration::from_secs(30)));
    Router::new().route("/", get(handle)).with_state((name, next)).layer(layers)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let front = service("front", Some(service("middle", Some(service("back", None)))));
    for millis in ["1000", "150"] {
        println!("the client waits for {millis} ms");
        let request = Request::get("/").header("x-request-deadline-ms", millis).body(Body::empty())?;
        let response = front.clone().oneshot(request).await?;
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1_000).await?;
        println!("  {status}: {}", String::from_utf8_lossy(&body).trim_end());
    }
    Ok(())
}
