//! The tokens of clients.

use tidegate_policy::{SecretFile, ServicePlan};
use tidegate_telemetry::Protocol;

/// Whether `given` is the token that `plan` requires for `protocol`. Without a required token every client is authorized.
pub(crate) fn is_authorized(plan: &ServicePlan, protocol: Protocol, given: Option<&[u8]>) -> bool {
    match required_token(plan, protocol) {
        Some(token) => given.is_some_and(|given| is_equal(given, token.secret.expose())),
        None => true,
    }
}

/// Whether clients of `protocol` need a token.
pub(crate) fn needs_token(plan: &ServicePlan, protocol: Protocol) -> bool {
    required_token(plan, protocol).is_some()
}

fn required_token(plan: &ServicePlan, protocol: Protocol) -> Option<&SecretFile> {
    let listener = match protocol {
        Protocol::Grpc => plan.grpc.as_ref(),
        Protocol::Http => plan.http.as_ref(),
        Protocol::Resp => plan.resp.as_ref(),
        Protocol::Gateway => None,
    };
    listener?.token.as_ref()
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
