//! Receives a body before the limits are checked, if a rule counts the user that it names.
//!
//! Nothing of it has been sent then. It is forwarded unchanged: what was received is replayed, and the rest follows.

use http_body::Body;
use hyper::body::Incoming;
use tidegate_policy::{BodyFacts, Facts, MAX_USER_BODY, Route};
use tidegate_store::Store;
use tokio::time::timeout;

use crate::attempt_end::upload_error;
use crate::error::ServeError;
use crate::http::request_body::UploadHandle;
use crate::service::Exchange;

/// The body of a request, as far as rules read it.
#[derive(Debug)]
pub(crate) enum ReceivedBody {
    Complete(Vec<u8>),
    /// It is too large or late.
    Incomplete,
}

impl ReceivedBody {
    pub(crate) fn facts(&self) -> BodyFacts<'_> {
        match self {
            Self::Complete(bytes) => BodyFacts::Complete(bytes),
            Self::Incomplete => BodyFacts::Incomplete,
        }
    }
}

impl<S: Store + 'static> Exchange<'_, S> {
    /// Receives the body in `body`, which moves to `upload`, if a rule reads it. Does not wait longer than the client does.
    pub(crate) async fn receive_user_body(
        &self,
        facts: Facts<'_>,
        route: &Route,
        (body, upload): (&mut Option<Incoming>, &mut UploadHandle),
    ) -> Result<Option<Box<ReceivedBody>>, ServeError> {
        let worker = self.worker;
        if !self.snapshot.policy.matcher.reads_body(&facts, &mut worker.scratch()) {
            return Ok(None);
        }
        let Some(incoming) = body.take() else { return Ok(None) };
        let is_too_large = incoming.size_hint().lower() > MAX_USER_BODY as u64;
        *upload = self.upload(incoming, route, None);
        if is_too_large {
            return Ok(Some(Box::new(ReceivedBody::Incomplete)));
        }
        let now = || worker.limiter.clock().now();
        let left = self.deadline.map(|deadline| deadline.remaining(now()).into());
        let wait = worker.limits.user_body_wait();
        let wait = left.map_or(wait, |left| wait.min(left));
        // One more byte tells whether it is too large.
        let filled = timeout(wait, upload.fill(MAX_USER_BODY as u64 + 1)).await;
        // A fill that was late kept everything.
        upload.bound_recording(MAX_USER_BODY as u64);
        if let Ok(filled) = filled {
            filled.map_err(upload_error)?;
        }
        Ok(Some(Box::new(match upload.received() {
            Some(bytes) if upload.is_complete() => ReceivedBody::Complete(bytes),
            _ => ReceivedBody::Incomplete,
        })))
    }
}
