//! Identification of clients.
//!
//! A request can carry several identities: an API key, a user, a tenant, an address, a cookie, a fingerprint of its
//! software. [`Identities`] configures where each is found. [`Identity`] finds them for one request, lazily and only once.
//! Only the verification of a token allocates.
//!
//! An identity that cannot be verified is ignored, and the next one is used: an empty value, a token without a valid
//! signature, a key that is not in the directory (or any key, if there is no directory), a user or tenant in a header from an
//! untrusted peer. So no client gets an unused counter by inventing an identity. A service may accept more than this, so every
//! reading that it may use counts: [`HeaderRules`] and [`Matcher::check_credentials`](crate::Matcher::check_credentials)
//! reject ambiguous headers before this.

mod address;
mod body;
mod claims_text;
mod cookie;
mod fingerprint;
mod forwarded;
mod headers;
mod jwt;
mod key;
mod kind;
mod name;
mod redact;
mod rule_client;
mod token;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;
use std::net::IpAddr;

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName};
use tidegate_core::Timestamp;

pub use address::{Addresses, ForwardingHeader, PrefixError, TrustedChain};
pub(crate) use body::BodyUser;
pub use body::MAX_USER_BODY;
pub use cookie::{CookieName, CookieNameError};
pub use fingerprint::{Fingerprint, FingerprintError};
pub use headers::{ConfusedHeaders, HeaderError, HeaderRules};
pub use jwt::{ClaimSource, Claims, KeysError, TokenError, Verifier};
pub use kind::ClientKind;
pub(crate) use name::LookupKey;
pub use name::{ClientName, ClientNameError};
pub use rule_client::RuleClient;

use self::jwt::TokenReading;
use crate::directory::{Directory, Grant};
use crate::facts::Facts;

/// Where to find a user or a tenant.
#[derive(Debug, Clone)]
pub enum IdentitySource {
    /// In a header, which is only used if the peer is a trusted proxy.
    Header(HeaderName),
    /// In a claim of a signed token.
    Claim(ClaimSource),
}

impl IdentitySource {
    /// The header that names the user or tenant itself.
    fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(name) => Some(name),
            Self::Claim(_) => None,
        }
    }
}

/// The configuration of [`Identities`].
#[derive(Debug, Clone)]
pub struct IdentitySpec {
    /// A client is identified by the first of these that is present.
    pub identify_by: Vec<ClientKind>,
    /// The header with the API key.
    pub api_key: Option<HeaderName>,
    /// Whether API keys are accepted without a directory. Then every made-up key is a new client.
    pub accepts_unverified_keys: bool,
    /// Where to find the user.
    pub user: Option<IdentitySource>,
    /// Where to find the tenant, unless the directory assigns one to the API key.
    pub tenant: Option<IdentitySource>,
    /// Where to find the tier, unless the directory assigns one to the API key. A claim is one of the token of the user or the tenant.
    pub tier: Option<IdentitySource>,
    /// How addresses are found and counted.
    pub addresses: Addresses,
    /// The fingerprint.
    pub fingerprint: Option<Fingerprint>,
    /// The cookie that identifies a client.
    pub cookie: Option<CookieName>,
}

impl Default for IdentitySpec {
    /// A verified API key in `X-API-Key`, or the address.
    fn default() -> Self {
        Self {
            identify_by: vec![ClientKind::ApiKey, ClientKind::Ip],
            api_key: Some(HeaderName::from_static("x-api-key")),
            accepts_unverified_keys: false,
            user: None,
            tenant: None,
            tier: None,
            addresses: Addresses::default(),
            fingerprint: None,
            cookie: None,
        }
    }
}

/// Finds identities in requests. The configuration is valid by construction.
#[derive(Debug, Clone)]
pub struct Identities {
    spec: IdentitySpec,
}

/// Why `identify_by` is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It is empty.
    #[error("`identify_by` is empty; add at least `ip`")]
    Empty,
    /// It lists a kind twice.
    #[error("`{}` is listed twice", .kind.name())]
    Duplicate {
        /// The kind.
        kind: ClientKind,
    },
    /// It lists a kind that is not configured.
    #[error("`identify_by` lists `{0}`, which is not configured; add `clients.{0}`", .kind.name())]
    NotConfigured {
        /// The kind.
        kind: ClientKind,
    },
}

impl Identities {
    /// Checks that every kind in `identify_by` is configured.
    pub fn new(spec: IdentitySpec) -> Result<Self, IdentityError> {
        if spec.identify_by.is_empty() {
            return Err(IdentityError::Empty);
        }
        let identities = Self { spec };
        let kinds = &identities.spec.identify_by;
        for (index, &kind) in kinds.iter().enumerate() {
            if kinds[..index].contains(&kind) {
                return Err(IdentityError::Duplicate { kind });
            }
            if !identities.can_find(kind) {
                return Err(IdentityError::NotConfigured { kind });
            }
        }
        Ok(identities)
    }

    /// Whether an identity of this kind can be found. A tenant always can, as a directory may assign it.
    pub fn can_find(&self, kind: ClientKind) -> bool {
        match kind {
            ClientKind::ApiKey => self.spec.api_key.is_some(),
            ClientKind::User => self.spec.user.is_some(),
            ClientKind::Cookie => self.spec.cookie.is_some(),
            ClientKind::Fingerprint => self.spec.fingerprint.is_some(),
            ClientKind::Tenant | ClientKind::Ip => true,
            ClientKind::Anonymous => false,
        }
    }

    /// How addresses are found and counted.
    pub fn addresses(&self) -> &Addresses {
        &self.spec.addresses
    }

    /// The sources of users and tenants that are claims of tokens.
    pub(crate) fn token_sources(&self) -> impl Iterator<Item = &ClaimSource> {
        let sources = [&self.spec.user, &self.spec.tenant].into_iter().flatten();
        sources.filter_map(|source| match source {
            IdentitySource::Claim(source) => Some(source),
            IdentitySource::Header(_) => None,
        })
    }

    /// The source of tiers that is a claim of a token.
    pub(crate) fn tier_claim(&self) -> Option<&ClaimSource> {
        match self.spec.tier.as_ref()? {
            IdentitySource::Claim(source) => Some(source),
            IdentitySource::Header(_) => None,
        }
    }

    /// The API key of a request as sent, and its header.
    pub(crate) fn sent_key<'h>(&self, headers: &'h HeaderMap) -> Option<(&HeaderName, &'h [u8])> {
        let name = self.spec.api_key.as_ref()?;
        Some((name, key_in(headers, name)?))
    }

    /// Whether `directory` lists a key that services may read in the header of the API key.
    pub(crate) fn has_listed_key(&self, headers: &HeaderMap, directory: &Directory) -> bool {
        let mut names = self.spec.api_key.iter();
        names.any(|name| keys_in(headers, name).any(|key| directory.get(&key).is_some()))
    }

    /// Whether API keys are in `Authorization`, where services find them in several places.
    pub(crate) fn has_key_in_authorization(&self) -> bool {
        self.spec.api_key.as_ref() == Some(&AUTHORIZATION)
    }

    /// The header with several keys of `directory`, of which services may read any.
    pub(crate) fn header_with_several_keys(
        &self,
        headers: &HeaderMap,
        directory: &Directory,
    ) -> Option<&HeaderName> {
        let name = self.spec.api_key.as_ref().filter(|name| **name == AUTHORIZATION)?;
        let value = single(headers, name).filter(|value| !key::is_usual(value))?;
        let plain = Some(Cow::Borrowed(key::without_scheme(value)));
        let mut listed =
            plain.into_iter().chain(key::in_words(value)).filter(|key| directory.get(key).is_some());
        let first = listed.next()?;
        listed.any(|other| other != first).then_some(name)
    }

    /// Prepares the identification of one request. An API key that is not in the directory is ignored, and so is any key
    /// without a directory, unless [`IdentitySpec::accepts_unverified_keys`] is set.
    pub fn identify<'a>(
        &'a self,
        facts: &'a Facts<'a>,
        directory: Option<&'a Directory>,
        now: Timestamp,
    ) -> Identity<'a> {
        Identity {
            spec: &self.spec,
            facts,
            directory,
            now,
            api_key: OnceCell::new(),
            address: OnceCell::new(),
            is_peer_trusted: OnceCell::new(),
            user_token: OnceCell::new(),
            tenant_token: OnceCell::new(),
        }
    }
}

/// The identities of one request.
#[derive(Debug)]
pub struct Identity<'a> {
    spec: &'a IdentitySpec,
    facts: &'a Facts<'a>,
    directory: Option<&'a Directory>,
    now: Timestamp,
    api_key: OnceCell<Option<ResolvedKey<'a>>>,
    address: OnceCell<IpAddr>,
    is_peer_trusted: OnceCell<bool>,
    user_token: OnceCell<Option<TokenReading>>,
    tenant_token: OnceCell<Option<TokenReading>>,
}

/// Identities of a request that count, but must not be locked out: other clients may have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NotLockedOut {
    /// The user of a token that is not valid now.
    user: bool,
    /// The tenant of a token that is not valid now.
    tenant: bool,
    /// The address of a trusted proxy: all clients whose address it does not report have it.
    proxy: bool,
}

impl NotLockedOut {
    /// The same, and the user.
    pub(crate) fn with_user(self) -> Self {
        Self { user: true, ..self }
    }

    /// Whether the identity of this kind is one of them.
    pub(crate) fn contains(self, kind: ClientKind) -> bool {
        match kind {
            ClientKind::User => self.user,
            ClientKind::Tenant => self.tenant,
            ClientKind::Ip => self.proxy,
            _ => false,
        }
    }
}

struct ResolvedKey<'a> {
    key: Cow<'a, [u8]>,
    grant: Option<Grant<'a>>,
}

impl fmt::Debug for ResolvedKey<'_> {
    /// Shows only the length of the key, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResolvedKey({} bytes, {:?})", self.key.len(), self.grant)
    }
}

impl<'a> Identity<'a> {
    /// The request.
    pub fn facts(&self) -> &'a Facts<'a> {
        self.facts
    }

    /// The kind that identifies the client: the first of `identify_by` that is present.
    pub fn kind(&self) -> ClientKind {
        let present = |kind: &ClientKind| match kind {
            ClientKind::ApiKey => self.api_key().is_some(),
            ClientKind::User => self.user().is_some(),
            ClientKind::Tenant => self.tenant().is_some(),
            ClientKind::Ip => true,
            ClientKind::Cookie => self.cookie().is_some(),
            ClientKind::Fingerprint => self.fingerprint().is_some(),
            ClientKind::Anonymous => false,
        };
        self.spec.identify_by.iter().copied().find(present).unwrap_or(ClientKind::Anonymous)
    }

    /// The API key, if it is verified or verification is off.
    pub fn api_key(&self) -> Option<&[u8]> {
        self.resolved_key().map(|resolved| &*resolved.key)
    }

    /// The API key as sent, verified or not.
    pub(crate) fn sent_key(&self) -> Option<&'a [u8]> {
        key_in(self.facts.headers, self.spec.api_key.as_ref()?)
    }

    /// All keys that services may read where the request has its API key, verified or not; the most usual one first.
    pub(crate) fn sent_keys(&self) -> impl Iterator<Item = Cow<'a, [u8]>> {
        let headers = self.facts.headers;
        self.spec.api_key.iter().flat_map(move |name| keys_in(headers, name))
    }

    /// The directory's entry for the API key.
    pub fn grant(&self) -> Option<Grant<'a>> {
        self.resolved_key().and_then(|resolved| resolved.grant)
    }

    /// The user.
    pub fn user(&self) -> Option<&[u8]> {
        match self.spec.user.as_ref()? {
            IdentitySource::Header(name) => self.proxied(name),
            IdentitySource::Claim(source) => {
                self.user_tokens(source)?.name(source.claim()).map(str::as_bytes)
            }
        }
    }

    /// The tenant. The directory takes precedence over the request.
    pub fn tenant(&self) -> Option<&[u8]> {
        self.granted_tenant().or_else(|| self.sent_tenant())
    }

    /// The tenant that the directory assigns to the API key.
    pub(crate) fn granted_tenant(&self) -> Option<&'a [u8]> {
        self.grant()?.tenant.map(str::as_bytes)
    }

    /// The tenant that the request itself names.
    pub(crate) fn sent_tenant(&self) -> Option<&[u8]> {
        match self.spec.tenant.as_ref()? {
            IdentitySource::Header(name) => self.proxied(name),
            IdentitySource::Claim(source) => {
                self.tenant_tokens(source)?.name(source.claim()).map(str::as_bytes)
            }
        }
    }

    /// The tenant that the request itself names, if the directory assigns another one to the API key. Services may serve either.
    pub(crate) fn other_tenant(&self) -> Option<&[u8]> {
        let granted = self.granted_tenant()?;
        self.sent_tenant().filter(|sent| *sent != granted)
    }

    /// The tier that the request itself names. A token grants one only if it is valid now and beside no other that is not.
    pub(crate) fn sent_tier(&self) -> Option<&[u8]> {
        match self.spec.tier.as_ref()? {
            IdentitySource::Header(name) => self.proxied(name),
            IdentitySource::Claim(source) => {
                let tokens = self.tier_tokens(source)?;
                tokens.is_valid(self.now).then(|| tokens.name(source.claim()).map(str::as_bytes)).flatten()
            }
        }
    }

    /// Whether the policy reads tiers from the token of this request, and the token grants none.
    pub(crate) fn has_token_without_tier(&self) -> bool {
        let Some(IdentitySource::Claim(source)) = &self.spec.tier else { return false };
        self.tier_tokens(source).is_some() && self.sent_tier().is_none()
    }

    /// The full address. Counters use its prefix.
    pub fn address(&self) -> IpAddr {
        let find = || self.spec.addresses.client(self.facts.headers, self.facts.peer);
        *self.address.get_or_init(find)
    }

    /// The value of the cookie, decoded.
    pub fn cookie(&self) -> Option<Cow<'a, [u8]>> {
        self.spec.cookie.as_ref()?.find(self.facts.headers)
    }

    /// All values of the cookie in the request, decoded.
    pub(crate) fn cookies(&self) -> impl Iterator<Item = Cow<'a, [u8]>> {
        self.spec.cookie.iter().flat_map(|cookie| cookie.values(self.facts.headers)).map(cookie::canonical)
    }

    /// The identities of this request that must not be locked out. Only names that were used are known.
    pub(crate) fn not_locked_out(&self) -> NotLockedOut {
        let is_outdated = |source: &Option<IdentitySource>, tokens: &OnceCell<Option<TokenReading>>| {
            let Some(IdentitySource::Claim(source)) = source else { return false };
            let Some(Some(tokens)) = tokens.get() else { return false };
            tokens.check_claim(source.claim(), self.now).is_err()
        };
        let tenant_tokens = match (&self.spec.user, &self.spec.tenant) {
            (Some(IdentitySource::Claim(user)), Some(IdentitySource::Claim(tenant)))
                if user.shares_token(tenant) =>
            {
                &self.user_token
            }
            _ => &self.tenant_token,
        };
        let counts_sent_tenant = || self.granted_tenant().is_none() || self.other_tenant().is_some();
        NotLockedOut {
            user: is_outdated(&self.spec.user, &self.user_token),
            tenant: is_outdated(&self.spec.tenant, tenant_tokens) && counts_sent_tenant(),
            proxy: self.spec.addresses.trusts(self.address()),
        }
    }

    /// The fingerprint.
    pub fn fingerprint(&self) -> Option<[u8; 16]> {
        self.spec.fingerprint.as_ref()?.compute(self.facts.headers)
    }

    /// Appends the counter key of [`other_tenant`](Self::other_tenant). Returns whether there is one.
    pub(crate) fn append_other_tenant(&self, key: &mut Vec<u8>) -> bool {
        append(key, ClientKind::Tenant, self.other_tenant())
    }

    /// Appends the counter key of this identity. Returns whether the request has one.
    ///
    /// The key begins with the kind and the length, so an API key never equals an address, and concatenated keys are
    /// unambiguous.
    pub fn append(&self, kind: ClientKind, key: &mut Vec<u8>) -> bool {
        match kind {
            ClientKind::ApiKey => append(key, kind, self.api_key()),
            ClientKind::User => append(key, kind, self.user()),
            ClientKind::Tenant => append(key, kind, self.tenant()),
            ClientKind::Cookie => append(key, kind, self.cookie().as_deref()),
            ClientKind::Fingerprint => {
                append(key, kind, self.fingerprint().as_ref().map(<[u8; 16]>::as_slice))
            }
            ClientKind::Ip => match self.spec.addresses.counter_address(self.address()) {
                IpAddr::V4(address) => append(key, kind, Some(&address.octets())),
                IpAddr::V6(address) => append(key, kind, Some(&address.octets())),
            },
            ClientKind::Anonymous => append(key, kind, Some(&[])),
        }
    }

    fn resolved_key(&self) -> Option<&ResolvedKey<'a>> {
        let resolve = || match self.directory {
            Some(directory) => self.sent_keys().find_map(|key| {
                let grant = Some(directory.get(&key)?);
                Some(ResolvedKey { key, grant })
            }),
            None if self.spec.accepts_unverified_keys => {
                Some(ResolvedKey { key: Cow::Borrowed(self.sent_key()?), grant: None })
            }
            None => None,
        };
        self.api_key.get_or_init(resolve).as_ref()
    }

    /// What is wrong with the request's tokens.
    pub(crate) fn token_problems(&self) -> impl Iterator<Item = String> {
        let sources = [(ClientKind::User, &self.spec.user), (ClientKind::Tenant, &self.spec.tenant)];
        sources.into_iter().filter_map(|(kind, source)| {
            let Some(IdentitySource::Claim(source)) = source else { return None };
            let (tokens, claim) = (source.read(self.facts.headers)?, source.claim());
            let error = tokens.check_claim(claim, self.now).err()?;
            Some(match tokens.name(claim) {
                Some(_) => {
                    format!(
                        "the {kind} token is not valid ({error}): its {kind} is counted, but not locked out"
                    )
                }
                None if tokens.is_verified() => {
                    format!(
                        "the {kind} token names no {kind}: no claim `{claim}` with a text or a whole number"
                    )
                }
                None => format!("the {kind} token is rejected: {error}"),
            })
        })
    }

    /// A header that only a trusted proxy may send.
    fn proxied(&self, name: &HeaderName) -> Option<&'a [u8]> {
        let trusts = || self.spec.addresses.trusts(self.facts.peer);
        if *self.is_peer_trusted.get_or_init(trusts) { single(self.facts.headers, name) } else { None }
    }

    fn user_tokens(&self, source: &ClaimSource) -> Option<&TokenReading> {
        self.user_token.get_or_init(|| source.read(self.facts.headers)).as_ref()
    }

    /// The tokens of the user, or else those of the tenant.
    fn tier_tokens(&self, source: &ClaimSource) -> Option<&TokenReading> {
        match &self.spec.user {
            Some(IdentitySource::Claim(user)) if user.shares_token(source) => self.user_tokens(user),
            _ => self.tenant_tokens(source),
        }
    }

    /// If user and tenant share a token, it is verified only once.
    fn tenant_tokens(&self, source: &ClaimSource) -> Option<&TokenReading> {
        match &self.spec.user {
            Some(IdentitySource::Claim(user)) if user.shares_token(source) => self.user_tokens(user),
            _ => self.tenant_token.get_or_init(|| source.read(self.facts.headers)).as_ref(),
        }
    }
}

/// Appends an identity to a counter key. Returns whether there is one.
pub(crate) fn append(key: &mut Vec<u8>, kind: ClientKind, bytes: Option<&[u8]>) -> bool {
    let Some(bytes) = bytes else { return false };
    key.push(kind.tag());
    // No header is near 4 GiB.
    key.extend_from_slice(&(bytes.len() as u64).to_le_bytes()[..4]);
    key.extend_from_slice(bytes);
    true
}

/// Splits a key written by [`Identity::append`].
pub(crate) fn parts(mut key: &[u8]) -> impl Iterator<Item = (ClientKind, &[u8])> {
    let kinds = || ClientKind::NAMED.into_iter().chain([ClientKind::Anonymous]);
    std::iter::from_fn(move || {
        let (tag, rest) = key.split_first()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        key = rest;
        Some((kinds().find(|kind| kind.tag() == *tag)?, bytes))
    })
}

/// The API key in the header `name`. In `Authorization` a scheme before it (`Bearer`) is not part of it.
fn key_in<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let value = single(headers, name)?;
    Some(if *name == AUTHORIZATION { key::without_scheme(value) } else { value })
}

/// All keys that services may read in the header `name`, the most usual one first.
fn keys_in<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = Cow<'a, [u8]>> {
    let value = if *name == AUTHORIZATION { single(headers, name) } else { None };
    let others = value.into_iter().flat_map(|value| key::in_words(value).chain(key::behind_prefixes(value)));
    key_in(headers, name).map(Cow::Borrowed).into_iter().chain(others)
}

/// The value of a header that appears exactly once and is not empty. Servers disagree about which of several values they
/// use.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.as_bytes();
    (values.next().is_none() && !value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests;
