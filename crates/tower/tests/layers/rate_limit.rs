use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::HeaderName;
use http::{HeaderValue, Request, Response};
use tidegate_core::{Algorithm, Check, CounterKey, Decision, Refund, Spec, TimeSpan, Timestamp};
use tidegate_headers::{BodyStyle, HeaderStyle};
use tidegate_store::{MemoryStore, Override, Store, StoreError};
use tidegate_tower::rate_limit::{
    ByHeader, OnStoreFailure, OneCounter, RateLimitLayer, RateLimitRule, RateLimited, RateLimiter,
    RateLimiterError, RejectWithError, RespondHttp,
};
use tidegate_tower::{BoxError, into_response};
use tokio::time::sleep;
use tower::limit::ConcurrencyLimitLayer;
use tower::{ServiceBuilder, ServiceExt};

use crate::support::{Body, TokioClock, get, respond};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

fn limiter<S: Store>(rules: Vec<RateLimitRule>, store: S) -> RateLimiter<S> {
    RateLimiter::with_clock(rules, Arc::new(store), TokioClock::shared(), OnStoreFailure::Deny).unwrap()
}

fn memory() -> MemoryStore {
    MemoryStore::with_cap(1 << 20)
}

fn per_minute(name: &str, requests: u64) -> RateLimitRule {
    RateLimitRule::new(name, Algorithm::FixedWindow, Spec::new(requests, TimeSpan::from_secs(60))).unwrap()
}

fn from(client: &'static str) -> Request<Body> {
    let mut request = get();
    request.headers_mut().insert(API_KEY, HeaderValue::from_static(client));
    request
}

async fn ok(_: Request<Body>) -> Result<Response<Body>, BoxError> {
    Ok(respond(200))
}

#[tokio::test(start_paused = true)]
async fn rate_limit_responses_have_headers_and_rejections_are_429() {
    let limiter = limiter(vec![per_minute("default", 2)], memory());
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(limiter, ByHeader::new(API_KEY).unwrap()))
        .service_fn(ok);
    for left in ["1", "0"] {
        let response = service.clone().oneshot(from("alice")).await.unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["x-ratelimit-remaining"]),
            (200, &HeaderValue::from_static(left))
        );
        assert_eq!(response.headers()["ratelimit-policy"], r#""default";q=2;w=60"#);
    }
    let response = service.clone().oneshot(from("alice")).await.unwrap();
    assert_eq!(response.status(), 429);
    // The clock starts 20 s into a minute.
    let seconds: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((40..=44).contains(&seconds), "{seconds}");
    assert_eq!(response.headers()["content-type"], "application/json");
    let body = String::from_utf8(response.into_body()).unwrap();
    assert!(body.starts_with(r#"{"error":"rate_limit_exceeded","message":"Too many requests."#), "{body}");
    assert!(body.contains(r#""rule":"default""#), "{body}");
    assert_eq!(service.oneshot(from("bob")).await.unwrap().status(), 200, "another client");
}

#[tokio::test(start_paused = true)]
async fn rate_limit_of_several_limits_charges_all_or_none() {
    let rules = vec![
        per_minute("minute", 3),
        RateLimitRule::per_window("day", 2, TimeSpan::from_secs(86_400)).unwrap(),
    ];
    let respond = RespondHttp::new([HeaderStyle::RateLimit], BodyStyle::Problem);
    let layer = RateLimitLayer::new(limiter(rules, memory()), OneCounter).respond(respond);
    let service = ServiceBuilder::new().layer(layer).service_fn(ok);
    service.clone().oneshot(get()).await.unwrap();
    let second = service.clone().oneshot(get()).await.unwrap();
    assert!(
        second.headers()["ratelimit"].to_str().unwrap().starts_with(r#""minute";r=1;t=40, "day";r=0;t="#)
    );
    let third = service.clone().oneshot(get()).await.unwrap();
    assert_eq!(third.status(), 429);
    let header = third.headers()["ratelimit"].to_str().unwrap().to_owned();
    assert!(header.starts_with(r#""minute";r=1"#), "not charged: {header}");
    let body = String::from_utf8(third.into_body()).unwrap();
    assert!(body.contains(r#""violated-policies":["day"]"#), "{body}");
}

#[tokio::test(start_paused = true)]
async fn rate_limit_of_any_service_rejects_with_an_error() {
    let layer = RateLimitLayer::new(limiter(vec![per_minute("jobs", 1)], memory()), OneCounter)
        .respond(RejectWithError);
    let service = ServiceBuilder::new().layer(layer).service_fn(|n: u32| async move { Ok::<_, BoxError>(n) });
    assert_eq!(service.clone().oneshot(1).await.unwrap(), 1);
    let error = service.oneshot(2).await.unwrap_err();
    let limited = error.downcast_ref::<RateLimited>().unwrap();
    assert_eq!((&*limited.rule, limited.limit().quota), ("jobs", 1));
    assert_eq!(limited.retry_after, Some(TimeSpan::from_secs(40)));
    let response: Response<Body> = into_response(error, BodyStyle::Flat);
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["ratelimit"], r#""jobs";r=0;t=40"#);
    assert!(response.headers().contains_key("retry-after"));
}

#[tokio::test(start_paused = true)]
async fn rate_limit_leaky_bucket_delays_and_a_cancelled_delay_is_refunded() {
    let spec = Spec { burst: Some(2), ..Spec::new(1, TimeSpan::from_secs(1)) };
    let rule = RateLimitRule::new("leaky", Algorithm::LeakyBucket, spec).unwrap();
    let clock = TokioClock::shared();
    let store = Arc::new(memory());
    let limiter =
        RateLimiter::with_clock(vec![rule], store, Arc::clone(&clock), OnStoreFailure::Deny).unwrap();
    let service = ServiceBuilder::new().layer(RateLimitLayer::new(limiter, OneCounter)).service_fn(ok);
    assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), 200);
    let delayed = tokio::spawn(service.clone().oneshot(get()));
    sleep(Duration::from_millis(100)).await;
    assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), 429, "the bucket is full");
    delayed.abort();
    assert!(delayed.await.unwrap_err().is_cancelled());
    assert_eq!(service.oneshot(get()).await.unwrap().status(), 200);
    let elapsed = clock.now().since(TokioClock::START);
    assert!(elapsed >= TimeSpan::from_secs(1) && elapsed < TimeSpan::from_millis(1_010), "{elapsed:?}");
}

/// A store that takes a while, and that may fail.
pub(crate) struct SlowStore {
    inner: MemoryStore,
    pub(crate) fails: AtomicBool,
}

impl SlowStore {
    pub(crate) fn new(fails: bool) -> Self {
        Self { inner: memory(), fails: fails.into() }
    }
}

impl Store for SlowStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        tokio::task::yield_now().await;
        if self.fails.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("unreachable".into()));
        }
        self.inner.decide(checks, now).await
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        self.inner.decide_batch(batch, now, decisions).await
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.inner.peek(checks, now).await
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        self.inner.refund(refunds, now).await
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        self.inner.reset(key).await
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.inner.override_limit(key, replacement, now).await
    }
}

#[tokio::test(start_paused = true)]
async fn rate_limit_with_a_slow_store_decides_as_with_an_immediate_one() {
    let store = SlowStore::new(false);
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(
            limiter(vec![per_minute("default", 2)], store),
            ByHeader::new(API_KEY).unwrap(),
        ))
        .service_fn(ok);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(service.clone().oneshot(from("alice")).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test(start_paused = true)]
async fn rate_limit_store_that_fails_denies_or_allows_as_configured() {
    for (mode, is_admitted) in [(OnStoreFailure::Deny, false), (OnStoreFailure::Allow, true)] {
        let store = Arc::new(SlowStore::new(true));
        let rules = vec![per_minute("default", 1)];
        let limiter = RateLimiter::with_clock(rules, store, TokioClock::shared(), mode).unwrap();
        let service = ServiceBuilder::new().layer(RateLimitLayer::new(limiter, OneCounter)).service_fn(ok);
        let result = service.oneshot(get()).await;
        assert_eq!(result.is_ok(), is_admitted, "{mode:?}");
        if let Err(error) = result {
            assert!(error.downcast_ref::<StoreError>().is_some());
        }
    }
}

/// `ConcurrencyLimit` panics when it is called without being ready.
#[tokio::test(start_paused = true)]
async fn rate_limit_call_that_waited_uses_the_service_that_was_ready() {
    let spec = Spec { burst: Some(3), ..Spec::new(1, TimeSpan::from_secs(1)) };
    let rule = RateLimitRule::new("leaky", Algorithm::LeakyBucket, spec).unwrap();
    let store = SlowStore::new(false);
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(limiter(vec![rule], store), OneCounter))
        .layer(ConcurrencyLimitLayer::new(3))
        .service_fn(ok);
    let calls: Vec<_> = (0..3).map(|_| tokio::spawn(service.clone().oneshot(get()))).collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn rate_limit_of_a_service_that_cannot_fail_rejects_with_an_error() {
    let limiter = limiter(vec![per_minute("default", 2)], memory());
    let layer = RateLimitLayer::new(limiter, ByHeader::new(API_KEY).unwrap()).respond(RejectWithError);
    let service = ServiceBuilder::new()
        .layer(layer)
        .service_fn(async |_: Request<Body>| Ok::<_, std::convert::Infallible>(respond(200)));
    for _ in 0..2 {
        assert_eq!(service.clone().oneshot(from("alice")).await.unwrap().status(), 200);
    }
    let error = service.clone().oneshot(from("alice")).await.unwrap_err();
    assert_eq!(&*error.downcast_ref::<RateLimited>().unwrap().rule, "default");
    assert!(service.oneshot(from("bob")).await.is_ok());
}

#[test]
fn rate_limiter_with_two_limits_of_one_name_is_an_error() {
    let rule = |name, algorithm| {
        RateLimitRule::new(name, algorithm, Spec::new(10, TimeSpan::from_secs(60))).unwrap()
    };
    let store = Arc::new(MemoryStore::with_cap(1 << 20));
    let second = rule("a", Algorithm::FixedWindow);
    let rules = vec![rule("a", Algorithm::TokenBucket), rule("b", Algorithm::TokenBucket), second];
    let error = RateLimiter::new(rules, store).unwrap_err();
    assert!(matches!(&error, RateLimiterError::DuplicateName { name } if &**name == "a"), "{error}");
}
