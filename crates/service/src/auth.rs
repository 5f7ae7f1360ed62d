//! The tokens of clients.

use std::sync::Arc;

use arc_swap::ArcSwap;
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

/// The tokens that all workers require now. It is changed when a policy is activated, not when a worker first uses the policy: a
/// worker may be idle while a token is replaced, and must not accept the old one after the new one is removed.
#[derive(Debug, Default)]
pub(crate) struct TokenRegister(ArcSwap<ListenerTokens>);

impl TokenRegister {
    /// Changes the tokens to those after a change to `plan`. Only one policy is activated at a time.
    pub(crate) fn apply(&self, plan: &ServicePlan) {
        let tokens = self.0.load().after(plan);
        self.0.store(Arc::new(tokens));
    }

    /// The tokens that are required now.
    pub(crate) fn current(&self) -> Arc<ListenerTokens> {
        self.0.load_full()
    }
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
