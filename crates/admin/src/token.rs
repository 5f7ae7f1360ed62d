//! The token of the admin API.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::rand;

/// Shorter tokens could be guessed.
const MIN_LEN: usize = 16;
const MAX_LEN: usize = 1_024;

/// The token of the admin API. `Debug` does not show it; [`expose`](Self::expose) does.
#[derive(Clone)]
pub struct AdminToken(String);

/// A token is invalid, or cannot be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminTokenError {
    /// The token could be guessed.
    #[error("the token has fewer than {MIN_LEN} characters; generate one with `openssl rand -hex 32`")]
    TooShort,
    /// The token cannot be sent in a header.
    #[error(
        "the token must be one line of at most {MAX_LEN} visible ASCII characters; \
         generate one with `openssl rand -hex 32`"
    )]
    NotVisible,
    /// The random number generator failed.
    #[error("the system's random number generator failed")]
    NoRandomness,
}

impl AdminToken {
    /// Reads the token from the text of a file, without surrounding white space.
    pub fn parse(text: &str) -> Result<Self, AdminTokenError> {
        let text = text.trim();
        if text.len() > MAX_LEN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(AdminTokenError::NotVisible);
        }
        if text.len() < MIN_LEN {
            return Err(AdminTokenError::TooShort);
        }
        Ok(Self(text.to_owned()))
    }

    /// Generates a random token.
    pub fn generate() -> Result<Self, AdminTokenError> {
        let mut bytes = [0_u8; 32];
        rand::fill(&mut bytes).map_err(|_| AdminTokenError::NoRandomness)?;
        Ok(Self(bytes.map(|byte| format!("{byte:02x}")).concat()))
    }

    /// The token itself.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether `sent` is this token. The comparison takes constant time.
    pub(crate) fn matches(&self, sent: &[u8]) -> bool {
        verify_slices_are_equal(self.0.as_bytes(), sent).is_ok()
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_token_is_unique_and_can_be_parsed() {
        let (one, other) = (AdminToken::generate().unwrap(), AdminToken::generate().unwrap());
        assert_ne!(one.expose(), other.expose());
        let parsed = AdminToken::parse(&format!("{}\n", one.expose())).unwrap();
        assert!(parsed.matches(one.expose().as_bytes()) && !parsed.matches(other.expose().as_bytes()));
        assert!(!parsed.matches(b"") && !parsed.matches(&one.expose().as_bytes()[1..]));
        assert!(!format!("{parsed:?}").contains(one.expose()));
    }

    #[test]
    fn token_too_short_too_long_or_with_white_space_is_rejected() {
        assert_eq!(AdminToken::parse("").unwrap_err(), AdminTokenError::TooShort);
        assert_eq!(AdminToken::parse("hunter2\n").unwrap_err(), AdminTokenError::TooShort);
        assert_eq!(AdminToken::parse("two lines\nof some length").unwrap_err(), AdminTokenError::NotVisible);
        assert_eq!(AdminToken::parse(&"x".repeat(2_000)).unwrap_err(), AdminTokenError::NotVisible);
    }
}
