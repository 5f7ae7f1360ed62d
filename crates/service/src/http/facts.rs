//! The requests that messages describe.

use http::header::HeaderValue;
use tidegate_policy::{ActivePolicy, BodyFacts, RequestError};
use tidegate_store::Clock;

use super::error::{HttpError, invalid};
use super::message::{HeadersMessage, RequestMessage};
use crate::request::DescribedRequest;

pub(super) use crate::request::OwnedRequest;

impl OwnedRequest {
    /// The request that a message describes.
    pub(super) fn from_message(
        policy: &ActivePolicy,
        clock: &dyn Clock,
        message: RequestMessage<'_>,
    ) -> Result<Self, HttpError> {
        let RequestMessage { method, host, path, headers, peer, body, body_user } = message;
        let headers = headers.map(|HeadersMessage(headers)| headers).unwrap_or_default();
        let host = host.map(|host| HeaderValue::from_str(&host.0)).transpose();
        let host = host.map_err(|_| HttpError::Request(RequestError::Host))?;
        let (method, target) = (method.as_bytes(), path.as_bytes());
        let body = match (&body, &body_user) {
            (None, None) => BodyFacts::Unknown,
            (Some(body), None) => BodyFacts::Complete(body.0.as_bytes()),
            (None, Some(user)) => BodyFacts::User(&user.0),
            (Some(_), Some(_)) => {
                return Err(invalid("`body` and `body_user` exclude each other; send one of them"));
            }
        };
        Ok(Self::new(policy, clock, DescribedRequest { method, host, target, headers, peer, body })?)
    }
}
