//! Verification of signed tokens (JWT).
//!
//! A token names its user if a configured key verifies its signature, also when it has expired: a service may still accept
//! it, and its user must not evade limits and bans. [`Claims::check_times`] tells whether it is valid now. The algorithm of a
//! key is fixed when the key is loaded and never taken from the token: `alg: none` matches no key, and a public RSA key is
//! never used as an HMAC secret.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{COOKIE, HeaderName};
use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, crypto};
use serde_json::{Map, Value};
use tidegate_core::Timestamp;

use super::headers::HeaderError;
use super::token::{self, MAX_TOKENS, TokenText};

/// The accepted clock difference between issuer and verifier, in seconds.
const LEEWAY: u64 = 60;
/// Tokens with a longer header and payload are rejected without verification. The head of a request is not longer.
const LONGEST_TOKEN: usize = 64 * 1024;

/// Verifies tokens with HS256, RS256 or ES256 keys.
pub struct Verifier {
    keys: Vec<VerificationKey>,
}

struct VerificationKey {
    id: Option<String>,
    algorithm: Algorithm,
    decoding_key: DecodingKey,
    /// The length of its signatures in bytes.
    signature_length: usize,
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
        let decoding_key = DecodingKey::from_secret(secret);
        let (algorithm, signature_length) = (Algorithm::HS256, 32);
        Ok(Self { keys: vec![VerificationKey { id: None, algorithm, decoding_key, signature_length }] })
    }

    /// Verifies with the signing keys of a JSON Web Key Set. Keys for other purposes or algorithms are skipped.
    pub fn jwks(json: &[u8]) -> Result<Self, KeysError> {
        let set: JwkSet = serde_json::from_slice(json).map_err(KeysError::NotJwks)?;
        let usable =
            set.keys.iter().enumerate().filter_map(|(index, key)| Some((index, key, algorithm(key)?)));
        let keys = usable.map(|(index, jwk, (algorithm, signature_length))| {
            let decoding_key = DecodingKey::from_jwk(jwk).map_err(|cause| KeysError::Key { index, cause })?;
            let id = jwk.common.key_id.clone();
            Ok(VerificationKey { id, algorithm, decoding_key, signature_length })
        });
        let keys = keys.collect::<Result<Vec<_>, KeysError>>()?;
        if keys.is_empty() { Err(KeysError::NoKey) } else { Ok(Self { keys }) }
    }

    /// Verifies the first token in `text` at the time `now` and returns its claims.
    pub fn verify(&self, text: &[u8], now: Timestamp) -> Result<Claims, TokenError> {
        let token = token::tokens(text).next().ok_or(TokenError::Malformed)?;
        let claims = self.verify_signature(token)?;
        claims.check_times(now).map(|()| claims)
    }

    /// Verifies only the signature.
    fn verify_signature(&self, token: TokenText<'_>) -> Result<Claims, TokenError> {
        if token.signed.len() > LONGEST_TOKEN {
            return Err(TokenError::Malformed);
        }
        let header = token.header().ok_or(TokenError::Malformed)?;
        let matches = |key: &&VerificationKey| {
            let same_id = key.id.is_none() || header.kid.is_none() || key.id == header.kid;
            key.algorithm == header.alg && same_id
        };
        let mut error = TokenError::NoKey;
        for key in self.keys.iter().filter(matches) {
            let verify = |signature: String| {
                crypto::verify(&signature, token.message(), &key.decoding_key, key.algorithm)
            };
            if matches!(token.signature(key.signature_length).map(verify), Some(Ok(true))) {
                let claims = insecure_decode_claims(token.signed).ok().or_else(|| token.lenient_claims());
                return claims.map(Claims::new).ok_or(TokenError::Malformed);
            }
            error = TokenError::Signature;
        }
        Err(error)
    }
}

impl fmt::Debug for Verifier {
    /// Shows only the algorithms, never the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| key.algorithm)).finish()
    }
}

/// The algorithm of a signing key and the length of its signatures, if it is supported.
fn algorithm(key: &Jwk) -> Option<(Algorithm, usize)> {
    if key.common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
        return None;
    }
    let (algorithm, name, length) = match &key.algorithm {
        AlgorithmParameters::RSA(rsa) => {
            (Algorithm::RS256, KeyAlgorithm::RS256, token::number_length(&rsa.n))
        }
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256, 64)
        }
        AlgorithmParameters::OctetKey(_) => (Algorithm::HS256, KeyAlgorithm::HS256, 32),
        _ => return None,
    };
    key.common.key_algorithm.is_none_or(|declared| declared == name).then_some((algorithm, length))
}

impl Claims {
    /// Whole numbers become text, so that a claim such as `"user_id": 42` is a name too; times stay numbers.
    fn new(mut claims: Map<String, Value>) -> Self {
        for (name, value) in &mut claims {
            if let Value::Number(number) = value
                && (number.is_u64() || number.is_i64())
                && !matches!(name.as_str(), "exp" | "nbf" | "iat")
            {
                *value = Value::String(number.to_string());
            }
        }
        Self(claims)
    }

    /// The claim `name`, if it is a non-empty string or a whole number.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    /// Checks that the token is valid at `now`.
    pub(super) fn check_times(&self, now: Timestamp) -> Result<(), TokenError> {
        let now = now.as_micros() / 1_000_000;
        let expires = self.0.get("exp").and_then(seconds).ok_or(TokenError::NoExpiry)?;
        if now >= expires.saturating_add(LEEWAY) {
            return Err(TokenError::Expired);
        }
        match self.0.get("nbf").map(seconds) {
            Some(None) => Err(TokenError::TooEarly),
            Some(Some(begins)) if now.saturating_add(LEEWAY) < begins => Err(TokenError::TooEarly),
            _ => Ok(()),
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
    pub(crate) fn header(&self) -> &HeaderName {
        &self.header
    }

    /// Whether the token is in a cookie, which services decode.
    fn is_cookie(&self) -> bool {
        self.header == COOKIE
    }

    /// Whether `other` uses the same token.
    pub(super) fn shares_token(&self, other: &Self) -> bool {
        self.header == other.header && Arc::ptr_eq(&self.verifier, &other.verifier)
    }

    /// The tokens of the request; `None` if it does not have the header exactly once.
    pub(crate) fn read(&self, headers: &HeaderMap) -> Option<TokenReading> {
        let value = super::single(headers, &self.header)?;
        let mut reading = TokenReading::default();
        for text in &token::readings(value, self.is_cookie()) {
            let mut tokens = token::tokens(text);
            for token in tokens.by_ref().take(MAX_TOKENS) {
                reading.add(self.verifier.verify_signature(token));
            }
            reading.has_more |= tokens.next().is_some();
        }
        Some(reading)
    }

    /// Checks that the tokens of the request name one user or tenant.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), HeaderError> {
        // One token cannot name two, so it is not verified here.
        let is_plain = |value| token::is_plain(value, self.is_cookie());
        if super::single(headers, &self.header).is_none_or(is_plain) {
            return Ok(());
        }
        match self.read(headers) {
            Some(reading) if reading.has_more => Err(HeaderError::TooManyTokens(self.header.clone())),
            Some(reading) if reading.is_ambiguous(&self.claim) => {
                Err(HeaderError::DifferentTokens(self.header.clone()))
            }
            _ => Ok(()),
        }
    }
}

/// The tokens in a header.
#[derive(Debug, Default)]
pub(crate) struct TokenReading {
    /// The claims of those whose signature holds.
    verified: Vec<Claims>,
    /// Why another one was rejected.
    rejected: Option<TokenError>,
    /// There are more tokens, which were not read.
    has_more: bool,
}

impl TokenReading {
    fn add(&mut self, token: Result<Claims, TokenError>) {
        match token {
            Ok(claims) => self.verified.push(claims),
            // Not every text that looks like a token is one.
            Err(TokenError::Malformed) => {}
            Err(error) => self.rejected = Some(error),
        }
    }

    /// The value of `claim`. Valid or not, the token was issued to this user or tenant.
    pub(super) fn name(&self, claim: &str) -> Option<&str> {
        self.verified.iter().find_map(|claims| claims.get(claim))
    }

    /// Whether the tokens have different values of `claim`.
    fn is_ambiguous(&self, claim: &str) -> bool {
        let mut names = self.verified.iter().filter_map(|claims| claims.get(claim));
        names.next().is_some_and(|first| names.any(|other| other != first))
    }

    /// Checks that a token with this claim is valid at `now`.
    pub(super) fn check_claim(&self, claim: &str, now: Timestamp) -> Result<(), TokenError> {
        let named = self.verified.iter().filter(|claims| claims.get(claim).is_some());
        let mut checked = named.map(|claims| claims.check_times(now));
        let first = checked.next().unwrap_or(Err(self.rejected.unwrap_or(TokenError::Malformed)));
        first.or_else(|error| checked.find(Result::is_ok).unwrap_or(Err(error)))
    }

    /// Whether there is a token, and all are valid at `now`.
    pub(crate) fn is_valid(&self, now: Timestamp) -> bool {
        let are_current = self.verified.iter().all(|claims| claims.check_times(now).is_ok());
        !self.verified.is_empty() && self.rejected.is_none() && are_current
    }

    /// Whether a token was verified.
    pub(super) fn is_verified(&self) -> bool {
        !self.verified.is_empty()
    }
}

#[cfg(test)]
mod tests;
