//! The client that a message names.

use smallvec::SmallVec;
use tidegate_policy::{ActivePolicy, RuleClient};

use super::error::{HttpError, invalid};
use super::message::ClientMessage;
use crate::client::{self, RuleClientError, StatedIdentity};

/// The client that a message names, as `rule` counts it.
pub(super) fn rule_client(
    policy: &ActivePolicy,
    rule: &str,
    client: Option<&ClientMessage<'_>>,
) -> Result<RuleClient, HttpError> {
    let stated: SmallVec<[StatedIdentity<'_>; 2]> = match client {
        None => SmallVec::new(),
        Some(ClientMessage::Text(text)) => {
            SmallVec::from_iter([client::split_identity(&text.0).map_err(HttpError::Client)?])
        }
        Some(ClientMessage::Identities(named)) => {
            named.iter().map(|(kind, value)| (&*kind.0, &*value.0)).collect()
        }
    };
    client::rule_client(policy, rule, &stated).map_err(|error| match error {
        RuleClientError::NoRule => HttpError::NoRule { rule: rule.chars().take(100).collect() },
        RuleClientError::Concurrency => invalid(error.to_string()),
        RuleClientError::Name(error) => HttpError::Client(error),
        _ if client.is_none() => invalid("missing field `client`; write for example \"user:bob\""),
        RuleClientError::TooLong => invalid(format!("`client`: {error}")),
        RuleClientError::Scope(text) => HttpError::Invalid(text),
    })
}
