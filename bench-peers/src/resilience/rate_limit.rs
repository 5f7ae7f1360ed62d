//! The rate limit as a layer: a limit for each API key, far above what is sent.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt::Write;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{self, Poll};

use anyhow::Context;
use axum::body::Body;
use http::{HeaderName, HeaderValue, Request, Response};
use tidegate_core::{Algorithm, Spec, TimeSpan};
use tidegate_headers::{BodyStyle, HeaderStyle};
use tidegate_store::MemoryStore;
use tidegate_tower::rate_limit::{
    ByHeader, RateLimitLayer, RateLimitRule, RateLimiter, RejectWithError, RespondHttp,
};
use tower::{Layer, Service};
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::KeyExtractor;
use tower_governor::{GovernorError, GovernorLayer};

use super::race::{Contender, Course};
use super::report::{Report, Work, full_name};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Requests per second and key.
const RATE: u32 = 1_000_000;

type KeyedRequest = Request<()>;

/// Whether responses get headers with the limit and what remains of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitHeaders {
    Off,
    On,
}

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    for (name, keys, headers) in [
        ("rate limit, 1 k keys", 1_000, LimitHeaders::Off),
        ("rate limit, 1 k keys, headers", 1_000, LimitHeaders::On),
        ("rate limit, 1 M keys", 1_000_000, LimitHeaders::Off),
        ("rate limit, 1 M keys, headers", 1_000_000, LimitHeaders::On),
    ] {
        if !report.includes(&full_name(name, 1)) {
            continue;
        }
        let contenders = contenders(keys, headers)?;
        for contender in &contenders {
            for first in (0..keys).step_by(10_000) {
                let requests = (first..keys.min(first + 10_000)).map(request).collect();
                contender.call_all(requests)?;
                SERVED.with_borrow_mut(Vec::clear);
            }
        }
        let requests = |thread: usize, chunk: usize, count: usize| {
            SERVED.with_borrow_mut(Vec::clear);
            let mut random = fastrand::Rng::with_seed((thread * 1_000_000 + chunk) as u64);
            (0..count).map(|_| request(random.usize(..keys))).collect()
        };
        let course = Course { threads: 1, succeeds: true, requests: &requests };
        // With headers the work differs: ours has one more.
        let bar = (headers == LimitHeaders::Off).then_some(0.5);
        report.measure_layers(Work { name, bar }, &course, &contenders)?;
    }
    Ok(())
}

/// A request with a key of 21 bytes.
fn request(number: usize) -> KeyedRequest {
    let mut key = String::with_capacity(21);
    // Writing to a string does not fail.
    let _ = write!(key, "customer:{number:012}");
    let mut request = Request::new(());
    if let Ok(value) = HeaderValue::try_from(key) {
        request.headers_mut().insert(API_KEY, value);
    }
    request
}

/// Responds at once. Requests are kept until the next chunk is made, so that dropping them is not timed: it takes longer than
/// the layers.
///
/// A type of its own that is inlined into each contender: all of them are fastest this way, `tower_governor` too. A function
/// pointer would add to the layers how well the compiler forwards arguments to a function it does not know.
#[derive(Clone, Copy, Debug)]
struct OkService;

impl Service<KeyedRequest> for OkService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    #[inline]
    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    #[expect(clippy::inline_always, reason = "otherwise it is inlined into some contenders only")]
    #[inline(always)]
    fn call(&mut self, request: KeyedRequest) -> Self::Future {
        SERVED.with_borrow_mut(|served| served.push(request));
        ready(Ok(Response::new(Body::empty())))
    }
}

thread_local! {
    static SERVED: RefCell<Vec<KeyedRequest>> = const { RefCell::new(Vec::new()) };
}

/// Finds the API key of a request, as the documentation of `tower_governor` shows it.
#[derive(Clone, Copy, Debug)]
struct ApiKey;

impl KeyExtractor for ApiKey {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let value = request.headers().get(API_KEY).and_then(|value| value.to_str().ok());
        value.map(str::to_owned).ok_or(GovernorError::UnableToExtractKey)
    }
}

fn contenders(keys: usize, headers: LimitHeaders) -> anyhow::Result<[Contender<KeyedRequest>; 3]> {
    let mut builder = GovernorConfigBuilder::default().key_extractor(ApiKey);
    builder.per_nanosecond(1_000).burst_size(RATE);
    let spec = Spec::new(RATE.into(), TimeSpan::from_secs(1));
    let rule = RateLimitRule::new("default", Algorithm::TokenBucket, spec)?;
    let store = Arc::new(MemoryStore::with_cap(MemoryStore::cap_for(keys)));
    let ours = RateLimitLayer::new(RateLimiter::new(vec![rule], store)?, ByHeader::new(API_KEY)?);
    let invalid = "tower_governor rejects the configuration";
    Ok(match headers {
        LimitHeaders::Off => [
            Contender::new(
                "tower_governor",
                GovernorLayer::new(builder.finish().context(invalid)?).layer(OkService),
            ),
            Contender::new("no layer", OkService),
            Contender::new("tidegate", ours.respond(RejectWithError).layer(OkService)),
        ],
        LimitHeaders::On => [
            Contender::new(
                "tower_governor (limit, remaining)",
                GovernorLayer::new(builder.use_headers().finish().context(invalid)?).layer(OkService),
            ),
            Contender::new("no layer", OkService),
            Contender::new(
                "tidegate (limit, remaining, reset)",
                ours.respond(RespondHttp::new([HeaderStyle::XRateLimit], BodyStyle::Flat)).layer(OkService),
            ),
        ],
    })
}
