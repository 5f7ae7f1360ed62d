//! Verification of signed tokens (JWT).
//!
//! A token is accepted only if a configured key verifies its signature and it is valid at the current time. The algorithm
//! of a key is fixed when the key is loaded and never taken from the token: `alg: none` matches no key, and a public RSA
//! key is never used as an HMAC secret.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use http::header::HeaderName;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};
use tidegate_core::Timestamp;

/// The accepted clock difference between issuer and verifier, in seconds.
const LEEWAY: u64 = 60;
/// Longer tokens are rejected without verification.
const LONGEST_TOKEN: usize = 16 * 1024;

/// Verifies tokens with HS256, RS256 or ES256 keys.
pub struct Verifier {
    keys: Vec<VerificationKey>,
}

struct VerificationKey {
    id: Option<String>,
    algorithm: Algorithm,
    decoding_key: DecodingKey,
    validation: Validation,
}

/// Why a verifier cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The secret is empty.
    #[error("the secret is empty")]
    NoSecret,
    /// The key set is invalid.
    #[error("invalid JSON Web Key Set: {0}")]
    NotJwks(#[source] serde_json::Error),
    /// A key is invalid.
    #[error("key {index} of the key set cannot be used: {cause}")]
    Key {
        /// The index of the key, from 0.
        index: usize,
        /// The cause.
        #[source]
        cause: jsonwebtoken::errors::Error,
    },
    /// The key set has no usable key.
    #[error("the key set has no signing key for RS256, ES256 (P-256) or HS256")]
    NoKey,
}

/// Why a token is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is not a JWT, or it is too long.
    #[error("not a valid signed JWT")]
    Malformed,
    /// No key has its algorithm and key id.
    #[error("no key matches the token's algorithm and key id")]
    NoKey,
    /// The signature is invalid.
    #[error("invalid signature")]
    Signature,
    /// `exp` is missing or not a number.
    #[error("no `exp` claim with a number")]
    NoExpiry,
    /// It has expired.
    #[error("expired")]
    Expired,
    /// It is not valid yet.
    #[error("not valid yet")]
    TooEarly,
}

/// The claims of a verified token.
#[derive(Clone, PartialEq, Eq)]
pub struct Claims(Map<String, Value>);

impl Verifier {
    /// Verifies HS256 with `secret`. One trailing line end is removed.
    pub fn hs256(secret: &[u8]) -> Result<Self, KeysError> {
        let secret = secret.strip_suffix(b"\n").unwrap_or(secret);
        let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
        if secret.is_empty() {
            return Err(KeysError::NoSecret);
        }
        let key = VerificationKey::new(None, Algorithm::HS256, DecodingKey::from_secret(secret));
        Ok(Self { keys: vec![key] })
    }

    /// Verifies with the signing keys of a JSON Web Key Set. Keys for other purposes or algorithms are skipped.
    pub fn jwks(json: &[u8]) -> Result<Self, KeysError> {
        let set: JwkSet = serde_json::from_slice(json).map_err(KeysError::NotJwks)?;
        let usable =
            set.keys.iter().enumerate().filter_map(|(index, key)| Some((index, key, algorithm(key)?)));
        let keys = usable.map(|(index, jwk, algorithm)| {
            let key = DecodingKey::from_jwk(jwk).map_err(|cause| KeysError::Key { index, cause })?;
            Ok(VerificationKey::new(jwk.common.key_id.clone(), algorithm, key))
        });
        let keys = keys.collect::<Result<Vec<_>, KeysError>>()?;
        if keys.is_empty() { Err(KeysError::NoKey) } else { Ok(Self { keys }) }
    }

    /// Verifies `token` at the time `now` and returns its claims.
    pub fn verify(&self, token: &[u8], now: Timestamp) -> Result<Claims, TokenError> {
        if token.len() > LONGEST_TOKEN {
            return Err(TokenError::Malformed);
        }
        let header = decode_header(token).map_err(|_| TokenError::Malformed)?;
        let matches = |key: &&VerificationKey| {
            let same_id = key.id.is_none() || header.kid.is_none() || key.id == header.kid;
            key.algorithm == header.alg && same_id
        };
        let mut error = TokenError::NoKey;
        for key in self.keys.iter().filter(matches) {
            match decode::<Map<String, Value>>(token, &key.decoding_key, &key.validation) {
                Ok(verified) => return Claims(verified.claims).checked(now),
                Err(_) => error = TokenError::Signature,
            }
        }
        Err(error)
    }
}

impl VerificationKey {
    fn new(id: Option<String>, algorithm: Algorithm, decoding_key: DecodingKey) -> Self {
        let mut validation = Validation::new(algorithm);
        // `Claims::checked` checks the times, as `Validation` would use the system clock.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        Self { id, algorithm, decoding_key, validation }
    }
}

impl fmt::Debug for Verifier {
    /// Shows only the algorithms, never the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| key.algorithm)).finish()
    }
}

/// The algorithm of a signing key, if it is supported.
fn algorithm(key: &Jwk) -> Option<Algorithm> {
    if key.common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
        return None;
    }
    let (algorithm, name) = match &key.algorithm {
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        AlgorithmParameters::OctetKey(_) => (Algorithm::HS256, KeyAlgorithm::HS256),
        _ => return None,
    };
    key.common.key_algorithm.is_none_or(|declared| declared == name).then_some(algorithm)
}

impl Claims {
    /// The claim `name`, if it is a non-empty string.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    fn checked(self, now: Timestamp) -> Result<Self, TokenError> {
        let now = now.as_micros() / 1_000_000;
        let expires = self.0.get("exp").and_then(seconds).ok_or(TokenError::NoExpiry)?;
        if now >= expires.saturating_add(LEEWAY) {
            return Err(TokenError::Expired);
        }
        match self.0.get("nbf").map(seconds) {
            Some(None) => Err(TokenError::TooEarly),
            Some(Some(begins)) if now.saturating_add(LEEWAY) < begins => Err(TokenError::TooEarly),
            _ => Ok(self),
        }
    }
}

impl fmt::Debug for Claims {
    /// Shows only the names of the claims, never the values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// The whole seconds of a numeric date, which may have a fraction; `None` if it is not a number.
fn seconds(date: &Value) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast to u64 saturates")]
    let whole = |date: f64| date as u64;
    date.as_u64().or_else(|| date.as_f64().map(whole))
}

/// The header of a token, and the claim to use.
#[derive(Debug, Clone)]
pub struct ClaimSource {
    header: HeaderName,
    claim: Box<str>,
    verifier: Arc<Verifier>,
}

impl ClaimSource {
    /// Reads `claim` of the token in `header`, verified by `verifier`. `Bearer` before the token is optional.
    pub fn new(header: HeaderName, claim: &str, verifier: Arc<Verifier>) -> Self {
        Self { header, claim: claim.into(), verifier }
    }

    /// The claim's name.
    pub fn claim(&self) -> &str {
        &self.claim
    }

    /// The header that carries the token.
    pub(super) fn header(&self) -> &HeaderName {
        &self.header
    }

    /// Whether `other` uses the same token.
    pub(super) fn shares_token(&self, other: &Self) -> bool {
        self.header == other.header && Arc::ptr_eq(&self.verifier, &other.verifier)
    }

    /// The claims of the request's token, if there is a valid one.
    pub(super) fn claims(&self, headers: &HeaderMap, now: Timestamp) -> Option<Claims> {
        self.verify(headers, now)?.ok()
    }

    /// The claims of the request's token, or why it is rejected; `None` if there is no token.
    pub(super) fn verify(&self, headers: &HeaderMap, now: Timestamp) -> Option<Result<Claims, TokenError>> {
        const SCHEME: &[u8] = b"Bearer";
        let value = super::single(headers, &self.header)?;
        // All bytes that lenient servers treat as white space; the last two are Latin-1.
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | 0x85 | 0xa0);
        let token = match value.split_at_checked(SCHEME.len()) {
            Some((scheme, rest))
                if scheme.eq_ignore_ascii_case(SCHEME) && rest.first().is_some_and(is_space) =>
            {
                &rest[rest.iter().take_while(|byte| is_space(byte)).count()..]
            }
            _ => value,
        };
        let token = token.trim_ascii();
        let verified = self.verifier.verify(token, now);
        // Lenient servers accept non-canonical Base64 signatures. If such a token were rejected here, its user would evade
        // limits and bans.
        let may_be_non_canonical = matches!(verified, Err(TokenError::Malformed | TokenError::Signature));
        match may_be_non_canonical.then(|| with_canonical_signature(token)).flatten() {
            Some(canonical) => Some(self.verifier.verify(&canonical, now)),
            None => Some(verified),
        }
    }
}

/// Re-encodes the signature of `token` as canonical Base64; `None` if it is already canonical or not a token. Like lenient
/// decoders, this accepts both alphabets of Base64 and padding, and skips all other bytes.
fn with_canonical_signature(token: &[u8]) -> Option<Vec<u8>> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    if token.len() > LONGEST_TOKEN {
        return None;
    }
    let start = token.iter().rposition(|byte| *byte == b'.')? + 1;
    let sextet = |byte: u8| {
        let byte = match byte {
            b'+' => b'-',
            b'/' => b'_',
            other => other,
        };
        ALPHABET.iter().position(|known| *known == byte)
    };
    let sextets: Vec<usize> = token[start..].iter().filter_map(|byte| sextet(*byte)).collect();
    let mut canonical = token[..start].to_vec();
    for group in sextets.chunks(4) {
        // Clears the unused bits of the last sextet.
        let unused = match group.len() {
            2 => 0b1111,
            3 => 0b11,
            _ => 0,
        };
        let last = group.len() - 1;
        let digit =
            |(at, sextet): (usize, &usize)| ALPHABET[if at == last { sextet & !unused } else { *sextet }];
        canonical.extend(group.iter().enumerate().map(digit));
    }
    (canonical != token).then_some(canonical)
}

#[cfg(test)]
mod tests;
