//! The certificates that a policy names: whether they can be used, and when they expire.

use std::collections::BTreeSet;

use tidegate_core::{TimeSpan, Timestamp};
use tidegate_gateway::{ServerCertificate, ServerCertificateError};
use tidegate_policy::{CertificatePlan, Plan, Problem, Severity};

const DAY: u64 = 86_400;
/// A certificate that expires within this time is worth a warning.
const EXPIRES_SOON: TimeSpan = TimeSpan::from_secs(14 * DAY);

/// Parses a certificate with its key. The problem names the files.
pub(crate) fn parse(certificate: &CertificatePlan) -> Result<ServerCertificate, Box<Problem>> {
    let CertificatePlan { chain, key, chain_file, key_file } = certificate;
    ServerCertificate::from_pem(chain, key.expose()).map_err(|error| {
        let (file, what, hint) = match error {
            ServerCertificateError::NoCertificate => (
                chain_file,
                format!("{chain_file} holds no certificate"),
                "name the file with the certificate",
            ),
            ServerCertificateError::ChainPem(error) => {
                (chain_file, format!("{chain_file} is not valid PEM: {error}"), "write the file again")
            }
            ServerCertificateError::Chain(error) => (
                chain_file,
                format!("the certificate in {chain_file} is not valid: {error}"),
                "inspect it with `openssl x509 -text -in FILE`",
            ),
            ServerCertificateError::NoKey => (
                key_file,
                format!("{key_file} holds no private key that is not encrypted"),
                "name the file with the key; decrypt a key with `openssl pkey -in FILE -out NEW`",
            ),
            ServerCertificateError::KeyPem(error) => {
                (key_file, format!("{key_file} is not valid PEM: {error}"), "write the file again")
            }
            ServerCertificateError::Key(error) => (
                key_file,
                format!("the private key in {key_file} cannot be used: {error}"),
                "use an RSA, ECDSA or Ed25519 key in PKCS#8",
            ),
            ServerCertificateError::Mismatch => (
                key_file,
                format!("{key_file} does not match {chain_file}"),
                "name the key that the certificate was issued for",
            ),
        };
        Box::new(problem(Severity::Error, file, what, hint))
    })
}

/// Every certificate of `plan` that cannot be used (an error), has expired or soon will (a warning).
pub(crate) fn inspect(plan: &Plan, now: Timestamp) -> Vec<Problem> {
    let mut seen = BTreeSet::new();
    let certificates = plan.listen.iter().filter_map(|listen| listen.tls.as_ref());
    let distinct = certificates.filter(|tls| seen.insert((&tls.chain_file, &tls.key_file)));
    let inspected = distinct.filter_map(|tls| match parse(tls) {
        Err(problem) => Some(*problem),
        Ok(certificate) => {
            let file = &tls.chain_file;
            let expiry = Expiry::at(certificate.expires_at(), now)?;
            let what = expiry.describe(&format!("the certificate in {file}"));
            Some(problem(Severity::Warning, file, what, "renew it"))
        }
    });
    inspected.collect()
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

/// A certificate that has expired or soon will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expiry {
    pub(crate) has_expired: bool,
    /// Full days until then, or since then.
    days: u64,
    at: Timestamp,
}

impl Expiry {
    /// `None` if a certificate that expires `at` that time is good for longer than two weeks from `now` on.
    pub(crate) fn at(at: Timestamp, now: Timestamp) -> Option<Self> {
        let has_expired = at <= now;
        let distance = if has_expired { now.since(at) } else { at.since(now) };
        if !has_expired && distance > EXPIRES_SOON {
            return None;
        }
        Some(Self { has_expired, days: distance.as_micros() / 1_000_000 / DAY, at })
    }

    /// A sentence about `subject`, which has this expiry.
    pub(crate) fn describe(self, subject: &str) -> String {
        let days = match self.days {
            0 => "less than a day".to_owned(),
            1 => "1 day".to_owned(),
            days => format!("{days} days"),
        };
        let at = date(self.at);
        if self.has_expired {
            format!("{subject} expired {days} ago, at {at}")
        } else {
            format!("{subject} expires in {days}, at {at}")
        }
    }
}

/// An instant as people and tools read it, in UTC.
pub(crate) fn date(at: Timestamp) -> String {
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
