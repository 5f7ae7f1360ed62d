//! The client of an explained request, without secrets.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde::Serialize;

use crate::identity::{ClientName, Identity};
use crate::matcher::Matcher;
use crate::render::visible;

/// The client of an explained request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExplainedClient {
    /// The kind of identity that identifies the client.
    pub kind: &'static str,
    /// The name of the client in counters; secrets are shortened.
    pub key: String,
    /// Why this identity was chosen.
    pub how: String,
    /// The full address.
    pub address: IpAddr,
    /// Its tier.
    pub tier: Option<String>,
    /// Its tenant.
    pub tenant: Option<String>,
}

impl ExplainedClient {
    /// `sent` are the identities of the request before headers were removed.
    pub(super) fn new(matcher: &Matcher, identity: &Identity<'_>, sent: &Identity<'_>) -> Self {
        let plan = matcher.plan();
        let kind = identity.kind();
        let mut key = Vec::new();
        identity.append(kind, &mut key);
        let absent = plan.clients.identify_by.iter().take_while(|other| **other != kind);
        let absent: Vec<_> = absent.map(|other| other.name()).collect();
        let mut how = match absent.as_slice() {
            [] => "first of `identify_by`".to_owned(),
            absent => format!("no {}", absent.join(", no ")),
        };
        if sent.sent_key().is_some() && identity.api_key().is_none() {
            how.push_str(match plan.clients.tiers.file {
                Some(_) => "; the API key is ignored: it is not in the keys file",
                None => "; the API key is ignored: no keys file to verify it",
            });
        }
        for name in matcher.header_rules().proxied() {
            if sent.facts().headers.contains_key(name) && !identity.facts().headers.contains_key(name) {
                // Writing to a `String` cannot fail.
                let _ = write!(how, "; header `{name}` is ignored: the peer is not a trusted proxy");
            }
        }
        for problem in sent.token_problems() {
            how.push_str("; ");
            how.push_str(&problem);
        }
        how.push_str(&tier_note(matcher, identity));
        let lossy = |bytes: &[u8]| sanitize(&String::from_utf8_lossy(bytes));
        Self {
            kind: kind.name(),
            key: ClientName::from_key(&key).to_string(),
            how,
            address: identity.address(),
            tier: matcher.tier(identity).map(|(_, tier)| tier.name.clone()),
            tenant: identity.tenant().map(lossy),
        }
    }
}

/// Why the tier that a request names does not count.
fn tier_note(matcher: &Matcher, identity: &Identity<'_>) -> String {
    let tiers = &matcher.plan().rate_limits.tiers;
    match identity.sent_tier() {
        Some(name) if tiers.iter().all(|tier| tier.name.as_bytes() != name) => {
            let name = sanitize(&String::from_utf8_lossy(name));
            format!("; the tier `{name}` that it names is not in `rate_limits.tiers`")
        }
        None if identity.has_token_without_tier() => "; the token grants no tier".to_owned(),
        _ => String::new(),
    }
}

/// Shortens text of a request and replaces control characters.
pub(super) fn sanitize(text: &str) -> String {
    text.chars().take(120).map(visible).collect()
}
