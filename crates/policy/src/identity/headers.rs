//! Checks of the headers that identify clients.
//!
//! The gateway counts the client that these headers name, and the upstream serves the client that it reads from them. If
//! the two could differ, the request is rejected, or the header is removed before it is read.

use http::HeaderMap;
use http::header::{CONNECTION, COOKIE, FORWARDED, HeaderName, TE, UPGRADE};

use super::{CookieName, Fingerprint, IdentitySource, IdentitySpec};
use crate::plan::{Plan, RuleCost, RuleMatch, UnderscoreHeaders};
use crate::request::{HeaderTraits, has_unusual_character, remove_proxy_headers};

/// The header checks of a policy. Built once per policy.
#[derive(Debug)]
pub struct HeaderRules {
    api_key: Option<HeaderName>,
    cookie: Option<CookieName>,
    /// Headers that may appear only once.
    single: Vec<HeaderName>,
    /// Headers that only a trusted proxy may send.
    proxied: Vec<HeaderName>,
    /// All headers that identify the client.
    identity: Vec<HeaderName>,
    /// The headers that rules read.
    of_rules: Vec<HeaderName>,
    /// Header names with an underscore or another unusual character that the policy uses.
    unusual: Vec<HeaderName>,
    /// Identity headers with such a name, renamed with dashes: some servers confuse the two.
    aliases: Vec<HeaderName>,
}

/// Why the headers of a request are ambiguous, or why its credentials are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A header that identifies the client is repeated. Servers disagree about which value they use.
    #[error("duplicate header `{0}`; send it once")]
    Repeated(HeaderName),
    /// An API key contains a comma. Servers may parse it as a list of two keys.
    #[error("header `{0}` contains a comma; send one API key without a comma")]
    Comma(HeaderName),
    /// An API key contains a byte that is not a visible character of ASCII. Some servers remove such bytes, and others do not.
    #[error("header `{0}` contains a character outside of ASCII; send the API key without it")]
    KeyCharacter(HeaderName),
    /// The cookie that identifies the client has several readings.
    #[error(
        "cookie `{0}` contains a quote, a backslash, a comma, white space or a character outside of ASCII; percent-encode it"
    )]
    Cookie(String),
    /// A header contains more tokens than are verified.
    #[error("header `{0}` contains too many tokens; send one")]
    TooManyTokens(HeaderName),
    /// The tokens in a header name different users, tenants or tiers. Servers disagree about which token they use.
    #[error("the tokens in header `{0}` name different users, tenants or tiers; send one token")]
    DifferentTokens(HeaderName),
    /// A header contains no valid token, and the policy rejects such requests.
    #[error("header `{0}` contains no valid token; send a token that is signed and has not expired")]
    InvalidToken(HeaderName),
    /// A header contains several listed API keys. Servers disagree about which of them they use.
    #[error("header `{0}` contains different API keys; send one key")]
    SeveralKeys(HeaderName),
    /// An API key is not listed, and the policy rejects such requests.
    #[error("the API key in header `{0}` is not valid; send a valid key, or none")]
    UnknownKey(HeaderName),
    /// A header that the policy does not use differs only in dashes and unusual characters from one that it uses. Many servers read
    /// both as the same header.
    #[error("many servers read header `{}` as `{}`; send `{}`", .0.sent, .0.used, .0.used)]
    OtherSpelling(Box<ConfusedHeaders>),
    /// `Connection` lists a header that limits depend on, which would remove it.
    #[error("`Connection` lists the header `{0}`, which limits depend on; remove it from `Connection`")]
    NamedInConnection(HeaderName),
    /// A trusted proxy wrote one of the two forwarding headers and forwarded the other one from the client.
    #[error(
        "`X-Forwarded-For` and `Forwarded` name different clients; configure the proxy to set one of them and remove the other"
    )]
    Forwarding,
}

/// Two headers that servers read as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfusedHeaders {
    /// The header of the request.
    pub sent: HeaderName,
    /// The header that the policy uses.
    pub used: HeaderName,
}

impl HeaderError {
    /// The value of `WWW-Authenticate`, if the status is 401 and not 400.
    pub fn challenge(&self) -> Option<&'static str> {
        match self {
            Self::InvalidToken(_) => Some("Bearer error=\"invalid_token\""),
            Self::UnknownKey(_) => Some("ApiKey"),
            _ => None,
        }
    }
}

impl HeaderRules {
    /// The rules of `plan`.
    pub fn new(plan: &Plan) -> Self {
        let IdentitySpec { api_key, user, tenant, tier, fingerprint, cookie, .. } = &plan.identities.spec;
        let sources = || [user, tenant, tier].into_iter().flatten();
        let proxied: Vec<_> = sources().filter_map(IdentitySource::header).cloned().collect();
        let tokens = sources().filter_map(|source| match source {
            IdentitySource::Claim(claim) => Some(claim.header()),
            IdentitySource::Header(_) => None,
        });
        let single: Vec<_> = api_key.iter().chain(&proxied).chain(tokens).cloned().collect();
        let mut identity = single.clone();
        identity.extend(fingerprint.iter().flat_map(Fingerprint::headers).cloned());
        identity.extend(cookie.is_some().then_some(COOKIE));
        let of_rules = used_by_rules(plan);
        let mut unusual: Vec<_> = of_rules.iter().chain(&identity).cloned().collect();
        unusual.retain(|name| has_unusual_character(name.as_str()));
        let aliases = identity.iter().filter(|name| has_unusual_character(name.as_str()));
        let aliases = aliases.filter_map(|name| with_dashes(name).parse().ok()).collect();
        let (api_key, cookie) = (api_key.clone(), cookie.clone());
        Self { api_key, cookie, single, proxied, identity, of_rules, unusual, aliases }
    }

    /// All headers that identify the client.
    pub fn identity_headers(&self) -> &[HeaderName] {
        &self.identity
    }

    /// Runs all checks and removes the headers that the peer is not allowed to send. `traits` are those of the headers.
    pub(crate) fn apply(
        &self,
        headers: &mut HeaderMap,
        traits: HeaderTraits,
        is_trusted: bool,
        underscored: UnderscoreHeaders,
    ) -> Result<(), HeaderError> {
        if underscored == UnderscoreHeaders::Drop {
            if traits.unusual_name {
                self.remove_unusual(headers);
            }
            remove(headers, &self.aliases);
        }
        self.check(headers)?;
        if traits.connection {
            self.check_connection(headers)?;
        }
        if !is_trusted {
            remove(headers, &self.proxied);
            if traits.proxy {
                remove_proxy_headers(headers);
            }
        }
        Ok(())
    }

    /// Removes trailers that a client may only send as headers, or not at all. Limits have not counted their identities.
    pub fn apply_to_trailers(&self, trailers: &mut HeaderMap, underscored: UnderscoreHeaders) {
        remove_proxy_headers(trailers);
        remove(trailers, &self.identity);
        if underscored == UnderscoreHeaders::Drop {
            self.remove_unusual(trailers);
            remove(trailers, &self.aliases);
        }
    }

    /// Headers that are ignored unless a trusted proxy sends them.
    pub(crate) fn proxied(&self) -> &[HeaderName] {
        &self.proxied
    }

    /// Checks that every identity in `headers` is unambiguous.
    fn check(&self, headers: &HeaderMap) -> Result<(), HeaderError> {
        // Fast path: no header is repeated.
        if headers.len() != headers.keys_len() {
            let is_repeated = |name: &&HeaderName| headers.get_all(*name).iter().nth(1).is_some();
            if let Some(name) = self.single.iter().find(is_repeated) {
                return Err(HeaderError::Repeated(name.clone()));
            }
        }
        if let Some(name) = &self.api_key
            && let Some(key) = headers.get(name)
        {
            let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && *byte != b',';
            match key.as_bytes().iter().find(|byte| !is_plain(byte)) {
                Some(b',') => return Err(HeaderError::Comma(name.clone())),
                Some(_) => return Err(HeaderError::KeyCharacter(name.clone())),
                None => {}
            }
        }
        match &self.cookie {
            Some(cookie) if !cookie.is_unambiguous(headers) => Err(HeaderError::Cookie(cookie.to_string())),
            _ => Ok(()),
        }
    }

    /// Checks that `Connection` does not list a header that identifies the client or that rules read: services would not get it.
    fn check_connection(&self, headers: &HeaderMap) -> Result<(), HeaderError> {
        let lines = headers.get_all(CONNECTION).iter().map(http::HeaderValue::as_bytes);
        // Fast path: the most common values list no header.
        let lines = lines.filter(|line| *line != b"keep-alive" && *line != b"close");
        for name in lines.flat_map(|line| line.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii) {
            let of_rules = self.of_rules.iter().filter(|name| !describes_connection(name));
            let mut read = self.identity.iter().chain(of_rules);
            let is_read = read.any(|one| one.as_str().as_bytes().eq_ignore_ascii_case(name));
            if is_read || is_forwarding(name) {
                let name = HeaderName::from_bytes(name).unwrap_or(CONNECTION);
                return Err(HeaderError::NamedInConnection(name));
            }
        }
        Ok(())
    }

    /// Checks that no header which [`apply`](Self::apply) removes may be read as one that the policy uses. For requests that somebody
    /// else forwards, with all of their headers.
    pub(crate) fn check_spelling(
        &self,
        headers: &HeaderMap,
        underscored: UnderscoreHeaders,
    ) -> Result<(), HeaderError> {
        if underscored == UnderscoreHeaders::Keep {
            return Ok(());
        }
        let is_removed = |name: &&HeaderName| self.is_unusual(name) || self.aliases.contains(name);
        for sent in headers.keys().filter(is_removed) {
            let mut used = self.identity.iter().chain(&self.of_rules);
            if let Some(used) = used.find(|used| with_dashes(used) == with_dashes(sent)) {
                let (sent, used) = (sent.clone(), used.clone());
                return Err(HeaderError::OtherSpelling(Box::new(ConfusedHeaders { sent, used })));
            }
        }
        Ok(())
    }

    /// Removes headers whose name has an underscore or another unusual character, unless the policy uses the name: some servers
    /// treat `x_api_key` or `x.api.key` as `x-api-key`.
    fn remove_unusual(&self, headers: &mut HeaderMap) {
        let names: Vec<_> = headers.keys().filter(|name| self.is_unusual(name)).cloned().collect();
        remove(headers, &names);
    }

    /// Whether a name has an unusual character and the policy does not use it.
    fn is_unusual(&self, name: &HeaderName) -> bool {
        has_unusual_character(name.as_str()) && !self.unusual.contains(name)
    }
}

fn remove(headers: &mut HeaderMap, names: &[HeaderName]) {
    for name in names {
        headers.remove(name);
    }
}

/// The name that some servers read: with a dash for each unusual character.
fn with_dashes(name: &HeaderName) -> String {
    name.as_str().replace(|character: char| !character.is_ascii_alphanumeric(), "-")
}

/// Whether `Connection` lists this header in usual requests.
fn describes_connection(name: &HeaderName) -> bool {
    matches!(*name, UPGRADE | TE) || matches!(name.as_str(), "keep-alive" | "http2-settings")
}

/// Whether this is a forwarding header.
fn is_forwarding(name: &[u8]) -> bool {
    const PREFIX: &[u8] = b"x-forwarded-";
    name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
        || name.eq_ignore_ascii_case(FORWARDED.as_str().as_bytes())
        || name.eq_ignore_ascii_case(b"x-real-ip")
}

/// The request headers that conditions and costs of rules use.
fn used_by_rules(plan: &Plan) -> Vec<HeaderName> {
    let limits = &plan.rate_limits;
    let matches = limits.rules.iter().map(|custom| &custom.matches);
    let matches = matches.chain(limits.concurrent.iter().map(|rule| &rule.matches));
    let mut names: Vec<_> = matches.flat_map(headers_of).collect();
    names.extend(limits.rules.iter().filter_map(|custom| match &custom.cost {
        RuleCost::Header(name) => Some(name.clone()),
        RuleCost::Constant(_) | RuleCost::Body(_) => None,
    }));
    names
}

fn headers_of(matches: &RuleMatch) -> impl Iterator<Item = HeaderName> {
    let conditions = matches.when.iter().flat_map(|when| when.expression.headers()).cloned();
    matches.headers.iter().map(|header| header.name.clone()).chain(conditions)
}

#[cfg(test)]
mod tests;
