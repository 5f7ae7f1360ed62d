//! Who a signed token (JWT) says its bearer is.
//!
//! A token counts only if its signature holds under a key of ours and the time is right. Which algorithm a key
//! verifies is fixed when the key is loaded, never read from the token: `alg: none` matches no key, and a
//! public RSA key is never tried as an HMAC secret.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use http::header::HeaderName;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};
use tidegate_core::Timestamp;

/// How far the clocks of issuer and verifier may stand apart, in seconds.
const LEEWAY: u64 = 60;
/// A longer token is refused before anything is computed.
const LONGEST_TOKEN: usize = 16 * 1024;

/// The keys that tokens are verified with: HS256, RS256 or ES256.
pub struct Verifier {
    keys: Vec<VerificationKey>,
}

struct VerificationKey {
    id: Option<String>,
    algorithm: Algorithm,
    decoding_key: DecodingKey,
    validation: Validation,
}

/// Why no verifier can be made.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The secret is empty.
    #[error("the secret is empty")]
    NoSecret,
    /// Not a key set.
    #[error("invalid JSON Web Key Set: {0}")]
    NotJwks(#[source] serde_json::Error),
    /// A key cannot be read.
    #[error("key {index} of the key set cannot be used: {cause}")]
    Key {
        /// Which key, from 0.
        index: usize,
        /// Why.
        #[source]
        cause: jsonwebtoken::errors::Error,
    },
    /// There is a key set, but nothing in it serves.
    #[error("the key set has no signing key for RS256, ES256 (P-256) or HS256")]
    NoKey,
}

/// Why a token names nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is not a token, or it is too long.
    #[error("not a valid signed JWT")]
    Malformed,
    /// No key of ours verifies its algorithm under its key id.
    #[error("no key matches the token's algorithm and key id")]
    NoKey,
    /// The signature does not hold.
    #[error("invalid signature")]
    Signature,
    /// It never expires, or what says when is not a number.
    #[error("no `exp` claim with a number")]
    NoExpiry,
    /// It has expired.
    #[error("expired")]
    Expired,
    /// It is not valid yet.
    #[error("not valid yet")]
    TooEarly,
}

/// What a verified token says.
#[derive(Clone, PartialEq, Eq)]
pub struct Claims(Map<String, Value>);

impl Verifier {
    /// Verifies HS256 with `secret`; one line end after it is not part of it.
    pub fn hs256(secret: &[u8]) -> Result<Self, KeysError> {
        let secret = secret.strip_suffix(b"\n").unwrap_or(secret);
        let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
        if secret.is_empty() {
            return Err(KeysError::NoSecret);
        }
        let key = VerificationKey::new(None, Algorithm::HS256, DecodingKey::from_secret(secret));
        Ok(Self { keys: vec![key] })
    }

    /// Verifies with the signing keys of a JSON Web Key Set; keys for other purposes or algorithms are passed
    /// over.
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

    /// What `token` says, if it may be believed at `now`.
    pub fn verify(&self, token: &[u8], now: Timestamp) -> Result<Claims, TokenError> {
        if token.len() > LONGEST_TOKEN {
            return Err(TokenError::Malformed);
        }
        let header = decode_header(token).map_err(|_| TokenError::Malformed)?;
        let fits = |key: &&VerificationKey| {
            let same_id = key.id.is_none() || header.kid.is_none() || key.id == header.kid;
            key.algorithm == header.alg && same_id
        };
        let mut verdict = TokenError::NoKey;
        for key in self.keys.iter().filter(fits) {
            match decode::<Map<String, Value>>(token, &key.decoding_key, &key.validation) {
                Ok(verified) => return Claims(verified.claims).checked(now),
                Err(_) => verdict = TokenError::Signature,
            }
        }
        Err(verdict)
    }
}

impl VerificationKey {
    fn new(id: Option<String>, algorithm: Algorithm, decoding_key: DecodingKey) -> Self {
        let mut validation = Validation::new(algorithm);
        // It would ask the system for the time; `Claims::checked` is told.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        Self { id, algorithm, decoding_key, validation }
    }
}

impl fmt::Debug for Verifier {
    /// Never the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| key.algorithm)).finish()
    }
}

/// The algorithm that a key of a set signs with, if it is one of ours.
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
    key.common.key_algorithm.is_none_or(|said| said == name).then_some(algorithm)
}

impl Claims {
    /// The claim called `name`, if it is a string that is not empty.
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
    /// Never the values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// Whole seconds of a date, which may have a fraction; none for what is no date.
fn seconds(date: &Value) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast to u64 saturates")]
    let whole = |date: f64| date as u64;
    date.as_u64().or_else(|| date.as_f64().map(whole))
}

/// Where a token is found, and which of its claims counts.
#[derive(Debug, Clone)]
pub struct ClaimSource {
    header: HeaderName,
    claim: Box<str>,
    verifier: Arc<Verifier>,
}

impl ClaimSource {
    /// `claim` of the token in `header`, which `verifier` believes. `Bearer` before the token may be left out.
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

    /// Whether `other` finds its claim in the same token.
    pub(super) fn shares_token(&self, other: &Self) -> bool {
        self.header == other.header && Arc::ptr_eq(&self.verifier, &other.verifier)
    }

    /// The claims of the request's token, if there is one and it may be believed.
    pub(super) fn claims(&self, headers: &HeaderMap, now: Timestamp) -> Option<Claims> {
        self.verify(headers, now)?.ok()
    }

    /// The claims of the request's token, or why it is rejected; `None` if there is no token.
    pub(super) fn verify(&self, headers: &HeaderMap, now: Timestamp) -> Option<Result<Claims, TokenError>> {
        const SCHEME: &[u8] = b"Bearer";
        let value = super::single(headers, &self.header)?;
        // Whatever a lenient server takes for white space; the last two are spaces of Latin-1.
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
        // A lenient server accepts a signature in many spellings, and a token that names nobody here would escape the
        // limits and bans of its user.
        let is_spelling = matches!(verified, Err(TokenError::Malformed | TokenError::Signature));
        match is_spelling.then(|| with_canonical_signature(token)).flatten() {
            Some(canonical) => Some(self.verifier.verify(&canonical, now)),
            None => Some(verified),
        }
    }
}

/// `token` with its signature in the one spelling that verifiers accept; `None` if it is spelled so already or is no
/// token. As lenient decoders do, this accepts both alphabets of Base64, padding, and skips everything else.
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
        // The bits of the last sextet that belong to no byte are zero.
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
