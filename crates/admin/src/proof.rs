//! Proof that both ends of a connection have the token, without sending it.
//!
//! Any process of the machine can listen on the address of an admin API that is not running, and would receive the token of
//! the next command. So a command first sends `GET /v1/proof` with a random nonce and a MAC of it, and the API responds with
//! another MAC. The key of both is the token. Both include the addresses of the connection as each end sees them, so a proof
//! cannot be relayed over another connection. A client without the token gets no proof: it could try to guess a weak token
//! with it.

use std::fmt::Write;
use std::net::SocketAddr;

use aws_lc_rs::hmac;

use crate::token::{AdminToken, AdminTokenError};

/// The path that proves.
pub(crate) const PROOF_PATH: &str = "/v1/proof";
/// The scheme in `Authorization`.
const SCHEME: &str = "Tidegate-Proof";
const NONCE_BYTES: usize = 16;

/// The addresses of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionAddresses {
    /// Where the client has connected from.
    pub client: SocketAddr,
    /// Where the client has connected to.
    pub server: SocketAddr,
}

/// The end of a connection that proves.
#[derive(Clone, Copy)]
enum Prover {
    Client,
    Server,
}

/// The challenge of a client for the admin API at the other end of a connection.
#[derive(Debug)]
pub struct ServerChallenge<'t> {
    token: &'t AdminToken,
    nonce: String,
    connection: ConnectionAddresses,
}

impl<'t> ServerChallenge<'t> {
    /// The path to request.
    pub const PATH: &'static str = PROOF_PATH;

    /// A new challenge.
    pub fn new(token: &'t AdminToken, connection: ConnectionAddresses) -> Result<Self, AdminTokenError> {
        let mut nonce = [0; NONCE_BYTES];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| AdminTokenError::NoRandomness)?;
        Ok(Self { token, nonce: hex(&nonce), connection })
    }

    /// The value of `Authorization`.
    pub fn authorization(&self) -> String {
        format!(
            "{SCHEME} {} {}",
            self.nonce,
            hex(mac(self.token, Prover::Client, &self.nonce, self.connection).as_ref())
        )
    }

    /// Whether the server has responded with the proof that it has the token.
    pub fn is_met_by(&self, proof: &str) -> bool {
        verify(self.token, Prover::Server, (&self.nonce, self.connection), proof)
    }
}

/// The server's proof for a client whose `authorization` proves that it has the token.
pub(crate) fn respond(
    token: &AdminToken,
    authorization: &[u8],
    connection: ConnectionAddresses,
) -> Option<String> {
    let mut words = std::str::from_utf8(authorization).ok()?.split(' ');
    let (SCHEME, Some(nonce), Some(proof), None) = (words.next()?, words.next(), words.next(), words.next())
    else {
        return None;
    };
    let is_proven =
        nonce.len() == 2 * NONCE_BYTES && verify(token, Prover::Client, (nonce, connection), proof);
    is_proven.then(|| hex(mac(token, Prover::Server, nonce, connection).as_ref()))
}

fn verify(
    token: &AdminToken,
    prover: Prover,
    (nonce, connection): (&str, ConnectionAddresses),
    proof: &str,
) -> bool {
    let expected = hex(mac(token, prover, nonce, connection).as_ref());
    aws_lc_rs::constant_time::verify_slices_are_equal(expected.as_bytes(), proof.as_bytes()).is_ok()
}

fn mac(token: &AdminToken, prover: Prover, nonce: &str, connection: ConnectionAddresses) -> hmac::Tag {
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.expose().as_bytes());
    let prover = match prover {
        Prover::Client => "client",
        Prover::Server => "server",
    };
    // A socket for both IP versions reports IPv4 addresses as IPv6. Zones differ between the ends.
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let (client, server) = (plain(connection.client), plain(connection.server));
    hmac::sign(&key, format!("tidegate admin {prover} {nonce} {client} {server}").as_bytes())
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

    fn connection(client: u16, server: u16) -> ConnectionAddresses {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        ConnectionAddresses { client: at(client), server: at(server) }
    }

    #[test]
    fn server_with_the_token_on_the_same_connection_meets_the_challenge() {
        let token = AdminToken::generate().unwrap();
        let challenge = ServerChallenge::new(&token, connection(40_000, 9900)).unwrap();
        let sent = challenge.authorization();
        assert!(!sent.contains(token.expose()));
        let mapped = |port| SocketAddr::new("::ffff:127.0.0.1".parse().unwrap(), port);
        let seen = ConnectionAddresses { client: mapped(40_000), server: mapped(9900) };
        let proof = respond(&token, sent.as_bytes(), seen).unwrap();
        assert!(challenge.is_met_by(&proof));
        let other = ServerChallenge::new(&token, connection(40_000, 9900)).unwrap();
        assert!(!other.is_met_by(&proof), "another nonce");
    }

    #[test]
    fn server_without_the_token_or_on_another_connection_does_not_meet_the_challenge() {
        let (token, other) = (AdminToken::generate().unwrap(), AdminToken::generate().unwrap());
        let challenge = ServerChallenge::new(&token, connection(40_000, 9900)).unwrap();
        let sent = challenge.authorization();
        assert_eq!(respond(&other, sent.as_bytes(), connection(40_000, 9900)), None);
        let relayed = [connection(40_000, 9901), connection(40_001, 9900)];
        for relayed in relayed {
            assert_eq!(respond(&token, sent.as_bytes(), relayed), None, "{relayed:?}");
        }
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
            assert_eq!(respond(&token, sent.as_bytes(), connection(40_000, 9900)), None, "{sent}");
        }
    }
}
