//! The counter key of the client that a message names.

use tidegate_policy::{ActivePolicy, ClientKind, ClientName, ClientNameError, CounterScope};

use super::error::{HttpError, invalid};
use super::message::ClientMessage;
use crate::client::counter_key;

/// The key under which `rule` counts `client`.
pub(super) fn rule_client(
    policy: &ActivePolicy,
    rule: &str,
    client: Option<&ClientMessage<'_>>,
) -> Result<Vec<u8>, HttpError> {
    let scope = policy.matcher.rule_scope(rule);
    let scope = scope.ok_or_else(|| HttpError::NoRule { rule: rule.chars().take(100).collect() })?;
    if *scope == CounterScope::Everybody {
        return Ok(Vec::new());
    }
    let client = client.ok_or_else(|| invalid("missing field `client`; write for example \"user:bob\""))?;
    let identities = &policy.matcher.plan().identities;
    match (scope, client) {
        (CounterScope::Client, ClientMessage::Text(text)) => {
            counter_key(identities, &text.0).map_err(HttpError::Client)
        }
        (scope, client) => {
            let named = identities_of(client)?;
            let name = ClientName::of_identities(in_order(scope, named)?).map_err(HttpError::Client)?;
            // Only a name with a hash has no key; such a name cannot be made here.
            name.key(identities).ok_or(HttpError::Client(ClientNameError::NoKind))
        }
    }
}

/// The identities that a message names, by kind.
fn identities_of<'m>(client: &'m ClientMessage<'_>) -> Result<Vec<(ClientKind, &'m str)>, HttpError> {
    let kind = |name: &str| ClientKind::named(name).ok_or(HttpError::Client(ClientNameError::NoKind));
    match client {
        ClientMessage::Text(text) => {
            let (name, value) = text.0.split_once(':').ok_or(HttpError::Client(ClientNameError::NoKind))?;
            Ok(vec![(kind(name)?, value)])
        }
        ClientMessage::Identities(named) => {
            named.iter().map(|(name, value)| Ok((kind(&name.0)?, value.0.as_ref()))).collect()
        }
    }
}

/// The identities in the order in which the rule counts them. All of them must be named, once, and no others: a counter of
/// another combination would never be checked by the gateway.
fn in_order<'m>(
    scope: &CounterScope,
    named: Vec<(ClientKind, &'m str)>,
) -> Result<Vec<(ClientKind, &'m str)>, HttpError> {
    let wrong =
        || Err(invalid(format!("the rule counts {scope}; name exactly these identities in `client`")));
    match scope {
        CounterScope::Per(kinds) => {
            if named.len() != kinds.len() {
                return wrong();
            }
            let find = |kind: &ClientKind| named.iter().find(|(named, _)| named == kind).copied();
            kinds.iter().map(find).collect::<Option<_>>().map_or_else(wrong, Ok)
        }
        CounterScope::PerEach(kinds) => match named.as_slice() {
            [(kind, _)] if kinds.contains(kind) => Ok(named),
            _ => Err(invalid(format!("the rule counts {scope}; name one of these identities in `client`"))),
        },
        CounterScope::Client | CounterScope::Everybody => match named.as_slice() {
            [_] => Ok(named),
            _ => Err(invalid("the rule counts each client by one identity; name one in `client`")),
        },
    }
}
