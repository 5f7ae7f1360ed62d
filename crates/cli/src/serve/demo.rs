//! What `serve` shows without any set-up: a policy of one rule, and an upstream in this process.

use std::net::SocketAddr;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response};
use tidegate_core::{Algorithm, Limit, LimitError, RuleId, Span, Spec};

const REQUESTS: u64 = 10;
const WINDOW: Span = Span::from_secs(60);

/// One limit for each client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) name: &'static str,
    pub(crate) rule: RuleId,
    pub(crate) limit: Limit,
    pub(crate) window: Span,
}

pub(crate) fn policy() -> Result<Policy, LimitError> {
    let name = "demo";
    let limit = Limit::new(Algorithm::TokenBucket, Spec::new(REQUESTS, WINDOW))?;
    Ok(Policy { name, rule: RuleId::named(name), limit, window: WINDOW })
}

pub(crate) fn upstream<B>(request: &Request<B>) -> Response<Full<Bytes>> {
    let body =
        format!("Hello from behind Tidegate. You asked to {} {}\n", request.method(), request.uri().path());
    let mut response = Response::new(Full::new(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

pub(crate) fn welcome(address: SocketAddr, policy: &Policy) -> String {
    format!(
        "\
tidegate is listening on http://{address}
  upstream   the built-in demo
  limit      {requests} requests per {window} for each X-API-Key, or else each address ({algorithm})

Try:
  curl -i http://{address}/
  curl -i -H 'X-API-Key: alice' http://{address}/
  for i in $(seq {more}); do curl -s -o /dev/null -w '%{{http_code}}\\n' http://{address}/; done
  curl -i http://{address}/

Ctrl-C stops it.",
        requests = policy.limit.capacity(),
        window = super::refusal::window_text(policy.window),
        algorithm = policy.limit.algorithm(),
        more = policy.limit.capacity() + 2,
    )
}
