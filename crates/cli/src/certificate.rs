//! Validates the certificates of a policy and reports when they expire.

use std::collections::BTreeSet;

use tidegate_core::{TimeSpan, Timestamp};
use tidegate_listener::{ClientAuthority, ServerCertificate, ServerCertificateError};
use tidegate_policy::{CertificatePlan, ClientCaPlan, Plan, Problem, Severity};

const DAY: u64 = 86_400;
/// A certificate that expires within this time gets a warning.
const EXPIRES_SOON: TimeSpan = TimeSpan::from_secs(14 * DAY);

/// Parses the authorities that issue the certificates of clients. The problem names the file.
pub(crate) fn parse_authority(authority: &ClientCaPlan) -> Result<ClientAuthority, Box<Problem>> {
    let ClientCaPlan { pem, file } = authority;
    ClientAuthority::from_pem(pem).map_err(|error| {
        let what = format!("invalid certificate authority in {file}: {error}");
        let hint = "specify the certificate that signs the certificates of clients, in PEM format";
        Box::new(problem(Severity::Error, file, what, hint))
    })
}

/// Parses a certificate with its key. The problem names the files.
pub(crate) fn parse(certificate: &CertificatePlan) -> Result<ServerCertificate, Box<Problem>> {
    let CertificatePlan { chain, key, chain_file, key_file } = certificate;
    ServerCertificate::from_pem(chain, key.expose()).map_err(|error| {
        let (file, what, hint) = match error {
            ServerCertificateError::NoCertificate => (
                chain_file,
                format!("{chain_file} contains no certificate"),
                "specify the file that contains the certificate in PEM format",
            ),
            ServerCertificateError::ChainPem(error) => {
                (chain_file, format!("{chain_file} is not valid PEM: {error}"), "replace the file with a valid PEM file")
            }
            ServerCertificateError::Chain(error) => (
                chain_file,
                // rustls words all its errors for a certificate that a peer has sent.
                format!(
                    "invalid certificate in {chain_file}: {}",
                    error.to_string().trim_start_matches("invalid peer certificate: ")
                ),
                "inspect it with `openssl x509 -text -in FILE`",
            ),
            ServerCertificateError::NoKey => (
                key_file,
                format!("{key_file} contains no unencrypted private key"),
                "specify the file that contains the key; decrypt an encrypted key with `openssl pkey -in FILE -out NEW`",
            ),
            ServerCertificateError::KeyPem(error) => {
                (key_file, format!("{key_file} is not valid PEM: {error}"), "replace the file with a valid PEM file")
            }
            ServerCertificateError::Key(error) => (
                key_file,
                format!("unsupported private key in {key_file}: {error}"),
                "use an RSA, ECDSA or Ed25519 key in PKCS#8 format",
            ),
            ServerCertificateError::Mismatch => (
                key_file,
                format!("{key_file} does not match {chain_file}"),
                "specify the private key that belongs to the certificate",
            ),
        };
        Box::new(problem(Severity::Error, file, what, hint))
    })
}

/// Reports each invalid certificate of `plan` as an error, and each one that has expired or expires soon as a warning.
pub(crate) fn inspect(plan: &Plan, now: Timestamp) -> Vec<Problem> {
    let mut seen = BTreeSet::new();
    let service = plan.service.listeners().filter_map(|(_, listener)| listener.tls.as_ref());
    let certificates = plan.listen.iter().filter_map(|listen| listen.tls.as_ref()).chain(service);
    let distinct = certificates.filter(|tls| seen.insert((&tls.chain_file, &tls.key_file)));
    let inspected = distinct.filter_map(|tls| match parse(tls) {
        Err(problem) => Some(*problem),
        Ok(certificate) => {
            let file = &tls.chain_file;
            let expiry = Expiry::at(certificate.expires_at(), now)?;
            let what = expiry.describe(&format!("the certificate in {file}"));
            Some(problem(Severity::Warning, file, what, "renew the certificate"))
        }
    });
    let authorities = plan.service.listeners().filter_map(|(_, listener)| listener.client_ca.as_ref());
    let invalid = authorities.filter_map(|authority| Some(*parse_authority(authority).err()?));
    inspected.chain(invalid).collect()
}

fn problem(severity: Severity, file: &str, what: String, hint: &str) -> Problem {
    Problem {
        severity,
        file: file.to_owned(),
        line: 0,
        column: 0,
        path: String::new(),
        what,
        expected: None,
        hint: Some(hint.to_owned()),
        excerpt: None,
    }
}

/// The expiry of a certificate that has expired or expires soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expiry {
    pub(crate) has_expired: bool,
    /// Full days until the expiry, or since.
    days: u64,
    at: Timestamp,
}

impl Expiry {
    /// Returns `None` if `at` is more than [`EXPIRES_SOON`] after `now`.
    pub(crate) fn at(at: Timestamp, now: Timestamp) -> Option<Self> {
        let has_expired = at <= now;
        let distance = if has_expired { now.since(at) } else { at.since(now) };
        if !has_expired && distance > EXPIRES_SOON {
            return None;
        }
        Some(Self { has_expired, days: distance.as_micros() / 1_000_000 / DAY, at })
    }

    /// Describes when `subject` expires.
    pub(crate) fn describe(self, subject: &str) -> String {
        let days = match self.days {
            0 => "less than a day".to_owned(),
            1 => "1 day".to_owned(),
            days => format!("{days} days"),
        };
        let at = format_time(self.at);
        if self.has_expired {
            format!("{subject} expired {days} ago, at {at}")
        } else {
            format!("{subject} expires in {days}, at {at}")
        }
    }
}

/// Formats a time as RFC 3339 in UTC.
pub(crate) fn format_time(at: Timestamp) -> String {
    let seconds = i64::try_from(at.as_micros() / 1_000_000).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_within_two_weeks_or_past_is_described_in_days() {
        let now = Timestamp::from_secs(1_800_000_000);
        let described =
            |seconds: u64| Expiry::at(Timestamp::from_secs(seconds), now).map(|expiry| expiry.describe("it"));
        let at = 1_800_000_000;
        assert_eq!(described(at + 14 * DAY + 1), None);
        for (seconds, expected) in [
            (at + 14 * DAY, "it expires in 14 days, at 2027-01-29T08:00:00Z"),
            (at + 2 * DAY - 1, "it expires in 1 day, at 2027-01-17T07:59:59Z"),
            (at + 1, "it expires in less than a day, at 2027-01-15T08:00:01Z"),
            (at, "it expired less than a day ago, at 2027-01-15T08:00:00Z"),
            (at - 3 * DAY, "it expired 3 days ago, at 2027-01-12T08:00:00Z"),
        ] {
            assert_eq!(described(seconds).as_deref(), Some(expected));
        }
    }
}
