//! One request: identify, decide, and either the upstream's answer or a refusal.

use std::net::IpAddr;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use tidegate_core::{Check, Decision, Key};
use tidegate_store::{Clock, ReferenceStore, Store, StoreError, SystemClock};

use super::demo::{self, Policy};
use super::refusal::Refusal;
use super::{client, headers};

/// Everything an answer needs.
#[derive(Debug)]
pub(crate) struct Responder {
    policy: Policy,
    clock: SystemClock,
    store: ReferenceStore,
}

impl Responder {
    pub(crate) fn new(policy: Policy) -> Self {
        Self { policy, clock: SystemClock::new(), store: ReferenceStore::new() }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) async fn respond<B>(&self, request: &Request<B>, peer: IpAddr) -> Response<Full<Bytes>> {
        let client = client::identify(request.headers(), peer);
        match self.decide(&client).await {
            Ok(decision) => self.answer(request, &client, &decision),
            Err(error) => {
                eprintln!("tidegate: {error}");
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

fn refuse(refusal: &Refusal<'_>) -> Response<Full<Bytes>> {
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
