//! Bans and exemptions of clients that a caller has identified.

use tidegate_core::Timestamp;

use super::Matcher;
use super::matched::{BanSource, Exemption, RuntimeData};
use crate::identity::{ClientKind, RuleClient};

/// Why no rule is checked for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusion<'k> {
    /// It is rejected.
    Banned(BanSource<'k>),
    /// It is admitted.
    Exempt(Exemption),
}

impl Matcher {
    /// Whether a client that the caller has identified is banned or exempt, as [`admit`](Self::admit) decides for a request. Only
    /// the identities of `client` are known, and the tenant of its API key. Without bans and exemptions this costs nothing.
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
