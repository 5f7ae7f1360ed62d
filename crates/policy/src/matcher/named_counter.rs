//! The counters of a client that an operator names.
//!
//! A rule counts some identities and no others. A name of another identity leads to a counter that no request has, so whatever is
//! done to it has no effect.

use smallvec::SmallVec;

use super::ActivePolicy;
use super::matched::RuleRef;
use crate::identity::{ClientKind, append, parts};
use crate::plan::{ConcurrencyRule, CounterScope, Rule};

/// An identity in a counter key.
type KeyPart<'k> = (ClientKind, &'k [u8]);

impl ActivePolicy {
    /// The key of the counter that `rule` has for the client with the key `client`, whose identities may be in another order.
    /// `None` if no request of such a client is counted there: neither one that the gateway reads, nor one for which a caller
    /// of the decision service names the client.
    pub fn named_counter(&self, rule: &Rule, client: &[u8]) -> Option<Vec<u8>> {
        self.counter_in(self.scope(rule)?, self.rule_ref(rule), client)
    }

    /// The key of the permits that `rule` has for the client with the key `client`, as for a [counter](Self::named_counter).
    pub fn named_permits(&self, rule: &ConcurrencyRule, client: &[u8]) -> Option<Vec<u8>> {
        self.counter_in(&rule.count, None, client)
    }

    fn counter_in(&self, scope: &CounterScope, rule: Option<RuleRef>, client: &[u8]) -> Option<Vec<u8>> {
        let named: SmallVec<[KeyPart<'_>; 2]> = parts(client).collect();
        let ordered = match (scope, &*named) {
            (CounterScope::Everybody, []) => named,
            (CounterScope::Client, [part]) if self.counts_client(rule, part) => named,
            (CounterScope::PerEach(kinds), [part]) if kinds.iter().any(|kind| self.fills(*kind, part)) => {
                named
            }
            (CounterScope::Per(kinds), _) => self.in_order(kinds, &named)?,
            _ => return None,
        };
        let mut key = Vec::with_capacity(client.len());
        for (kind, bytes) in ordered {
            append(&mut key, kind, Some(bytes));
        }
        Some(key)
    }

    /// The clients that `rule` counts, as an operator names them: `ip:ADDRESS`.
    pub fn counted_names(&self, rule: &Rule) -> Vec<String> {
        let mut kinds = match (self.rule_ref(rule), self.scope(rule)) {
            (_, Some(CounterScope::Everybody)) => return vec!["everybody".to_owned()],
            (_, Some(CounterScope::Per(kinds))) if kinds.len() > 1 => {
                return vec![kinds.iter().map(|kind| placeholder(*kind)).collect::<Vec<_>>().join("+")];
            }
            (Some(RuleRef::Tenant), _) => vec![ClientKind::Tenant],
            (_, Some(CounterScope::PerEach(kinds) | CounterScope::Per(kinds))) => kinds.clone(),
            (_, Some(CounterScope::Client) | None) => Vec::new(),
        };
        // A client without any of these is counted as the client that it is otherwise.
        if !kinds.contains(&ClientKind::Ip) {
            let others: Vec<_> = self.client_kinds().filter(|kind| !kinds.contains(kind)).collect();
            kinds.extend(others);
        }
        kinds.into_iter().map(|kind| placeholder(kind).to_owned()).collect()
    }

    fn rule_ref(&self, rule: &Rule) -> Option<RuleRef> {
        self.matcher.rules_by_name.get(&*rule.name).copied()
    }

    fn scope(&self, rule: &Rule) -> Option<&CounterScope> {
        self.matcher.rule_scope(&rule.name)
    }

    /// Whether a rule that counts each client by one identity counts this one. Callers may name any.
    fn counts_client(&self, rule: Option<RuleRef>, part: &KeyPart<'_>) -> bool {
        self.has_callers()
            || match rule {
                Some(RuleRef::Tenant) => self.fills(ClientKind::Tenant, part),
                Some(rule_ref @ (RuleRef::Default | RuleRef::Tier(_))) => {
                    self.identifies(part) && self.has_tier(part, rule_ref)
                }
                _ => self.identifies(part),
            }
    }

    /// The identities in the order of `kinds`; `None` if they do not fill them.
    fn in_order<'k>(
        &self,
        kinds: &[ClientKind],
        named: &[KeyPart<'k>],
    ) -> Option<SmallVec<[KeyPart<'k>; 2]>> {
        let fills = |ordered: &[KeyPart<'k>]| {
            kinds.len() == ordered.len()
                && kinds.iter().zip(ordered).all(|(kind, part)| self.fills(*kind, part))
        };
        if fills(named) {
            return Some(named.into());
        }
        let find = |kind: &ClientKind| named.iter().find(|(other, _)| other == kind).copied();
        let ordered: SmallVec<[_; 2]> = kinds.iter().filter_map(find).collect();
        Some(ordered).filter(|ordered| named.len() == kinds.len() && fills(ordered))
    }

    /// Whether callers of the decision service may name any identity.
    fn has_callers(&self) -> bool {
        !self.matcher.plan.service.is_empty()
    }

    /// Whether the identity counts where a rule counts `kind`: it is of this kind, or identifies a client that has none.
    fn fills(&self, kind: ClientKind, part: &KeyPart<'_>) -> bool {
        part.0 == kind && (self.has_callers() || self.can_find(part))
            || kind != ClientKind::Ip && self.identifies(part)
    }

    /// Whether requests can be found to be of this identity.
    fn can_find(&self, (kind, bytes): &KeyPart<'_>) -> bool {
        let plan = &self.matcher.plan;
        match kind {
            ClientKind::ApiKey => match &self.directory {
                Some(directory) => directory.get(bytes).is_some(),
                None => plan.clients.accepts_unverified_keys,
            },
            ClientKind::Tenant => plan.clients.tenant.is_some() || self.directory.is_some(),
            kind => plan.identities.can_find(*kind),
        }
    }

    /// The kinds of identity that may identify a client, in order.
    fn client_kinds(&self) -> impl Iterator<Item = ClientKind> {
        let plan = &self.matcher.plan;
        let has_keys = self.directory.is_some() || plan.clients.accepts_unverified_keys;
        let kinds = &plan.clients.identify_by;
        // Every request has an address, so no later kind identifies a client.
        let address = kinds.iter().position(|kind| *kind == ClientKind::Ip);
        let reachable = address.map_or(kinds.as_slice(), |at| &kinds[..=at]).iter().copied();
        let rest = address.is_none().then_some(ClientKind::Anonymous);
        reachable.filter(move |kind| *kind != ClientKind::ApiKey || has_keys).chain(rest)
    }

    fn identifies(&self, part: &KeyPart<'_>) -> bool {
        self.client_kinds().any(|kind| kind == part.0)
            && (part.0 == ClientKind::Anonymous || self.can_find(part))
    }

    /// Whether the client may have the tier, or for [`RuleRef::Default`] none. Only that of a listed API key is known.
    fn has_tier(&self, (kind, bytes): &KeyPart<'_>, rule_ref: RuleRef) -> bool {
        let directory = self.directory.as_ref().filter(|_| *kind == ClientKind::ApiKey);
        let Some(grant) = directory.and_then(|directory| directory.get(bytes)) else { return true };
        matches!(rule_ref, RuleRef::Tier(at) if at == grant.tier_index)
    }
}

/// The name of any identity of this kind.
const fn placeholder(kind: ClientKind) -> &'static str {
    match kind {
        ClientKind::ApiKey => "api_key:KEY",
        ClientKind::User => "user:NAME",
        ClientKind::Tenant => "tenant:NAME",
        ClientKind::Ip => "ip:ADDRESS",
        ClientKind::Fingerprint => "fingerprint:DIGITS",
        ClientKind::Cookie => "cookie:VALUE",
        ClientKind::Anonymous => "anonymous",
    }
}
