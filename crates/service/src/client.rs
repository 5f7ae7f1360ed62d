//! The clients that requests name.

use std::borrow::Cow;

use smallvec::SmallVec;
use thiserror::Error;
use tidegate_policy::{ActivePolicy, ClientKind, ClientName, ClientNameError, CounterScope, RuleClient};

/// The longest name of a client, in bytes.
pub(crate) const MAX_CLIENT: usize = 1 << 10;

/// An identity as a message states it: its kind and its value.
pub(crate) type StatedIdentity<'m> = (&'m str, &'m str);

/// Identities whose kinds are known.
type NamedIdentities<'m> = SmallVec<[(ClientKind, &'m str); 2]>;

/// Why a message names no counter.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RuleClientError {
    #[error("the policy has no such rate limit")]
    NoRule,
    #[error(
        "the rule limits concurrent requests, and the end of a request is not known here; name a rate limit, or check \
         a whole request"
    )]
    Concurrency,
    #[error("{0}")]
    Name(#[from] ClientNameError),
    #[error("the name is too long, at most {MAX_CLIENT} bytes are allowed")]
    TooLong,
    #[error("{0}")]
    Scope(Cow<'static, str>),
}

/// The kind and the value of an identity such as `user:bob`. The value is everything after the first colon, as it is, so a value
/// that a user has chosen cannot name another client.
pub(crate) fn split_identity(text: &str) -> Result<StatedIdentity<'_>, ClientNameError> {
    text.split_once(':').ok_or(ClientNameError::NoKind)
}

/// The number of identities that `rule` needs; 1 if there is no such rule, or if it does not distinguish clients.
pub(crate) fn identity_count(policy: &ActivePolicy, rule: &str) -> usize {
    match policy.matcher.rule_scope(rule) {
        Some(CounterScope::Per(kinds)) => kinds.len(),
        _ => 1,
    }
}

/// How many rules an error names.
const LISTED_RULES: usize = 20;

/// The names of the rate limits that a caller may have meant; empty if there are none.
pub(crate) fn rule_names(policy: &ActivePolicy) -> String {
    let limits = &policy.matcher.plan().rate_limits;
    let listed: Vec<_> = limits.iter().take(LISTED_RULES).map(|rule| format!("`{}`", rule.name)).collect();
    match limits.iter().count() - listed.len() {
        0 => listed.join(", "),
        others => format!("{} and {others} others", listed.join(", ")),
    }
}

/// The client with these identities, as `rule` counts it. A rule that counts all clients together needs none; what is stated
/// nevertheless is used for bans and exemptions. Such a rule ignores an identity that names no client, and only that one: a
/// client that chooses an invalid value must not escape a ban of another identity.
pub(crate) fn rule_client(
    policy: &ActivePolicy,
    rule: &str,
    stated: &[StatedIdentity<'_>],
) -> Result<RuleClient, RuleClientError> {
    let no_rate_limit = || {
        let mut others = policy.matcher.plan().rate_limits.concurrent.iter();
        let limits_concurrency = others.any(|other| other.name == rule);
        if limits_concurrency { RuleClientError::Concurrency } else { RuleClientError::NoRule }
    };
    let scope = policy.matcher.rule_scope(rule).ok_or_else(no_rate_limit)?;
    if stated.iter().map(|(_, value)| value.len()).sum::<usize>() > MAX_CLIENT {
        return Err(RuleClientError::TooLong);
    }
    check_tenant(policy, rule, stated)?;
    let name = match client_name(scope, stated) {
        Err(_) if *scope == CounterScope::Everybody => {
            let is_valid = |identity: &StatedIdentity<'_>| client_name(scope, &[*identity]).is_ok();
            let valid = stated.iter().copied().filter(is_valid);
            client_name(scope, &valid.collect::<SmallVec<[_; 2]>>())?
        }
        name => name?,
    };
    // Only a name with a hash has no key; such a name cannot be made here.
    let client = RuleClient::new(&name, &policy.matcher.plan().identities);
    client.ok_or(RuleClientError::Name(ClientNameError::NoKind))
}

/// The limit of each tenant counts an API key as the tenant to which it belongs, and no counter of the key itself.
fn check_tenant(
    policy: &ActivePolicy,
    rule: &str,
    stated: &[StatedIdentity<'_>],
) -> Result<(), RuleClientError> {
    let (Some(directory), true) = (&policy.directory, policy.matcher.counts_tenants(rule)) else {
        return Ok(());
    };
    for (kind, value) in stated {
        if ClientKind::parse(kind) == Ok(ClientKind::ApiKey)
            && let Some(tenant) = directory.get(value.as_bytes()).and_then(|grant| grant.tenant)
        {
            let text = format!(
                "the API key belongs to the tenant `{tenant}`, which the rule counts; name `tenant:{tenant}`"
            );
            return Err(RuleClientError::Scope(text.into()));
        }
    }
    Ok(())
}

fn client_name(scope: &CounterScope, stated: &[StatedIdentity<'_>]) -> Result<ClientName, RuleClientError> {
    let named = stated.iter().map(|&(kind, value)| Ok((ClientKind::parse(kind)?, value)));
    let named = named.collect::<Result<NamedIdentities<'_>, ClientNameError>>()?;
    Ok(ClientName::of_identities(in_order(scope, named)?)?)
}

/// The identities in the order in which the rule counts them. All of them must be named, once, and no others: a counter of
/// another combination would never be checked by the gateway.
fn in_order<'m>(
    scope: &CounterScope,
    named: NamedIdentities<'m>,
) -> Result<NamedIdentities<'m>, RuleClientError> {
    let wrong = |text: String| Err(RuleClientError::Scope(text.into()));
    match scope {
        CounterScope::Per(kinds) => {
            let find = |kind: &ClientKind| named.iter().find(|(named, _)| named == kind).copied();
            let found = kinds.iter().map(find).collect::<Option<NamedIdentities<'_>>>();
            match found.filter(|_| named.len() == kinds.len()) {
                Some(found) => Ok(found),
                None => wrong(format!("the rule counts {scope}; name exactly these identities in `client`")),
            }
        }
        CounterScope::PerEach(kinds) => match named.as_slice() {
            [(kind, _)] if kinds.contains(kind) => Ok(named),
            _ => wrong(format!("the rule counts {scope}; name one of these identities in `client`")),
        },
        CounterScope::Client => match named.as_slice() {
            [_] => Ok(named),
            _ => wrong("the rule counts each client by one identity; name one in `client`".to_owned()),
        },
        CounterScope::Everybody => Ok(named),
    }
}
