//! Blocking work in its own threads: password hashes in an axum service, with a bounded queue.
//!
//! `cargo run -p tidegate-tower --example thread_pool`

use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use http::Request;
use tidegate_tower::thread_pool::ThreadPool;
use tidegate_tower::{BodyStyle, BoxError, into_response};
use tokio::task::JoinSet;
use tower::ServiceExt;

/// Takes as long as a good password hash.
fn hash_password() -> String {
    thread::sleep(Duration::from_millis(100));
    format!("hashed by {}", thread::current().name().unwrap_or("?"))
}

async fn login(State(hashing): State<ThreadPool>) -> Response {
    match hashing.run(hash_password).await {
        Ok(hash) => Response::new(hash.into()),
        // A full queue is 503, a panic is 500.
        Err(error) => into_response(error, BodyStyle::Flat),
    }
}

async fn send(app: Router) -> Result<String, BoxError> {
    let response = app.oneshot(Request::post("/login").body(Body::empty())?).await?;
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 1_000).await?;
    Ok(format!("{status}: {}", String::from_utf8_lossy(&body).trim_end()))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // Two threads called hashing-0 and hashing-1, and a queue of two.
    let hashing = ThreadPool::new("hashing", 2, 2)?;
    let app = Router::new().route("/login", post(login)).with_state(hashing);
    let mut logins = JoinSet::new();
    for _ in 0..6 {
        logins.spawn(send(app.clone()));
    }
    while let Some(response) = logins.join_next().await {
        println!("{}", response??);
    }
    Ok(())
}
