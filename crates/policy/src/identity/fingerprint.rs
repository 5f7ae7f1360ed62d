//! Fingerprints of client software.

use http::HeaderMap;
use http::header::HeaderName;
use sha2::{Digest, Sha256};

/// A hash of chosen headers.
///
/// A fingerprint is a hint, not an identity: clients choose their headers, and all users of the same browser share it.
/// Use it together with an address or a user, not alone. It is the same on every node and after every restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    headers: Vec<HeaderName>,
}

/// A fingerprint without headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint needs at least one header, for instance user-agent")]
pub struct FingerprintError;

impl Fingerprint {
    /// Hashes `headers`, in this order.
    pub fn new(headers: Vec<HeaderName>) -> Result<Self, FingerprintError> {
        if headers.is_empty() { Err(FingerprintError) } else { Ok(Self { headers }) }
    }

    /// The headers that are hashed.
    pub(super) fn headers(&self) -> &[HeaderName] {
        &self.headers
    }

    /// 128 bits of a SHA-256; `None` if the request has none of the headers.
    pub fn compute(&self, headers: &HeaderMap) -> Option<[u8; 16]> {
        let mut hash = Sha256::new();
        let mut is_present = false;
        for name in &self.headers {
            let values = headers.get_all(name);
            // Counts and lengths distinguish a missing header from an empty one, and one value from two.
            hash.update(length(values.iter().count()));
            for value in values {
                is_present = true;
                hash.update(length(value.len()));
                hash.update(value.as_bytes());
            }
        }
        let half = hash.finalize().first_chunk().copied();
        half.filter(|_| is_present)
    }
}

fn length(length: usize) -> [u8; 8] {
    (length as u64).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use http::header::{ACCEPT_LANGUAGE, USER_AGENT};

    use super::*;

    fn compute(lines: &[(HeaderName, &str)]) -> Option<[u8; 16]> {
        let headers = lines.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        Fingerprint::new(vec![USER_AGENT, ACCEPT_LANGUAGE]).unwrap().compute(&headers)
    }

    #[test]
    fn fingerprint_never_changes() {
        let print = compute(&[(USER_AGENT, "curl/8")]).map(u128::from_be_bytes);
        assert_eq!(print, Some(0x2fc0_64b3_7a2c_125b_df16_cdf8_780b_3950));
    }

    #[test]
    fn fingerprint_depends_on_each_chosen_header_only() {
        let curl = compute(&[(USER_AGENT, "curl"), (ACCEPT_LANGUAGE, "de")]);
        assert_eq!(
            curl,
            compute(&[(ACCEPT_LANGUAGE, "de"), (USER_AGENT, "curl"), (http::header::HOST, "x")])
        );
        let others = [
            compute(&[(USER_AGENT, "curlde")]),
            compute(&[(USER_AGENT, "curl")]),
            compute(&[(USER_AGENT, "curl"), (ACCEPT_LANGUAGE, "")]),
            compute(&[(USER_AGENT, "curl"), (USER_AGENT, ""), (ACCEPT_LANGUAGE, "de")]),
        ];
        for (index, other) in others.iter().enumerate() {
            assert_ne!(*other, curl);
            assert!(other.is_some() && !others[..index].contains(other));
        }
        assert_eq!(compute(&[]), None);
        assert!(Fingerprint::new(Vec::new()).is_err());
    }
}
