//! The tokens of clients.

use std::sync::Arc;

use tidegate_policy::{Secret, ServicePlan};
use tidegate_telemetry::Protocol;

/// The tokens that the listeners require. A listener that has required a token requires one until the process ends, because its
/// socket stays open if a new policy moves the listener to another address or removes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListenerTokens {
    grpc: Option<Arc<Secret>>,
    http: Option<Arc<Secret>>,
    resp: Option<Arc<Secret>>,
}

impl ListenerTokens {
    /// The tokens after a change to `plan`. A token that `plan` lacks stays; one that it repeats stays the same value.
    pub(crate) fn after(&self, plan: &ServicePlan) -> Self {
        let renew = |old: &Option<Arc<Secret>>, new: &Option<tidegate_policy::ServiceListenerPlan>| {
            let new = new.as_ref().and_then(|listener| listener.token.as_ref());
            match (old, new) {
                (Some(old), Some(new)) if **old != new.secret => Some(Arc::new(new.secret.clone())),
                (None, Some(new)) => Some(Arc::new(new.secret.clone())),
                (old, _) => old.clone(),
            }
        };
        Self {
            grpc: renew(&self.grpc, &plan.grpc),
            http: renew(&self.http, &plan.http),
            resp: renew(&self.resp, &plan.resp),
        }
    }

    /// The token for `protocol`, if clients need one.
    pub(crate) fn required(&self, protocol: Protocol) -> Option<&Arc<Secret>> {
        match protocol {
            Protocol::Grpc => self.grpc.as_ref(),
            Protocol::Http => self.http.as_ref(),
            Protocol::Resp => self.resp.as_ref(),
            Protocol::Gateway => None,
        }
    }
}

/// Whether `given` is the token for `protocol`. Without a required token every client is authorized.
pub(crate) fn is_authorized(tokens: &ListenerTokens, protocol: Protocol, given: Option<&[u8]>) -> bool {
    match tokens.required(protocol) {
        Some(token) => given.is_some_and(|given| is_equal(given, token.expose())),
        None => true,
    }
}

/// Whether clients of `protocol` need a token.
pub(crate) fn needs_token(tokens: &ListenerTokens, protocol: Protocol) -> bool {
    tokens.required(protocol).is_some()
}

/// Compares without revealing in its duration how much of the token is right.
fn is_equal(given: &[u8], token: &[u8]) -> bool {
    given.len() == token.len() && given.iter().zip(token).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_only_the_same_bytes_are_equal() {
        assert!(is_equal(b"secret", b"secret"));
        for other in [&b""[..], b"secre", b"secret1", b"Secret"] {
            assert!(!is_equal(other, b"secret"));
        }
    }
}
