//! Describes the differences of two plans, for reloads.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::{self, Write};

use tidegate_core::Cost;
use tidegate_headers::BodyFormat;

use crate::plan::{
    AdminPlan, ChargeBasis, Clients, ConcurrencyRule, CounterScope, CustomRule, Mode, NameSource, Plan,
    ResiliencePlan, Rule, RuleCost, RuleMatch, RuleSharing, SentTier, TokenKey, body_text,
};
use crate::units::{percent_text, size_text, span_text};

/// One difference between two plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChange {
    /// The rule or setting that is different.
    pub what: String,
    /// Whether it was added, removed or changed.
    pub kind: ChangeKind,
    /// The effect on its counters, if it has any.
    pub counters: Option<CounterEffect>,
}

/// How a rule or setting is different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was added.
    Added {
        /// The new value.
        to: String,
    },
    /// It was removed.
    Removed {
        /// The old value.
        from: String,
    },
    /// It was changed.
    Changed {
        /// The old value.
        from: String,
        /// The new value.
        to: String,
    },
}

/// The effect of a change on the counters of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterEffect {
    /// The counters keep their values.
    Kept,
    /// The counters start at zero, because the algorithm, the identities it counts by or the coordination changed.
    Reset,
}

impl fmt::Display for PolicyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = &self.what;
        match &self.kind {
            ChangeKind::Added { to } => write!(f, "{what} added: {to}")?,
            ChangeKind::Removed { from } => write!(f, "{what} removed: {from}")?,
            ChangeKind::Changed { from, to } => write!(f, "{what} changed: {from} → {to}")?,
        }
        match self.counters {
            Some(CounterEffect::Kept) => f.write_str("; counters kept"),
            Some(CounterEffect::Reset) => f.write_str("; counters reset"),
            None => Ok(()),
        }
    }
}

/// Returns the differences between `old` and `new`: rules in the order of the policy, then settings by name.
pub fn diff(old: &Plan, new: &Plan) -> Vec<PolicyChange> {
    let (before, after) = (describe_rules(old), describe_rules(new));
    let index: HashMap<&str, &RuleDescription> =
        before.iter().map(|rule| (rule.name.as_str(), rule)).collect();
    let mut changes = Vec::new();
    for rule in &after {
        let Some(earlier) = index.get(rule.name.as_str()) else {
            changes.push(rule.change(ChangeKind::Added { to: rule.text.clone() }, None));
            continue;
        };
        if earlier.text != rule.text {
            let kept = earlier.counter_kind == rule.counter_kind;
            let counters = if kept { CounterEffect::Kept } else { CounterEffect::Reset };
            let kind = ChangeKind::Changed { from: earlier.text.clone(), to: rule.text.clone() };
            changes.push(rule.change(kind, Some(counters)));
        }
    }
    let names: HashSet<&str> = after.iter().map(|rule| rule.name.as_str()).collect();
    for rule in before.iter().filter(|rule| !names.contains(rule.name.as_str())) {
        changes.push(rule.change(ChangeKind::Removed { from: rule.text.clone() }, None));
    }
    changes.extend(settings_changes(settings(old, new), settings(new, old)));
    changes
}

/// A rule as text, for comparison.
struct RuleDescription {
    name: String,
    text: String,
    /// Counters are kept while this stays the same.
    counter_kind: String,
}

impl RuleDescription {
    fn change(&self, kind: ChangeKind, counters: Option<CounterEffect>) -> PolicyChange {
        PolicyChange { what: format!("rule `{}`", self.name), kind, counters }
    }

    fn plain(rule: &Rule) -> Self {
        Self { name: rule.name.clone(), text: rule.describe_all(), counter_kind: counter_kind(rule) }
    }

    fn custom(custom: &CustomRule) -> Self {
        let CustomRule { rule, matches, count, cost, charge, body_user } = custom;
        let mut text = vec![rule.describe_all()];
        if *count != CounterScope::Client {
            text.push(count.to_string());
        }
        if let Some(field) = body_user {
            text.push(format!("user in the field {field} of the body, and per ip"));
        }
        if *cost != RuleCost::Constant(Cost::ONE) {
            text.push(format!("cost {cost}"));
        }
        if *charge != ChargeBasis::UpFront {
            text.push(charge.to_string());
        }
        let place = describe_match(matches);
        if !place.is_empty() {
            text.push(format!("where {place}"));
        }
        Self {
            name: rule.name.clone(),
            text: text.join(", "),
            counter_kind: format!("{} {count}", counter_kind(rule)),
        }
    }
}

impl RuleDescription {
    fn concurrency(rule: &ConcurrencyRule) -> Self {
        let ConcurrencyRule { name, mode, matches, count, rejection, sharing, .. } = rule;
        let mut text = vec![rule.describe()];
        if *mode != Mode::Enforce {
            text.push(mode.to_string());
        }
        text.extend(rejection.as_ref().map(ToString::to_string));
        text.extend(describe_scope(matches, count));
        let coordination = sharing.map_or("", |sharing| sharing.coordination.name());
        if let Some(RuleSharing { on_store_failure, .. }) = sharing {
            text.push(format!("{coordination}, on_store_failure {}", on_store_failure.name()));
        }
        let counter_kind = format!("concurrent {coordination} {count}");
        Self { name: name.clone(), text: text.join(", "), counter_kind }
    }
}

/// The algorithm and the coordination: a change of either starts with empty counters.
fn counter_kind(rule: &Rule) -> String {
    let coordination = rule.sharing.map_or("", |sharing| sharing.coordination.name());
    format!("{} {coordination}", rule.algorithm())
}

/// Describes what a rule counts by and where it applies, without the defaults.
fn describe_scope(matches: &RuleMatch, count: &CounterScope) -> impl Iterator<Item = String> {
    let whom = (*count != CounterScope::Client).then(|| count.to_string());
    let place = Some(describe_match(matches)).filter(|place| !place.is_empty());
    whom.into_iter().chain(place.map(|place| format!("where {place}")))
}

fn describe_rules(plan: &Plan) -> Vec<RuleDescription> {
    let limits = &plan.rate_limits;
    let single =
        [&limits.global, &limits.tenant, &limits.default].into_iter().flatten().map(RuleDescription::plain);
    let tiers = limits.tiers.iter().map(|tier| match &tier.rule {
        Some(rule) => RuleDescription::plain(rule),
        None => RuleDescription {
            name: format!("tier:{}", tier.name),
            text: "unlimited".to_owned(),
            counter_kind: "unlimited".to_owned(),
        },
    });
    let custom = limits.rules.iter().map(RuleDescription::custom);
    let endpoints = limits.endpoints.iter().map(|endpoint| RuleDescription::plain(&endpoint.rule));
    let concurrent = limits.concurrent.iter().map(RuleDescription::concurrency);
    single.chain(tiers).chain(custom).chain(endpoints).chain(concurrent).collect()
}

fn describe_match(matches: &RuleMatch) -> String {
    let RuleMatch { methods, paths, headers, when } = matches;
    let mut parts = Vec::new();
    if !methods.is_empty() {
        parts.push(format!("method {}", methods.join(", ")));
    }
    if !paths.is_empty() {
        parts.push(format!("path {}", paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")));
    }
    for header in headers {
        let values = if header.values.is_empty() { "any".to_owned() } else { header.values.join(" or ") };
        parts.push(format!("header {} is {values}", header.name));
    }
    parts.extend(when.as_ref().map(|when| when.source.clone()));
    parts.join(" and ")
}

type Settings = BTreeMap<String, String>;

fn settings_changes(mut old: Settings, new: Settings) -> Vec<PolicyChange> {
    let mut changes = Vec::new();
    for (what, to) in new {
        let kind = match old.remove(&what) {
            Some(from) if from == to => continue,
            Some(from) => ChangeKind::Changed { from, to },
            None => ChangeKind::Added { to },
        };
        changes.push(PolicyChange { what, kind, counters: None });
    }
    changes.extend(old.into_iter().map(|(what, from)| PolicyChange {
        what,
        kind: ChangeKind::Removed { from },
        counters: None,
    }));
    changes
}

/// Returns all settings except rules, by path. Secrets are not shown. Of upstreams that `other` does not have, defaults
/// are left out.
fn settings(plan: &Plan, other: &Plan) -> Settings {
    let Plan {
        listen, service, admin, clients, bans, allow, rate_limits, store, log, traces, reload, ..
    } = plan;
    let mut settings = Settings::new();
    let mut set = |key: &str, value: String| {
        if !value.is_empty() {
            settings.insert(key.to_owned(), value);
        }
    };
    let places = listen.iter().map(|place| match place.tls {
        Some(_) => format!("{} with TLS", place.address),
        None => place.address.clone(),
    });
    set("listen", places.collect::<Vec<_>>().join(", "));
    set("admin", admin.as_ref().map_or("off", AdminPlan::address).to_owned());
    set("admin.token_file", admin.as_ref().and_then(|admin| admin.token_file.clone()).unwrap_or_default());
    for (key, value) in service.settings() {
        set(&key, value);
    }
    for (key, value) in store.settings() {
        set(&format!("store.{key}"), value);
    }
    set("bans", describe_networks(bans));
    if let Some(allow) = allow {
        set("allow", if allow.is_empty() { "no network".to_owned() } else { describe_networks(allow) });
    }
    response_settings(plan, &mut set);
    set("log.access", log.access.to_string());
    set("log.rejected", log.rejected.to_string());
    set("log.to", log.to.to_string());
    let traced =
        traces.as_ref().map(|traces| format!("{} of requests to {}", traces.sample, traces.endpoint));
    set("traces", traced.unwrap_or_default());
    set("reload.quiet", span_text(reload.quiet));
    set("reload.max_loss", percent_text(reload.max_loss.as_millionths()));
    routing_settings(plan, &mut set);
    resilience_settings(plan, other, &mut set);
    let default_tier = clients.tiers.default.and_then(|index| rate_limits.tiers.get(index));
    set("clients.tiers.default", default_tier.map(|tier| tier.name.clone()).unwrap_or_default());
    client_settings(clients, &mut set);
    settings
}

/// Adds what clients are told, and from which memory they are served.
fn response_settings(plan: &Plan, set: &mut dyn FnMut(&str, String)) {
    let Plan { headers, cache_memory, rejection_body, error_body, .. } = plan;
    set("headers", headers.iter().map(|style| style.name()).collect::<Vec<_>>().join(", "));
    set("cache.memory", size_text(*cache_memory));
    set("error_body", error_body.name().to_owned());
    if *rejection_body != BodyFormat::Style(*error_body) {
        set("error_body of rejections", body_text(rejection_body));
    }
}

/// Adds `http`, upstreams and routes.
fn routing_settings(plan: &Plan, set: &mut dyn FnMut(&str, String)) {
    let Plan { upstreams, routes, http, .. } = plan;
    for (key, value) in http.settings() {
        set(&format!("http.{key}"), value.to_owned());
    }
    for upstream in upstreams {
        let mut text = format!("{}, {}", upstream.servers.join(", "), upstream.balance.name());
        if let Some(health) = &upstream.health {
            // Writing to a String cannot fail.
            let _ = write!(text, ", {} every {}", health.path, span_text(health.every));
        }
        set(&format!("upstream `{}`", upstream.name), text);
    }
    let name = |index: usize| upstreams.get(index).map_or("", |upstream| upstream.name.as_str());
    let route_texts = routes.iter().map(|route| {
        let mut text = format!("{}{} → {}", route.host, route.path, name(route.upstream));
        for ((key, value), _) in
            route.http.settings().iter().zip(http.settings()).filter(|(own, inherited)| *own != inherited)
        {
            // Writing to a String cannot fail.
            let _ = write!(text, ", {key}: {value}");
        }
        if let Some(bulkhead) = &route.bulkhead {
            let _ = write!(text, ", bulkhead: {bulkhead}");
        }
        text
    });
    set("routes", route_texts.collect::<Vec<_>>().join("; "));
}

/// Adds what happens when upstreams fail.
fn resilience_settings(plan: &Plan, other: &Plan, set: &mut dyn FnMut(&str, String)) {
    let known: HashSet<&str> = other.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    let defaults = ResiliencePlan::default().settings(&[]);
    for upstream in &plan.upstreams {
        let name = &upstream.name;
        let is_known = known.contains(name.as_str());
        for setting in upstream.resilience.settings(&plan.upstreams) {
            if is_known || !defaults.contains(&setting) {
                let (key, text) = setting;
                set(&format!("upstream `{name}` {key}"), text);
            }
        }
    }
}

fn client_settings(clients: &Clients, set: &mut dyn FnMut(&str, String)) {
    let Clients { identify_by, api_key_header, accepts_unverified_keys, user, tenant, .. } = clients;
    let Clients { trusted_proxies, ipv6_prefix, fingerprint_headers, cookie, on_invalid, .. } = clients;
    let Clients { tiers, exempt, .. } = clients;
    set("clients.identify_by", identify_by.iter().map(|one| one.name()).collect::<Vec<_>>().join(", "));
    set("clients.api_key.header", api_key_header.clone());
    let verify = if *accepts_unverified_keys { "none" } else { "keys_file" };
    set("clients.api_key.verify", verify.to_owned());
    set("clients.user", user.as_ref().map(describe_source).unwrap_or_default());
    set("clients.tenant", tenant.as_ref().map(describe_source).unwrap_or_default());
    set("clients.ip.trusted_proxies", describe_networks(trusted_proxies));
    set("clients.ip.ipv6_prefix", ipv6_prefix.to_string());
    set("clients.fingerprint.headers", fingerprint_headers.join(", "));
    set("clients.cookie.name", cookie.clone().unwrap_or_default());
    set("clients.on_invalid", on_invalid.name().to_owned());
    set("clients.tiers.file", tiers.file.clone().unwrap_or_default());
    let sent_tier = tiers.sent.as_ref().map(|sent| match sent {
        SentTier::Header(name) => format!("header {name}"),
        SentTier::Claim(claim) => format!("claim {}", claim.0),
    });
    set("clients.tiers", sent_tier.unwrap_or_default());
    set("clients.exempt.networks", describe_networks(&exempt.networks));
    if !exempt.api_keys.is_empty() {
        set("clients.exempt.api_keys_file", format!("{} API keys", exempt.api_keys.len()));
    }
}

/// Lists up to eight networks, or returns their number.
fn describe_networks(networks: &[ipnet::IpNet]) -> String {
    if networks.len() > 8 {
        return format!("{} networks", networks.len());
    }
    networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn describe_source(source: &NameSource) -> String {
    match source {
        NameSource::Header(name) => format!("header {name}"),
        NameSource::Token(token) => {
            let file = match &token.key {
                TokenKey::Secret { file, .. } | TokenKey::KeySet { file, .. } => file,
            };
            format!("claim {} of the token in {}, verified with {file}", token.claim.0, token.header)
        }
    }
}

#[cfg(test)]
mod tests;
