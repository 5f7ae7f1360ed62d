//! Warns about identities that clients can choose themselves or that nothing verifies.

use crate::compile::WarningTargets;
use crate::compile::counters::AddressLimits;
use crate::identity::ClientKind;
use crate::plan::{Clients, CounterScope, NameSource, Plan, RuleMatch, SentTier};
use crate::raw::{Finding, ProblemReport};
use crate::render::quote;

pub(super) fn find(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    api_keys(&plan.clients, targets, report);
    chosen_by_clients(plan, targets, report);
    proxied(&plan.clients, targets, report);
    tokens(plan, targets, report);
    client_headers(plan, targets, report);
}

/// API keys that are not verified.
fn api_keys(clients: &Clients, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    if clients.accepts_unverified_keys {
        let what = "API keys are not verified: a client that sends a new key with each request has no limit";
        let hint = "list the valid keys in a file: `clients: { tiers: { file: keys.csv } }`; or add a rule with `per: ip`";
        report.push(Finding::warning(targets.verify, what).hint(hint));
    }
    let is_listed = clients.identify_by.contains(&ClientKind::ApiKey);
    if let (Some(target), true, false) = (targets.identify_by, is_listed, clients.counts_keys()) {
        let what = "`api_key` in `identify_by` is ignored: nothing verifies API keys";
        let hint =
            "list the valid keys in a file: `clients: { tiers: { file: keys.csv } }`; or remove `api_key`";
        report.push(Finding::warning(target, what).hint(hint));
    }
}

/// Identities in `identify_by` that a client can change with each request.
fn chosen_by_clients(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let clients = &plan.clients;
    // Every request has an address, so later identities are not used.
    let used = clients.identify_by.iter().take_while(|kind| **kind != ClientKind::Ip);
    let mut chosen = used.filter(|kind| clients.is_chosen_by_client(**kind));
    let Some((kind, target)) = chosen.next().zip(targets.identify_by) else { return };
    if AddressLimits::of_rates(clients, &plan.rate_limits).cover_all() {
        return;
    }
    let what = format!(
        "`{kind}` in `identify_by`: a client that sends a new {kind} with each request has no limit of its own"
    );
    let hint = "add a limit for each address to `rate_limits.rules`: `{ name: address, per: ip, requests: 300, window: 1m }`";
    report.push(Finding::warning(target, what).hint(hint));
}

/// Headers that only a trusted proxy may send, in a policy without trusted proxies.
fn proxied(clients: &Clients, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    if !clients.trusted_proxies.is_empty() {
        return;
    }
    for (header, target) in proxied_headers(clients).zip(&targets.proxied) {
        let what = format!(
            "the header {} is always ignored: only a trusted proxy may send it, and `trusted_proxies` is empty",
            quote(header)
        );
        let hint = "list your proxies: `clients: { ip: { trusted_proxies: [10.0.0.0/8] } }`; or verify a token with `jwt`";
        report.push(Finding::warning(*target, what).hint(hint));
    }
}

/// Users and tenants of tokens, if the policy does not say what happens to other tokens. A service may accept a token that
/// the gateway cannot verify.
fn tokens(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let Some(target) = targets.token.filter(|_| !targets.chooses_on_invalid) else { return };
    let limits = &plan.rate_limits;
    let scopes = limits.rules.iter().map(|custom| (&custom.rule.name, &custom.count));
    let mut scopes = scopes.chain(limits.concurrent.iter().map(|rule| (&rule.name, &rule.count)));
    let is_token = |kind: &ClientKind| match kind {
        ClientKind::User => matches!(plan.clients.user, Some(NameSource::Token(_))),
        ClientKind::Tenant => matches!(plan.clients.tenant, Some(NameSource::Token(_))),
        _ => false,
    };
    let named = scopes.find(|(_, count)| match count {
        CounterScope::Per(kinds) | CounterScope::PerEach(kinds) => kinds.iter().any(is_token),
        CounterScope::Client => plan.clients.identify_by.iter().any(is_token),
        CounterScope::Everybody => false,
    });
    let evaded =
        named.map_or("bans of users".to_owned(), |(name, _)| format!("bans of users and {}", quote(name)));
    let what = format!(
        "a client evades {evaded} with a token that the gateway rejects and the service accepts: it is forwarded and does not count"
    );
    let hint = "add `on_invalid: reject` or `on_invalid: remove` to `clients`; if the service verifies tokens in the same way: `on_invalid: forward`";
    report.push(Finding::warning(target, what).hint(hint));
}

/// Returns the headers of users, tenants and tiers, in the order of [`WarningTargets::proxied`].
fn proxied_headers(clients: &Clients) -> impl Iterator<Item = &str> {
    let names = [&clients.user, &clients.tenant].into_iter().flatten().filter_map(|source| match source {
        NameSource::Header(name) => Some(name.as_str()),
        NameSource::Token(_) => None,
    });
    names.chain(clients.tiers.sent.as_ref().and_then(|sent| match sent {
        SentTier::Header(name) => Some(name.as_str()),
        SentTier::Claim(_) => None,
    }))
}

/// Rules that a client can bypass by omitting a header.
fn client_headers(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let limits = &plan.rate_limits;
    let custom = limits.rules.iter().map(|custom| (&custom.rule.name, custom.rule.id, &custom.matches));
    let concurrent = limits.concurrent.iter().map(|rule| (&rule.name, rule.id, &rule.matches));
    for (name, id, matches) in custom.chain(concurrent) {
        let Some(header) = client_header(matches, &plan.clients) else { continue };
        let what = format!("a client can bypass {} by omitting the header {}", quote(name), quote(header));
        let hint = format!(
            "remove `header`; to limit requests without it: `when: \"!('{header}' in request.headers)\"`"
        );
        report.push(Finding::warning(targets.rule(id), what).hint(hint));
    }
}

/// Returns the first header that the rule requires and that any client may omit.
fn client_header<'m>(matches: &'m RuleMatch, clients: &Clients) -> Option<&'m str> {
    let mut names = matches.headers.iter().map(|header| header.name.as_str());
    names.find(|name| !proxied_headers(clients).any(|proxied| proxied == *name))
}
