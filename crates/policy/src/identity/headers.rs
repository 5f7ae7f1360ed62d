//! Which headers of a request have one meaning, and which of them a peer may send.
//!
//! Limits count the client that these headers name, and the upstream serves the client that it reads from them. A request
//! from which the two could read different clients is rejected, or loses the header before anything reads it.

use http::HeaderMap;
use http::header::{CONNECTION, COOKIE, FORWARDED, HeaderName};

use super::{Fingerprint, IdentitySource, IdentitySpec};
use crate::plan::{Plan, RuleCost, RuleMatch, UnderscoreHeaders};

/// What a policy requires of the headers of a request. Made once for a policy.
#[derive(Debug)]
pub struct HeaderRules {
    api_key: Option<HeaderName>,
    /// Headers that a request has at most once.
    single: Vec<HeaderName>,
    /// Headers that only a trusted proxy may send.
    proxied: Vec<HeaderName>,
    /// All headers that an identity is read from.
    identity: Vec<HeaderName>,
    /// Names with an underscore that the policy uses.
    underscored: Vec<HeaderName>,
    /// The names of identity headers with an underscore, with dashes instead.
    aliases: Vec<HeaderName>,
}

/// Why the headers of a request can be read in two ways.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A header that names the client is there more than once: servers disagree which of them they read.
    #[error("duplicate header `{0}`; send it once")]
    Repeated(HeaderName),
    /// An API key holds a comma: servers may read a list of two keys.
    #[error("header `{0}` contains a comma; send one API key without a comma")]
    Comma(HeaderName),
    /// `Connection` asks to remove a header that says who the client is.
    #[error("`Connection` lists the header `{0}`, which identifies the client; remove it from `Connection`")]
    NamedInConnection(HeaderName),
    /// A trusted proxy wrote one of the two forwarding headers and passed the other one on as the client sent it.
    #[error(
        "`X-Forwarded-For` and `Forwarded` name different clients; configure the proxy to set one of them and remove the other"
    )]
    Forwarding,
}

impl HeaderRules {
    /// The rules of `plan`.
    pub fn new(plan: &Plan) -> Self {
        let IdentitySpec { api_key, user, tenant, fingerprint, cookie, .. } = &plan.identities.spec;
        let sources = || [user, tenant].into_iter().flatten();
        let proxied: Vec<_> = sources().filter_map(IdentitySource::header).cloned().collect();
        let tokens = sources().filter_map(|source| match source {
            IdentitySource::Claim(claim) => Some(claim.header()),
            IdentitySource::Header(_) => None,
        });
        let single: Vec<_> = api_key.iter().chain(&proxied).chain(tokens).cloned().collect();
        let mut identity = single.clone();
        identity.extend(fingerprint.iter().flat_map(Fingerprint::headers).cloned());
        identity.extend(cookie.is_some().then_some(COOKIE));
        let has_underscore = |name: &HeaderName| name.as_str().contains('_');
        let mut underscored = used_by_rules(plan);
        underscored.extend(identity.iter().cloned());
        underscored.retain(has_underscore);
        let aliases = identity.iter().filter(|name| has_underscore(name));
        let aliases = aliases.filter_map(|name| name.as_str().replace('_', "-").parse().ok()).collect();
        Self { api_key: api_key.clone(), single, proxied, identity, underscored, aliases }
    }

    /// Everything at once: checks the headers of a request from a peer that is trusted or not, and removes what it may
    /// not say.
    pub fn apply(
        &self,
        headers: &mut HeaderMap,
        is_trusted: bool,
        underscored: UnderscoreHeaders,
    ) -> Result<(), HeaderError> {
        if underscored == UnderscoreHeaders::Drop {
            self.remove_underscored(headers);
            self.remove_aliases(headers);
        }
        self.check(headers)?;
        self.check_connection(headers)?;
        if !is_trusted {
            self.remove_proxied(headers);
        }
        Ok(())
    }

    /// Headers that count only if a trusted proxy sends them.
    pub(crate) fn proxied(&self) -> &[HeaderName] {
        &self.proxied
    }

    /// Whether every identity in `headers` can be read in one way only.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), HeaderError> {
        // Only if one name has several values, is it worth while to look which.
        if headers.len() != headers.keys_len() {
            let is_repeated = |name: &&HeaderName| headers.get_all(*name).iter().nth(1).is_some();
            if let Some(name) = self.single.iter().find(is_repeated) {
                return Err(HeaderError::Repeated(name.clone()));
            }
        }
        match &self.api_key {
            Some(name) if headers.get(name).is_some_and(|key| key.as_bytes().contains(&b',')) => {
                Err(HeaderError::Comma(name.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Whether `Connection` leaves all headers in place that say who the client is.
    pub fn check_connection(&self, headers: &HeaderMap) -> Result<(), HeaderError> {
        let lines = headers.get_all(CONNECTION).iter().map(http::HeaderValue::as_bytes);
        // These name nothing, and are nearly all there are.
        let lines = lines.filter(|line| *line != b"keep-alive" && *line != b"close");
        for name in lines.flat_map(|line| line.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii) {
            let is_identity =
                self.identity.iter().any(|one| one.as_str().as_bytes().eq_ignore_ascii_case(name));
            if is_identity || is_forwarding(name) {
                let name = HeaderName::from_bytes(name).unwrap_or(CONNECTION);
                return Err(HeaderError::NamedInConnection(name));
            }
        }
        Ok(())
    }

    /// Removes what only a trusted proxy may say of the client.
    pub fn remove_proxied(&self, headers: &mut HeaderMap) {
        for name in &self.proxied {
            headers.remove(name);
        }
    }

    /// Removes headers whose name has an underscore, unless the policy uses the name: some servers read `x_api_key` as
    /// `x-api-key`.
    pub fn remove_underscored(&self, headers: &mut HeaderMap) {
        let is_removed = |name: &&HeaderName| name.as_str().contains('_') && !self.underscored.contains(name);
        let names: Vec<_> = headers.keys().filter(is_removed).cloned().collect();
        for name in names {
            headers.remove(name);
        }
    }

    /// Removes headers that some servers read as an identity header, because its name has an underscore where theirs has a
    /// dash.
    pub fn remove_aliases(&self, headers: &mut HeaderMap) {
        for name in &self.aliases {
            headers.remove(name);
        }
    }

    /// Removes trailers that are named as a header that says who the client is: nothing has counted them.
    pub fn remove_identity(&self, trailers: &mut HeaderMap) {
        for name in &self.identity {
            trailers.remove(name);
        }
    }
}

/// Whether a header says what proxies saw of the client.
fn is_forwarding(name: &[u8]) -> bool {
    const PREFIX: &[u8] = b"x-forwarded-";
    name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
        || name.eq_ignore_ascii_case(FORWARDED.as_str().as_bytes())
        || name.eq_ignore_ascii_case(b"x-real-ip")
}

/// The request headers that conditions and costs of rules read.
fn used_by_rules(plan: &Plan) -> Vec<HeaderName> {
    let limits = &plan.rate_limits;
    let matches = limits.rules.iter().map(|custom| &custom.matches);
    let matches = matches.chain(limits.concurrent.iter().map(|rule| &rule.matches));
    let mut names: Vec<_> = matches.flat_map(named_by).collect();
    names.extend(limits.rules.iter().filter_map(|custom| match &custom.cost {
        RuleCost::Header(name) => Some(name.clone()),
        RuleCost::Constant(_) | RuleCost::Body(_) => None,
    }));
    names
}

fn named_by(matches: &RuleMatch) -> impl Iterator<Item = HeaderName> {
    let conditions = matches.when.iter().flat_map(|when| when.expression.headers()).cloned();
    matches.headers.iter().map(|header| header.name.clone()).chain(conditions)
}

#[cfg(test)]
mod tests;
