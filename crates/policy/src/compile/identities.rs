//! Builds the runtime identities from the decoded `clients`.

use std::sync::Arc;

use http::header::{HeaderName, InvalidHeaderName};

use crate::compile::CompileContext;
use crate::identity::{
    Addresses, ClaimSource, CookieName, CookieNameError, Fingerprint, FingerprintError, Identities,
    IdentityError, IdentitySource, IdentitySpec, PrefixError,
};
use crate::plan::{Clients, NameSource, SentTier, TokenPlan};
use crate::raw::{Finding, YamlNode};

/// A value that the decoder accepted but the runtime rejects. Not known to happen; it makes the policy invalid.
#[derive(Debug, thiserror::Error)]
enum IdentityBuildError {
    #[error(transparent)]
    Header(#[from] InvalidHeaderName),
    #[error(transparent)]
    Cookie(#[from] CookieNameError),
    #[error(transparent)]
    Fingerprint(#[from] FingerprintError),
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Builds the identities of `clients`. Reports a failure at `root`.
pub(super) fn identities(
    clients: &Clients,
    root: &YamlNode<'_>,
    context: &mut CompileContext<'_, '_>,
) -> Option<Identities> {
    // After an error the decoded parts may be inconsistent; the cause has been reported.
    if context.report.failed() {
        return None;
    }
    let identities = build(clients);
    identities
        .map_err(|error| {
            let finding = Finding::error(root, format!("invalid `clients`: {error}"));
            context.report.push(finding.hint("correct `clients`"));
        })
        .ok()
}

fn build(clients: &Clients) -> Result<Identities, IdentityBuildError> {
    let header = |name: &String| HeaderName::from_bytes(name.as_bytes());
    let user_token = clients.user.as_ref().and_then(token);
    let source = |from: &NameSource| match from {
        NameSource::Header(name) => header(name).map(IdentitySource::Header),
        NameSource::Token(token) => {
            // Share the verifier of equal keys, so that a token is verified once.
            let known = user_token.filter(|user| user.key == token.key).unwrap_or(token);
            let verifier = Arc::clone(&known.verifier);
            Ok(IdentitySource::Claim(ClaimSource::new(header(&token.header)?, &token.claim.0, verifier)))
        }
    };
    let tier = clients.tiers.sent.as_ref().map(|sent| match sent {
        SentTier::Header(name) => header(name).map(|name| Some(IdentitySource::Header(name))),
        SentTier::Claim(claim) => {
            // The verifier is shared with the user or tenant of the same token.
            let named = |token: &TokenPlan| {
                source(&NameSource::Token(TokenPlan { claim: claim.clone(), ..token.clone() }))
            };
            clients.tier_token().map(named).transpose()
        }
    });
    let headers = clients.fingerprint_headers.iter().map(header).collect::<Result<_, _>>()?;
    let addresses = Addresses::default().with_trusted_proxies(clients.trusted_proxies.iter().copied());
    let spec = IdentitySpec {
        identify_by: clients.identify_by.clone(),
        api_key: Some(header(&clients.api_key_header)?),
        accepts_unverified_keys: clients.accepts_unverified_keys,
        user: clients.user.as_ref().map(source).transpose()?,
        tenant: clients.tenant.as_ref().map(source).transpose()?,
        tier: tier.transpose()?.flatten(),
        addresses: addresses.with_ipv6_prefix(clients.ipv6_prefix)?,
        fingerprint: Some(Fingerprint::new(headers)?),
        cookie: clients.cookie.as_deref().map(CookieName::new).transpose()?,
    };
    Ok(Identities::new(spec)?)
}

fn token(source: &NameSource) -> Option<&TokenPlan> {
    match source {
        NameSource::Header(_) => None,
        NameSource::Token(token) => Some(token),
    }
}
