//! Who asks, in words that give no secret away.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::identity::{ClientKind, Identity, parts};
use crate::matcher::Matcher;
use crate::render::visible;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Client {
    /// By what the client is known.
    pub kind: &'static str,
    /// The client, as its counters know it; secrets are shortened.
    pub key: String,
    /// How it was found.
    pub how: String,
    /// Its whole address.
    pub address: IpAddr,
    /// Its tier.
    pub tier: Option<String>,
    /// Its tenant.
    pub tenant: Option<String>,
}

impl Client {
    pub(super) fn of(matcher: &Matcher, identity: &Identity<'_>) -> Self {
        let plan = matcher.plan();
        let kind = identity.kind();
        let mut key = Vec::new();
        identity.append(kind, &mut key);
        let passed_over = plan.clients.identify_by.iter().take_while(|other| **other != kind);
        let passed_over: Vec<_> = passed_over.map(|other| other.name()).collect();
        let mut how = match passed_over.as_slice() {
            [] => "the first of `identify_by`".to_owned(),
            absent => format!("no {}", absent.join(", no ")),
        };
        if identity.sent_key().is_some() && identity.api_key().is_none() {
            how.push_str("; the API key that was sent is not in the keys file");
        }
        let lossy = |bytes: &[u8]| shown(&String::from_utf8_lossy(bytes));
        Self {
            kind: kind.name(),
            key: key_text(&key),
            how,
            address: identity.address(),
            tier: matcher.tier(identity).map(|(_, tier)| tier.name.clone()),
            tenant: identity.tenant().map(lossy),
        }
    }
}

/// A counter's client in words.
pub(super) fn key_text(key: &[u8]) -> String {
    if key.is_empty() {
        return "everybody".to_owned();
    }
    let part = |(kind, bytes): (ClientKind, &[u8])| match kind {
        ClientKind::ApiKey | ClientKind::Cookie => format!("{kind} {}", redacted(bytes)),
        ClientKind::Ip => format!("{kind} {}", address(bytes)),
        ClientKind::Fingerprint => format!("{kind} {}", hex(bytes)),
        ClientKind::User | ClientKind::Tenant => format!("{kind} {}", shown(&String::from_utf8_lossy(bytes))),
        ClientKind::Anonymous => kind.to_string(),
    };
    parts(key).map(part).collect::<Vec<_>>().join(" + ")
}

fn address(bytes: &[u8]) -> String {
    if let Some(bytes) = bytes.first_chunk::<4>().filter(|_| bytes.len() == 4) {
        return IpAddr::from(*bytes).to_string();
    }
    bytes.first_chunk::<16>().map_or_else(|| hex(bytes), |bytes| IpAddr::from(*bytes).to_string())
}

/// A secret, as far as one needs to tell it from others: how it begins, where that gives little away, and a hash.
fn redacted(secret: &[u8]) -> String {
    const SHOWN: usize = 4;
    let hash = hex(Sha256::digest(secret).first_chunk::<4>().map_or(&[], |half| half.as_slice()));
    let prefix = String::from_utf8_lossy(secret);
    let prefix: String =
        if secret.len() >= 3 * SHOWN { prefix.chars().take(SHOWN).collect() } else { String::new() };
    format!("{}…#{hash}", shown(&prefix))
}

fn shown(text: &str) -> String {
    text.chars().take(120).map(visible).collect()
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

    #[test]
    fn a_secret_is_told_apart_and_not_shown() {
        assert_eq!(redacted(b"sk_live_51H_very_secret"), "sk_l…#b59c1698");
        assert!(!redacted(b"short").contains("short"));
        assert_ne!(redacted(b"short"), redacted(b"other"));
    }
}
