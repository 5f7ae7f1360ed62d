//! One request: identify, decide, and either the upstream's answer or a refusal.

use std::net::IpAddr;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use tidegate_core::{Check, Decision, Key};
use tidegate_store::{Clock, MemoryStore, Store, StoreError, SystemClock};

use super::demo::{self, Policy};
use super::refusal::Refusal;
use super::{client, headers};

/// Room for about 900,000 clients that are being counted; more share counters, and memory stays what it is.
const STORE_BYTES: usize = 32 << 20;

/// Everything an answer needs.
#[derive(Debug)]
pub(crate) struct Responder<C = SystemClock> {
    policy: Policy,
    clock: C,
    store: MemoryStore,
}

impl<C: Clock> Responder<C> {
    pub(crate) fn new(policy: Policy, clock: C) -> Self {
        Self { policy, clock, store: MemoryStore::with_cap(STORE_BYTES) }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) async fn respond<B>(&self, request: &Request<B>, peer: IpAddr) -> Response<Full<Bytes>> {
        let client = client::identify(request.headers(), peer);
        match self.decide(&client).await {
            Ok(decision) => self.answer(request, &client, &decision),
            Err(error) => {
                eprintln!("tidegate: {:#}", anyhow::Error::from(error));
                text(StatusCode::SERVICE_UNAVAILABLE, "No decision could be made. Please retry later.\n")
            }
        }
    }

    async fn decide(&self, client: &[u8]) -> Result<Decision, StoreError> {
        let check = Check::new(Key::new(self.policy.rule, client), &self.policy.limit);
        self.store.decide(&[check], self.clock.now()).await
    }

    fn answer<B>(&self, request: &Request<B>, client: &[u8], decision: &Decision) -> Response<Full<Bytes>> {
        let Some(outcome) = decision.outcomes.first() else {
            return demo::upstream(request);
        };
        let mut response = if decision.passes() {
            demo::upstream(request)
        } else {
            let refusal = Refusal::new(&self.policy, outcome, decision.at, client);
            refuse(&refusal)
        };
        headers::limit(response.headers_mut(), &self.policy, outcome, decision.at);
        response
    }
}

fn refuse(refusal: &Refusal) -> Response<Full<Bytes>> {
    let mut body = serde_json::to_vec(refusal).unwrap_or_default();
    body.push(b'\n');
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = refusal.retry_after {
        headers::retry_after(response.headers_mut(), seconds);
    }
    response
}

fn text(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(body.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::Value;
    use tidegate_core::{Span, Timestamp};
    use tidegate_store::ManualClock;

    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_705_334_340);

    fn responder() -> Responder<ManualClock> {
        Responder::new(demo::policy().unwrap(), ManualClock::at(START))
    }

    async fn get(responder: &Responder<ManualClock>, key: Option<&str>) -> Response<Full<Bytes>> {
        let mut request = Request::get("/hello");
        if let Some(key) = key {
            request = request.header("X-API-Key", key);
        }
        responder.respond(&request.body(()).unwrap(), "192.0.2.1".parse().unwrap()).await
    }

    fn header<'a>(response: &'a Response<Full<Bytes>>, name: &str) -> Option<&'a str> {
        response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    async fn body(response: Response<Full<Bytes>>) -> Bytes {
        response.into_body().collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn within_the_limit_the_upstream_answers_and_headers_count_down() {
        let responder = responder();
        let first = get(&responder, None).await;
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(header(&first, "X-RateLimit-Limit"), Some("10"));
        assert_eq!(header(&first, "X-RateLimit-Remaining"), Some("9"));
        assert_eq!(header(&first, "X-RateLimit-Reset"), Some("1705334346"));
        assert_eq!(header(&first, "RateLimit-Policy"), Some("\"demo\";q=10;w=60"));
        assert_eq!(header(&first, "RateLimit"), Some("\"demo\";r=9;t=6"));
        assert_eq!(header(&first, "Retry-After"), None);
        assert!(body(first).await.ends_with(b"You asked to GET /hello\n"));
        assert_eq!(header(&get(&responder, None).await, "X-RateLimit-Remaining"), Some("8"));
    }

    #[tokio::test]
    async fn over_the_limit_is_429_header_and_body_agree_and_retry_after_keeps_its_word() {
        let responder = responder();
        for _ in 0..10 {
            assert_eq!(get(&responder, None).await.status(), StatusCode::OK);
        }
        let refused = get(&responder, None).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(header(&refused, "Content-Type"), Some("application/json"));
        assert_eq!(header(&refused, "Retry-After"), Some("6"));
        assert_eq!(header(&refused, "X-RateLimit-Retry-After"), Some("6"));
        assert_eq!(header(&refused, "X-RateLimit-Reset"), Some("1705334400"));
        let body: Value = serde_json::from_slice(&body(refused).await).unwrap();
        assert_eq!((&body["retry_after"], &body["reset"]), (&6.into(), &1_705_334_400.into()));

        responder.clock.advance(Span::from_micros(5_999_999));
        assert_eq!(get(&responder, None).await.status(), StatusCode::TOO_MANY_REQUESTS);
        responder.clock.advance(Span::from_micros(1));
        assert_eq!(get(&responder, None).await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn each_api_key_has_a_limit_of_its_own() {
        let responder = responder();
        for _ in 0..10 {
            get(&responder, Some("alice")).await;
        }
        assert_eq!(get(&responder, Some("alice")).await.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(get(&responder, Some("bob")).await.status(), StatusCode::OK);
        assert_eq!(get(&responder, None).await.status(), StatusCode::OK);
    }
}
