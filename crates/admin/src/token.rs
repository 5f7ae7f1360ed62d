//! What lets an operator in.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::rand;

/// A shorter one could be guessed.
const SHORTEST: usize = 16;
const LONGEST: usize = 1_024;

/// The token of the admin API. It is shown only when asked for by name.
#[derive(Clone)]
pub struct AdminToken(String);

/// Why there is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminTokenError {
    /// It could be guessed.
    #[error("it has fewer than {SHORTEST} characters; make a better one with `openssl rand -hex 32`")]
    TooShort,
    /// It cannot be sent in a header.
    #[error(
        "it is not one line of at most {LONGEST} visible characters; make a better one with `openssl rand -hex 32`"
    )]
    NotVisible,
    /// The system gives no randomness.
    #[error("the system gives no random numbers")]
    NoRandomness,
}

impl AdminToken {
    /// The token in the text of a file, white space around it left out.
    pub fn parse(text: &str) -> Result<Self, AdminTokenError> {
        let text = text.trim();
        if text.len() > LONGEST || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(AdminTokenError::NotVisible);
        }
        if text.len() < SHORTEST {
            return Err(AdminTokenError::TooShort);
        }
        Ok(Self(text.to_owned()))
    }

    /// A new one that nobody guesses.
    pub fn generate() -> Result<Self, AdminTokenError> {
        let mut bytes = [0_u8; 32];
        rand::fill(&mut bytes).map_err(|_| AdminTokenError::NoRandomness)?;
        Ok(Self(bytes.map(|byte| format!("{byte:02x}")).concat()))
    }

    /// The token itself.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether `sent` is this token; how long it takes does not tell how much of it is right.
    pub(crate) fn is(&self, sent: &[u8]) -> bool {
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
    fn a_generated_token_is_new_each_time_and_can_be_kept_in_a_file() {
        let (one, other) = (AdminToken::generate().unwrap(), AdminToken::generate().unwrap());
        assert_ne!(one.expose(), other.expose());
        let kept = AdminToken::parse(&format!("{}\n", one.expose())).unwrap();
        assert!(kept.is(one.expose().as_bytes()) && !kept.is(other.expose().as_bytes()));
        assert!(!kept.is(b"") && !kept.is(&one.expose().as_bytes()[1..]));
        assert!(!format!("{kept:?}").contains(one.expose()));
    }

    #[test]
    fn what_could_be_guessed_or_cannot_be_sent_is_no_token() {
        assert_eq!(AdminToken::parse("").unwrap_err(), AdminTokenError::TooShort);
        assert_eq!(AdminToken::parse("hunter2\n").unwrap_err(), AdminTokenError::TooShort);
        assert_eq!(AdminToken::parse("two lines\nof some length").unwrap_err(), AdminTokenError::NotVisible);
        assert_eq!(AdminToken::parse(&"x".repeat(2_000)).unwrap_err(), AdminTokenError::NotVisible);
    }
}
