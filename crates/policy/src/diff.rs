//! The difference of two plans in words, for whoever reloads one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::{self, Write};

use tidegate_core::Cost;

use crate::plan::{
    AdminPlan, Charge, Clients, ConcurrencyRule, CounterScope, CustomRule, Mode, NameSource, Plan, Rule,
    RuleCost, RuleMatch, TokenKey,
};
use crate::units::{size_text, span_text};

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What is different: a rule or a setting.
    pub what: String,
    /// How.
    pub how: How,
    /// What becomes of its counters, where it has any.
    pub counters: Option<Counters>,
}

/// How something is different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// It is new.
    Added {
        /// What it is.
        to: String,
    },
    /// It is gone.
    Removed {
        /// What it was.
        from: String,
    },
    /// It is something else.
    Changed {
        /// What it was.
        from: String,
        /// What it is.
        to: String,
    },
}

/// What becomes of the counters of a changed rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counters {
    /// What was spent stays spent.
    Kept,
    /// Everybody starts afresh, because the algorithm or whom it counts is another.
    Afresh,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = &self.what;
        match &self.how {
            How::Added { to } => write!(f, "{what} added: {to}")?,
            How::Removed { from } => write!(f, "{what} removed: {from}")?,
            How::Changed { from, to } => write!(f, "{what} changed: {from} → {to}")?,
        }
        match self.counters {
            Some(Counters::Kept) => f.write_str("; counters kept"),
            Some(Counters::Afresh) => f.write_str("; counters start afresh"),
            None => Ok(()),
        }
    }
}

/// What is different between `old` and `new`: rules in the order of the policy, then settings by name.
pub fn diff(old: &Plan, new: &Plan) -> Vec<Change> {
    let (before, after) = (described(old), described(new));
    let index: HashMap<&str, &Described> = before.iter().map(|rule| (rule.name.as_str(), rule)).collect();
    let mut changes = Vec::new();
    for rule in &after {
        let Some(earlier) = index.get(rule.name.as_str()) else {
            changes.push(rule.change(How::Added { to: rule.words.clone() }, None));
            continue;
        };
        if earlier.words != rule.words {
            let kept = earlier.family == rule.family;
            let counters = if kept { Counters::Kept } else { Counters::Afresh };
            let how = How::Changed { from: earlier.words.clone(), to: rule.words.clone() };
            changes.push(rule.change(how, Some(counters)));
        }
    }
    let names: HashSet<&str> = after.iter().map(|rule| rule.name.as_str()).collect();
    for rule in before.iter().filter(|rule| !names.contains(rule.name.as_str())) {
        changes.push(rule.change(How::Removed { from: rule.words.clone() }, None));
    }
    changes.extend(settings_changes(settings(old), settings(new)));
    changes
}

/// A rule in words.
struct Described {
    name: String,
    words: String,
    /// Counters survive as long as this stays the same.
    family: String,
}

impl Described {
    fn change(&self, how: How, counters: Option<Counters>) -> Change {
        Change { what: format!("rule `{}`", self.name), how, counters }
    }

    fn plain(rule: &Rule) -> Self {
        Self { name: rule.name.clone(), words: rule.describe_all(), family: rule.algorithm().to_string() }
    }

    fn custom(custom: &CustomRule) -> Self {
        let CustomRule { rule, matches, count, cost, charge } = custom;
        let mut words = vec![rule.describe_all()];
        if *count != CounterScope::Client {
            words.push(count.to_string());
        }
        if *cost != RuleCost::Constant(Cost::ONE) {
            words.push(format!("cost {cost}"));
        }
        if *charge != Charge::UpFront {
            words.push(charge.to_string());
        }
        let place = match_words(matches);
        if !place.is_empty() {
            words.push(format!("where {place}"));
        }
        Self {
            name: rule.name.clone(),
            words: words.join(", "),
            family: format!("{} {count}", rule.algorithm()),
        }
    }
}

impl Described {
    fn concurrency_checks(rule: &ConcurrencyRule) -> Self {
        let ConcurrencyRule { name, mode, matches, count, .. } = rule;
        let mut words = vec![rule.describe()];
        if *mode != Mode::Enforce {
            words.push(mode.to_string());
        }
        words.extend(rest_of_words(matches, count));
        Self { name: name.clone(), words: words.join(", "), family: format!("at once {count}") }
    }
}

/// Whom a rule counts and where, as far as that is out of the ordinary.
fn rest_of_words(matches: &RuleMatch, count: &CounterScope) -> impl Iterator<Item = String> {
    let whom = (*count != CounterScope::Client).then(|| count.to_string());
    let place = Some(match_words(matches)).filter(|place| !place.is_empty());
    whom.into_iter().chain(place.map(|place| format!("where {place}")))
}

fn described(plan: &Plan) -> Vec<Described> {
    let limits = &plan.rate_limits;
    let single =
        [&limits.global, &limits.tenant, &limits.default].into_iter().flatten().map(Described::plain);
    let tiers = limits.tiers.iter().map(|tier| match &tier.rule {
        Some(rule) => Described::plain(rule),
        None => Described {
            name: format!("tier:{}", tier.name),
            words: "unlimited".to_owned(),
            family: "unlimited".to_owned(),
        },
    });
    let custom = limits.rules.iter().map(Described::custom);
    let endpoints = limits.endpoints.iter().map(|endpoint| Described::plain(&endpoint.rule));
    let concurrent = limits.concurrent.iter().map(Described::concurrency_checks);
    single.chain(tiers).chain(custom).chain(endpoints).chain(concurrent).collect()
}

fn match_words(matches: &RuleMatch) -> String {
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

fn settings_changes(mut old: Settings, new: Settings) -> Vec<Change> {
    let mut changes = Vec::new();
    for (what, to) in new {
        let how = match old.remove(&what) {
            Some(from) if from == to => continue,
            Some(from) => How::Changed { from, to },
            None => How::Added { to },
        };
        changes.push(Change { what, how, counters: None });
    }
    changes.extend(old.into_iter().map(|(what, from)| Change {
        what,
        how: How::Removed { from },
        counters: None,
    }));
    changes
}

/// Everything but the rules, as path and text. Secrets are told apart, never shown.
fn settings(plan: &Plan) -> Settings {
    let Plan { listen, admin, clients, bans, rate_limits, headers, error_body, store, log, traces, .. } =
        plan;
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
    set("store.directory", store.directory.clone().unwrap_or_default());
    set("bans", network_words(bans));
    set("headers", headers.iter().map(|style| style.name()).collect::<Vec<_>>().join(", "));
    set("error_body", error_body.name().to_owned());
    set("store.url", store.url.as_ref().map_or("memory".to_owned(), ToString::to_string));
    set("log.access", log.access.to_string());
    set("log.refused", log.refused.to_string());
    set("log.to", log.to.to_string());
    let traced =
        traces.as_ref().map(|traces| format!("{} of requests to {}", traces.sample, traces.endpoint));
    set("traces", traced.unwrap_or_default());
    set("store.max_memory", size_text(store.max_memory));
    routing_settings(plan, &mut set);
    let default_tier = clients.tiers.default.and_then(|index| rate_limits.tiers.get(index));
    set("clients.tiers.default", default_tier.map(|tier| tier.name.clone()).unwrap_or_default());
    client_settings(clients, &mut set);
    settings
}

/// Where requests go, and how they are read on the way.
fn routing_settings(plan: &Plan, set: &mut dyn FnMut(&str, String)) {
    let Plan { upstreams, routes, http, .. } = plan;
    for (key, value) in http.settings() {
        set(&format!("http.{key}"), value.to_owned());
    }
    for upstream in upstreams {
        let mut words = format!("{}, {}", upstream.servers.join(", "), upstream.balance.name());
        if let Some(health) = &upstream.health {
            // Writing to a text does not fail.
            let _ = write!(words, ", {} every {}", health.path, span_text(health.every));
        }
        set(&format!("upstream `{}`", upstream.name), words);
    }
    let name = |index: usize| upstreams.get(index).map_or("", |upstream| upstream.name.as_str());
    let route_words = routes.iter().map(|route| {
        let mut words = format!("{}{} → {}", route.host, route.path, name(route.upstream));
        for ((key, value), _) in
            route.http.settings().iter().zip(http.settings()).filter(|(own, inherited)| *own != inherited)
        {
            // Writing to a text does not fail.
            let _ = write!(words, ", {key}: {value}");
        }
        words
    });
    set("routes", route_words.collect::<Vec<_>>().join("; "));
}

fn client_settings(clients: &Clients, set: &mut dyn FnMut(&str, String)) {
    let Clients { identify_by, api_key_header, accepts_unverified_keys, user, tenant, .. } = clients;
    let Clients { trusted_proxies, ipv6_prefix, fingerprint_headers, cookie, tiers, exempt, .. } = clients;
    set("clients.identify_by", identify_by.iter().map(|one| one.name()).collect::<Vec<_>>().join(", "));
    set("clients.api_key.header", api_key_header.clone());
    let verify = if *accepts_unverified_keys { "none" } else { "keys_file" };
    set("clients.api_key.verify", verify.to_owned());
    set("clients.user", user.as_ref().map(source_words).unwrap_or_default());
    set("clients.tenant", tenant.as_ref().map(source_words).unwrap_or_default());
    set("clients.ip.trusted_proxies", network_words(trusted_proxies));
    set("clients.ip.ipv6_prefix", ipv6_prefix.to_string());
    set("clients.fingerprint.headers", fingerprint_headers.join(", "));
    set("clients.cookie.name", cookie.clone().unwrap_or_default());
    set("clients.tiers.file", tiers.file.clone().unwrap_or_default());
    set("clients.exempt.networks", network_words(&exempt.networks));
    if !exempt.api_keys.is_empty() {
        set("clients.exempt.api_keys_file", format!("{} API keys", exempt.api_keys.len()));
    }
}

/// A few networks, or how many there are.
fn network_words(networks: &[ipnet::IpNet]) -> String {
    if networks.len() > 8 {
        return format!("{} networks", networks.len());
    }
    networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn source_words(source: &NameSource) -> String {
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
