//! All layers in one axum service in front of a database that hangs for a while. Requests that do not need the database are
//! served all the time; the others fail fast, and work again when the database does.
//!
//! `cargo run -p tidegate-tower --example full_stack`

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::{Request, StatusCode};
use tidegate_tower::breaker::{BreakerConfig, BreakerLayer, CircuitBreaker};
use tidegate_tower::bulkhead::{Bulkhead, BulkheadConfig, BulkheadLayer};
use tidegate_tower::deadline::{DeadlineLayer, OutgoingDeadlineLayer};
use tidegate_tower::fallback::FallbackLayer;
use tidegate_tower::load_shed::{AdaptiveConfig, LoadShedLayer, LoadShedder};
use tidegate_tower::rate_limit::{MemoryStore, OneCounter, RateLimitLayer, RateLimitRule, RateLimiter};
use tidegate_tower::retry::{Backoff, Jitter, RetryConfig, RetryLayer, SharedRetryBudget};
use tidegate_tower::timeout::TimeoutLayer;
use tidegate_tower::{
    BodyStyle, BoxError, HttpErrorLayer, LayerError, Ratio, TimeSpan, into_response, is_rejection,
    system_clock,
};
use tokio::time::sleep;
use tower::util::BoxCloneSyncService;
use tower::{ServiceBuilder, ServiceExt, service_fn};

static HANGS: AtomicBool = AtomicBool::new(false);

/// The database, as an HTTP service.
async fn database(_: Request<String>) -> Result<http::Response<String>, Infallible> {
    let takes = if HANGS.load(Ordering::Relaxed) { 60_000 } else { 2 };
    sleep(Duration::from_millis(takes)).await;
    Ok(http::Response::new("rows\n".to_owned()))
}

/// The client of the database with what protects its callers, in request order.
type Client = BoxCloneSyncService<Request<String>, http::Response<String>, LayerError>;

fn client() -> Result<Client, BoxError> {
    let open_for = TimeSpan::from_millis(300);
    let config = BreakerConfig {
        open_for,
        max_open_for: open_for,
        open_jitter: Ratio::ZERO,
        ..BreakerConfig::default()
    };
    let backoff = Backoff::new(TimeSpan::from_millis(5), TimeSpan::from_millis(20), Jitter::Decorrelated)?;
    let retry = RetryConfig { attempts: 2, backoff, ..RetryConfig::default() };
    let cached = |error: LayerError| {
        if is_rejection(&error) { Ok(http::Response::new("cached rows\n".to_owned())) } else { Err(error) }
    };
    Ok(BoxCloneSyncService::new(
        ServiceBuilder::new()
            // Outermost: sees every rejection of the layers below.
            .layer(FallbackLayer::new(cached))
            // At most 20 calls at a time; a few more wait.
            .layer(BulkheadLayer::new(Bulkhead::new(
                BulkheadConfig::new(20).queue(5, Duration::from_millis(50)),
            )))
            // Outside of the breaker: it sees each attempt.
            .layer(RetryLayer::new(retry, SharedRetryBudget::default()))
            .layer(BreakerLayer::new(CircuitBreaker::new(config)?))
            // Inside of the breaker: a timeout is a failure of the database.
            .layer(TimeoutLayer::new(Duration::from_millis(20)))
            // Innermost: writes the time that remains when the call is made.
            .layer(OutgoingDeadlineLayer::new())
            .service(service_fn(database)),
    ))
}

async fn rows(State(client): State<Client>) -> Response {
    match client.oneshot(Request::new(String::new())).await {
        Ok(response) => response.map(Body::from),
        Err(error) => into_response(error, BodyStyle::Flat),
    }
}

fn app() -> Result<Router, BoxError> {
    let rules = vec![RateLimitRule::per_window("default", 10_000, TimeSpan::from_secs(1))?];
    let store = Arc::new(MemoryStore::with_cap(MemoryStore::cap_for(1_000)));
    let layers = ServiceBuilder::new()
        .layer(HttpErrorLayer::default())
        .layer(DeadlineLayer::new().at_most(Duration::from_secs(1)))
        // What load shedding rejects is refunded.
        .layer(
            RateLimitLayer::new(RateLimiter::new(rules, store)?, OneCounter)
                .around(LoadShedLayer::new(LoadShedder::new(AdaptiveConfig::default())?)),
        );
    let app = Router::new().route("/rows", get(rows)).route("/ping", get(|| async { "pong\n" }));
    Ok(app.with_state(client()?).layer(layers))
}

/// Sends requests for both paths for a while and prints how they went.
async fn load(app: &Router, title: &str) -> Result<(), BoxError> {
    println!("{title}");
    for path in ["/rows", "/ping"] {
        let (mut ok, mut failed, mut slowest) = (0, 0, TimeSpan::ZERO);
        let (clock, start) = (system_clock(), system_clock().now());
        while clock.now().since(start) < TimeSpan::from_millis(400) {
            let sent = clock.now();
            let response = app.clone().oneshot(Request::get(path).body(Body::empty())?).await?;
            slowest = slowest.max(clock.now().since(sent));
            *if response.status() == StatusCode::OK { &mut ok } else { &mut failed } += 1;
            sleep(Duration::from_millis(5)).await;
        }
        println!("  {path}: {ok} ok, {failed} failed, slowest {slowest:.1?}");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let app = app()?;
    load(&app, "the database works").await?;
    HANGS.store(true, Ordering::Relaxed);
    load(&app, "the database hangs: a few timeouts open the breaker, then the cache responds").await?;
    HANGS.store(false, Ordering::Relaxed);
    sleep(Duration::from_millis(300)).await;
    load(&app, "the database works again: a probe closes the breaker").await
}
