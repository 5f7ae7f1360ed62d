//! Bans and exemptions of clients that a caller has identified.

use std::fmt;

use foldhash::fast::RandomState;
use hashbrown::HashSet;
use tidegate_core::Timestamp;

use super::Matcher;
use super::matched::{BanSource, Exemption, RuntimeData};
use crate::directory::form::KeyForm;
use crate::identity::{ClientKind, RuleClient};
use crate::plan::Secret;

/// Why no rule is checked for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusion<'k> {
    /// It is rejected.
    Banned(BanSource<'k>),
    /// It is admitted.
    Exempt(Exemption),
}

/// API keys that are exempt from limits.
pub(super) struct ExemptKeys {
    form: KeyForm,
    keys: HashSet<Box<[u8]>, RandomState>,
}

impl fmt::Debug for ExemptKeys {
    /// Shows only the number of keys, which are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExemptKeys({} keys)", self.keys.len())
    }
}

impl ExemptKeys {
    /// The keys of a list, which is valid.
    pub(super) fn new(listed: &[Secret]) -> Self {
        let form = KeyForm::of_list(listed.iter().map(Secret::expose));
        let keys = listed.iter().filter_map(|key| form.listed(key.expose()).ok());
        Self { form, keys: keys.map(|key| key.as_bytes().into()).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        !self.is_empty() && self.keys.contains(self.form.sent(key).as_bytes())
    }
}

impl Matcher {
    /// Whether a client that the caller has identified is banned or exempt, as [`admit`](Self::admit) decides for a request. Only
    /// the identities of `client` are known, and the tenant of its API key. Without bans, `allow` and exemptions this costs nothing.
    pub fn exclusion<'k>(
        &self,
        client: &RuleClient,
        runtime: impl Into<RuntimeData<'k>>,
        now: Timestamp,
    ) -> Option<Exclusion<'k>> {
        let RuntimeData { directory, bans } = runtime.into();
        if !self.bans.is_empty()
            && let Some(network) = client.addresses().find_map(|address| self.bans.find_banned(address))
        {
            return Some(Exclusion::Banned(BanSource::Policy(network)));
        }
        if let Some(ban) = bans.and_then(|bans| bans.find_client(client, directory, now)) {
            return Some(Exclusion::Banned(BanSource::Operator(ban)));
        }
        // A caller that names no address has let the client in already.
        if let Some(allowed) = &self.allowed
            && client.addresses().any(|address| allowed.find(address).is_none())
        {
            return Some(Exclusion::Banned(BanSource::NotAllowed));
        }
        self.client_exemption(client).map(Exclusion::Exempt)
    }

    fn client_exemption(&self, client: &RuleClient) -> Option<Exemption> {
        if !self.exempt.is_empty()
            && let Some(network) = client.addresses().find_map(|address| self.exempt.find(address))
        {
            return Some(Exemption::Network(network));
        }
        if self.exempt_keys.is_empty() {
            return None;
        }
        let is_exempt =
            |(kind, key): (ClientKind, &[u8])| kind == ClientKind::ApiKey && self.exempt_keys.contains(key);
        client.identities().any(is_exempt).then_some(Exemption::ApiKey)
    }
}
