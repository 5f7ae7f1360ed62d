//! Proof that both ends of a connection have the token, without sending it.
//!
//! Any process of the machine can listen on the address of an admin API that is not running, and would receive the token of
//! the next command. So a command first sends `GET /v1/proof` with a random nonce and a MAC of it, and the API responds with
//! another MAC. The key of both is the token. Both include the address of the API as each end sees it, so a proof cannot be
//! relayed from an API at another address. A client without the token gets no proof: it could try to guess a weak token with
//! it.

use std::fmt::Write;
use std::net::SocketAddr;

use aws_lc_rs::hmac;

use crate::token::{AdminToken, AdminTokenError};

/// The path that proves.
pub(crate) const PROOF_PATH: &str = "/v1/proof";
/// The scheme in `Authorization`.
const SCHEME: &str = "Tidegate-Proof";
const NONCE_BYTES: usize = 16;

/// The end of a connection that proves.
#[derive(Clone, Copy)]
enum Prover {
    Client,
    Server,
}

/// The challenge of a client for the admin API at one address.
#[derive(Debug)]
pub struct ServerChallenge<'t> {
    token: &'t AdminToken,
    nonce: String,
    server: SocketAddr,
}

impl<'t> ServerChallenge<'t> {
    /// The path to request.
    pub const PATH: &'static str = PROOF_PATH;

    /// A new challenge for the API at `server`.
    pub fn new(token: &'t AdminToken, server: SocketAddr) -> Result<Self, AdminTokenError> {
        let mut nonce = [0; NONCE_BYTES];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| AdminTokenError::NoRandomness)?;
        Ok(Self { token, nonce: hex(&nonce), server })
    }

    /// The value of `Authorization`.
    pub fn authorization(&self) -> String {
        format!(
            "{SCHEME} {} {}",
            self.nonce,
            hex(mac(self.token, Prover::Client, &self.nonce, self.server).as_ref())
        )
    }

    /// Whether the server has responded with the proof that it has the token.
    pub fn is_met_by(&self, proof: &str) -> bool {
        verify(self.token, Prover::Server, (&self.nonce, self.server), proof)
    }
}

/// The server's proof for a client whose `authorization` proves that it has the token. `server` is the local address of the
/// connection.
pub(crate) fn respond(token: &AdminToken, authorization: &[u8], server: SocketAddr) -> Option<String> {
    let mut words = std::str::from_utf8(authorization).ok()?.split(' ');
    let (SCHEME, Some(nonce), Some(proof), None) = (words.next()?, words.next(), words.next(), words.next())
    else {
        return None;
    };
    let is_proven = nonce.len() == 2 * NONCE_BYTES && verify(token, Prover::Client, (nonce, server), proof);
    is_proven.then(|| hex(mac(token, Prover::Server, nonce, server).as_ref()))
}

fn verify(token: &AdminToken, prover: Prover, (nonce, server): (&str, SocketAddr), proof: &str) -> bool {
    let expected = hex(mac(token, prover, nonce, server).as_ref());
    aws_lc_rs::constant_time::verify_slices_are_equal(expected.as_bytes(), proof.as_bytes()).is_ok()
}

fn mac(token: &AdminToken, prover: Prover, nonce: &str, server: SocketAddr) -> hmac::Tag {
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.expose().as_bytes());
    let prover = match prover {
        Prover::Client => "client",
        Prover::Server => "server",
    };
    // A socket for both IP versions reports IPv4 addresses as IPv6.
    let server = SocketAddr::new(server.ip().to_canonical(), server.port());
    hmac::sign(&key, format!("tidegate admin {prover} {nonce} {server}").as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn server_with_the_token_at_the_same_address_meets_the_challenge() {
        let token = AdminToken::generate().unwrap();
        let challenge = ServerChallenge::new(&token, at(9900)).unwrap();
        let sent = challenge.authorization();
        assert!(!sent.contains(token.expose()));
        let proof = respond(&token, sent.as_bytes(), "[::ffff:127.0.0.1]:9900".parse().unwrap()).unwrap();
        assert!(challenge.is_met_by(&proof));
        assert!(!ServerChallenge::new(&token, at(9900)).unwrap().is_met_by(&proof), "another nonce");
    }

    #[test]
    fn server_without_the_token_or_at_another_address_does_not_meet_the_challenge() {
        let (token, other) = (AdminToken::generate().unwrap(), AdminToken::generate().unwrap());
        let challenge = ServerChallenge::new(&token, at(9900)).unwrap();
        let sent = challenge.authorization();
        assert_eq!(respond(&other, sent.as_bytes(), at(9900)), None);
        assert_eq!(respond(&token, sent.as_bytes(), at(9901)), None, "relayed to the API at another address");
        // The client's own proof, sent back.
        let reflected = sent.rsplit(' ').next().unwrap();
        assert!(!challenge.is_met_by(reflected) && !challenge.is_met_by(""));
    }

    #[test]
    fn client_without_the_token_gets_no_proof() {
        let token = AdminToken::generate().unwrap();
        let nonce = "0".repeat(2 * NONCE_BYTES);
        for sent in [
            "",
            "Tidegate-Proof",
            &format!("Tidegate-Proof {nonce}"),
            &format!("Tidegate-Proof {nonce} {nonce}"),
        ] {
            assert_eq!(respond(&token, sent.as_bytes(), at(9900)), None, "{sent}");
        }
    }
}
