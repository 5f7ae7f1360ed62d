use std::collections::BTreeMap;
use std::future::ready;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response, StatusCode, Uri, Version};
use tidegate_limiter::Limiter;
use tidegate_policy::{ActivePolicy, Files, NoFiles, compile};
use tidegate_store::MemoryStore;
use tidegate_tower::bulkhead::BulkheadFull;
use tidegate_tower::policy::PolicyLayer;
use tidegate_tower::{BoxError, LayerError};
use tower::layer::layer_fn;
use tower::{Service, ServiceBuilder, ServiceExt};

use crate::support::{Body, TokioClock, get};

/// A body that knows whether it has ended.
type RequestBody = axum::body::Body;

const POLICY: &[u8] = b"
clients: { identify_by: [api_key, ip], api_key: { header: X-API-Key, verify: none }, user: { header: X-User-Id } }
bans: { networks: [203.0.113.0/24] }
rate_limits:
  default: { requests: 3, window: 60, algorithm: fixed_window }
  rules:
    - { name: uploads, match: { path: /upload }, per: [ip], requests: 10, window: 60, cost: { body: 1KiB } }
    - { name: logins, match: { path: /login }, per: [ip], requests: 1, window: 60, charge: { after: { status: [401] } } }
";

/// Responds with the path as its body, with 401 to `/login`. For `/dependency` it returns the rejection of a dependency.
async fn inner(request: Request<RequestBody>) -> Result<Response<Body>, BoxError> {
    assert!(!request.headers().contains_key("x-user-id"), "only a trusted proxy may send it");
    if request.uri().path() == "/dependency" {
        return Err(BulkheadFull { concurrent: 1 }.into());
    }
    let mut response = Response::new(request.uri().to_string().into_bytes());
    if request.uri().path() == "/login" {
        *response.status_mut() = StatusCode::UNAUTHORIZED;
    }
    Ok(response)
}

fn service() -> impl Service<Request<RequestBody>, Response = Response<Body>, Error = LayerError> + Clone {
    service_of(POLICY, &NoFiles)
}

fn service_of(
    policy: &[u8],
    files: &dyn Files,
) -> impl Service<Request<RequestBody>, Response = Response<Body>, Error = LayerError> + Clone + use<> {
    let active = ActivePolicy::new(compile("policy.yaml", policy, files).unwrap().plan);
    let store = Arc::new(MemoryStore::with_cap(1 << 20));
    let limiter = Arc::new(Limiter::new(active, store, TokioClock::shared()).unwrap());
    let peer = |request: &Request<RequestBody>| request.extensions().get::<IpAddr>().copied();
    let policy = PolicyLayer::new(limiter, peer).around(layer_fn(|inner| RejectFull { inner }));
    ServiceBuilder::new().layer(policy).service_fn(inner)
}

/// A layer that rejects `/full`.
#[derive(Clone)]
struct RejectFull<S> {
    inner: S,
}

impl<S> Service<Request<RequestBody>> for RejectFull<S>
where
    S: Service<Request<RequestBody>, Response = Response<Body>, Error = BoxError, Future: 'static>,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        if request.uri().path() == "/full" {
            Box::pin(ready(Err(BulkheadFull { concurrent: 1 }.into())))
        } else {
            Box::pin(self.inner.call(request))
        }
    }
}

fn request(path: &'static str, peer: [u8; 4]) -> Request<RequestBody> {
    let mut request = get().map(RequestBody::from);
    *request.uri_mut() = Uri::from_static(path);
    request.headers_mut().insert("host", HeaderValue::from_static("api.test"));
    request.headers_mut().insert("x-user-id", HeaderValue::from_static("root"));
    request.extensions_mut().insert(IpAddr::from(peer));
    request
}

const CLIENT: [u8; 4] = [192, 0, 2, 1];

#[tokio::test(start_paused = true)]
async fn policy_limits_clients_and_announces_its_limits() {
    let service = service();
    for left in ["2", "1", "0"] {
        let response = service.clone().oneshot(request("/items", CLIENT)).await.unwrap();
        assert_eq!(response.headers()["x-ratelimit-remaining"], left);
    }
    let response = service.clone().oneshot(request("/items", CLIENT)).await.unwrap();
    assert_eq!(response.status(), 429);
    assert!(response.headers().contains_key("retry-after"));
    let body = String::from_utf8(response.into_body()).unwrap();
    assert!(body.contains(r#""error":"rate_limit_exceeded""#), "{body}");
    let other = service.oneshot(request("/items", [192, 0, 2, 2])).await.unwrap();
    assert_eq!(other.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn policy_rejects_banned_networks_and_ambiguous_requests() {
    let service = service();
    assert_eq!(service.clone().oneshot(request("/", [203, 0, 113, 9])).await.unwrap().status(), 403);
    let mut two_keys = request("/", CLIENT);
    two_keys.headers_mut().append("x-api-key", HeaderValue::from_static("a"));
    two_keys.headers_mut().append("x-api-key", HeaderValue::from_static("b"));
    assert_eq!(service.clone().oneshot(two_keys).await.unwrap().status(), 400);
    let encoded = service.oneshot(request("/a%2Fb", CLIENT)).await.unwrap();
    assert_eq!(encoded.status(), 400);
}

#[tokio::test(start_paused = true)]
async fn policy_service_sees_the_path_that_was_matched() {
    let response = service().oneshot(request("/api//v1/../%6Cogs?q=%2F", CLIENT)).await.unwrap();
    assert_eq!(String::from_utf8(response.into_body()).unwrap(), "/api/logs?q=%2F");
}

#[tokio::test(start_paused = true)]
async fn policy_request_that_an_inner_layer_rejects_is_refunded() {
    let service = service();
    for _ in 0..10 {
        service.clone().oneshot(request("/full", CLIENT)).await.unwrap_err();
        // The refund runs in a task of its own.
        tokio::task::yield_now().await;
    }
    assert_eq!(
        service.oneshot(request("/items", CLIENT)).await.unwrap().headers()["x-ratelimit-remaining"],
        "2"
    );
}

#[tokio::test(start_paused = true)]
async fn policy_request_with_an_open_charge_that_an_inner_layer_rejects_is_refunded_once() {
    let policy = b"
clients: { user: { header: X-User-Id } }
rate_limits:
  rules:
    - { name: items, per: [ip], requests: 5, window: 60, algorithm: fixed_window, charge: { after: { status: [200] } } }
";
    let service = service_of(policy, &NoFiles);
    let remaining = async || {
        let response = service.clone().oneshot(request("/items", CLIENT)).await.unwrap();
        response.headers()["x-ratelimit-remaining"].clone()
    };
    assert_eq!(remaining().await, "4");
    assert_eq!(remaining().await, "3");
    service.clone().oneshot(request("/full", CLIENT)).await.unwrap_err();
    tokio::task::yield_now().await;
    assert_eq!(remaining().await, "2", "what the other requests were charged stays");
}

#[tokio::test(start_paused = true)]
async fn policy_handler_that_returns_the_rejection_of_its_dependency_is_charged() {
    let service = service();
    for _ in 0..3 {
        service.clone().oneshot(request("/dependency", CLIENT)).await.unwrap_err();
        tokio::task::yield_now().await;
    }
    assert_eq!(service.oneshot(request("/dependency", CLIENT)).await.unwrap().status(), 429);
}

#[tokio::test(start_paused = true)]
async fn policy_charge_that_the_response_settles_counts_failed_logins_only() {
    let service = service();
    let login = || service.clone().oneshot(request("/login", CLIENT));
    assert_eq!(login().await.unwrap().status(), 401);
    assert_eq!(login().await.unwrap().status(), 429);
}

#[tokio::test(start_paused = true)]
async fn policy_cost_of_a_body_needs_its_length() {
    let service = service();
    let upload = |length: Option<&'static str>, body: RequestBody| {
        let mut upload = request("/upload", CLIENT).map(|_| body);
        if let Some(length) = length {
            upload.headers_mut().insert("content-length", HeaderValue::from_static(length));
        }
        service.clone().oneshot(upload)
    };
    // A GET too may have a body.
    assert_eq!(upload(None, "x".into()).await.unwrap().status(), 411);
    // The refund runs in a task of its own.
    tokio::task::yield_now().await;
    assert_eq!(upload(Some("10240"), "x".into()).await.unwrap().status(), 200);
    assert_eq!(upload(Some("1024"), "x".into()).await.unwrap().status(), 429);
}

#[tokio::test(start_paused = true)]
async fn policy_counts_every_spelling_of_a_token_and_rejects_invalid_ones() {
    const TOKEN: &str =
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4ifQ.e6DKsshciTsQeTEBx-EQsgYCQrefw7DpTVxue2PLJ8c";
    let files: BTreeMap<_, _> =
        [("jwt.secret".to_owned(), b"a secret of more than sixteen bytes".to_vec())].into_iter().collect();
    let service = |on_invalid: &str| {
        let policy = format!(
            "clients: {{ identify_by: [user, ip], user: {{ jwt: {{ secret_file: jwt.secret }} }}, on_invalid: {on_invalid} }}\n\
             rate_limits: {{ default: {{ requests: 3, window: 60, algorithm: fixed_window }} }}"
        );
        service_of(policy.as_bytes(), &files)
    };
    let request = |value: &str, peer| {
        let mut request = request("/", peer);
        request.headers_mut().remove("x-user-id");
        request.headers_mut().insert("authorization", value.replace("TOKEN", TOKEN).parse().unwrap());
        request
    };
    let counting = service("forward");
    for (left, value) in [("2", "Bearer TOKEN"), ("1", "X TOKEN"), ("0", "X y, Bearer TOKENx")] {
        let response =
            counting.clone().oneshot(request(value, [192, 0, 2, left.as_bytes()[0]])).await.unwrap();
        assert_eq!(response.headers()["x-ratelimit-remaining"], left, "{value}");
    }
    let rejecting = service("reject");
    for _ in 0..3 {
        let rejected = rejecting.clone().oneshot(request("Bearer TOKEN", CLIENT)).await.unwrap();
        assert_eq!(rejected.status(), 401);
        assert_eq!(rejected.headers()["www-authenticate"], "Bearer error=\"invalid_token\"");
    }
    let guess = rejecting.oneshot(request("Bearer TOKEN", CLIENT)).await.unwrap();
    assert_eq!(guess.status(), 429, "guesses are counted");
}

#[tokio::test(start_paused = true)]
async fn policy_service_sees_the_host_that_was_matched() {
    let policy = b"rate_limits: { default: { requests: 100, window: 60 } }";
    let active = ActivePolicy::new(compile("policy.yaml", policy, &NoFiles).unwrap().plan);
    let store = Arc::new(MemoryStore::with_cap(1 << 20));
    let limiter = Arc::new(Limiter::new(active, store, TokioClock::shared()).unwrap());
    let layer = PolicyLayer::new(limiter, |_: &Request<RequestBody>| None);
    let service = ServiceBuilder::new().layer(layer).service_fn(async |request: Request<RequestBody>| {
        let hosts = request.headers().get_all("host").iter().map(HeaderValue::as_bytes);
        Ok::<_, BoxError>(Response::new(hosts.collect::<Vec<_>>().join(&b' ')))
    });
    let hosts_over = async |version, uri: &'static str, hosts: &[&'static str]| {
        let mut request = Request::new(RequestBody::empty());
        *request.version_mut() = version;
        *request.uri_mut() = Uri::from_static(uri);
        for host in hosts {
            request.headers_mut().append("host", HeaderValue::from_static(host));
        }
        let response = service.clone().oneshot(request).await.unwrap();
        (response.status().as_u16(), String::from_utf8(response.into_body()).unwrap())
    };
    let hosts = async |uri, sent| hosts_over(Version::HTTP_11, uri, sent).await;
    let matched = (200, "b.test:80".to_owned());
    assert_eq!(hosts("http://b.test:80/items", &["a.test"]).await, matched);
    assert_eq!(hosts_over(Version::HTTP_2, "http://b.test:80/items", &[]).await, matched);
    assert_eq!(hosts_over(Version::HTTP_10, "/items", &[]).await, (200, String::new()));
    assert_eq!(hosts("/items", &["b.test:80"]).await, matched);
    for (uri, sent) in [
        ("http://b.test/items", &["a.test", "b.test"][..]),
        ("http://b.test/items", &["a test"][..]),
        ("http://a@b.test/items", &["b.test"][..]),
        ("http://b.test/items", &[][..]),
        ("/items", &[][..]),
    ] {
        assert_eq!(hosts(uri, sent).await.0, 400, "{uri} {sent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn policy_marks_delays_waits_and_rejects_what_needs_another_upstream() {
    let policy = b"
upstreams: { cheap: { servers: ['http://127.0.0.1:1'] } }
rate_limits:
  rules:
    - { name: marked, match: { path: /marked }, per: [ip], requests: 1, window: 1h, algorithm: token_bucket, on_exceed: degrade }
    - { name: cheaper, match: { path: /cheaper }, per: [ip], requests: 1, window: 1h, algorithm: token_bucket, on_exceed: { degrade: { upstream: cheap } } }
    - { name: stored, match: { path: /stored }, per: [ip], requests: 1, window: 1h, algorithm: token_bucket, on_exceed: { cached: { for: 60s } } }
    - { name: soft, match: { path: /soft }, per: [ip], requests: 1, window: 1h, algorithm: token_bucket, on_exceed: { slow: { from: 0%, max: 10s } } }
    - { name: queued, match: { path: /queued }, per: [ip], requests: 1, window: 10s, algorithm: token_bucket, on_exceed: { wait: 15s } }
    - { name: vain, match: { path: /vain }, per: [ip], requests: 1, window: 1h, algorithm: token_bucket, on_exceed: { wait: 15s } }
    - { name: lent, match: { path: /lent }, per: [ip], requests: 1, window: 1h, algorithm: token_bucket, on_exceed: { borrow: { units: 1 } } }
";
    let active = ActivePolicy::new(compile("policy.yaml", policy, &NoFiles).unwrap().plan);
    let (clock, store) = (TokioClock::shared(), Arc::new(MemoryStore::with_cap(1 << 20)));
    let limiter = Limiter::new(active, store, Arc::clone(&clock)).unwrap();
    let peer = |request: &Request<RequestBody>| request.extensions().get::<IpAddr>().copied();
    let mark = |request: Request<RequestBody>| async move {
        let mark = request.headers().get("x-tidegate-degrade").map(|value| value.as_bytes().to_vec());
        Ok::<_, BoxError>(Response::new(mark.unwrap_or_default()))
    };
    let service = ServiceBuilder::new().layer(PolicyLayer::new(Arc::new(limiter), peer)).service_fn(mark);
    let mut has_queued = false;
    for (path, expected) in [
        ("/marked", (200, "")),
        ("/marked", (200, "1")),
        ("/cheaper", (200, "")),
        ("/cheaper", (429, "")),
        ("/soft", (200, "")),
        ("/soft", (429, "")),
        ("/stored", (200, "")),
        ("/stored", (429, "")),
        ("/queued", (200, "")),
        ("/queued", (200, "")),
        ("/vain", (200, "")),
        ("/vain", (429, "")),
        ("/lent", (200, "")),
        ("/lent", (200, "")),
        ("/lent", (429, "")),
    ] {
        let start = clock.now();
        let mut call = request(path, CLIENT);
        call.headers_mut().insert("x-tidegate-degrade", HeaderValue::from_static("0"));
        let response = service.clone().oneshot(call).await.unwrap();
        let is_delayed = path == "/soft" && expected.0 == 200 || path == "/queued" && has_queued;
        has_queued |= path == "/queued";
        assert_eq!(clock.now().since(start).as_secs_ceil(), if is_delayed { 10 } else { 0 }, "{path}");
        assert_eq!(response.status().as_u16(), expected.0, "{path}");
        if expected.0 == 200 {
            assert_eq!(response.into_body(), expected.1.as_bytes(), "{path}");
        }
    }
}
