//! The limits of a policy as the documentation of an API publishes them.
//!
//! They are those that every client of the API can meet: limits in shadow mode reject nothing, those of a canary apply to some
//! clients only, and those with `report: off` are not announced. Conditions and names of headers that rules look at are how an operator tells requests apart; they are not listed.

use std::fmt::{self, Write as _};

use serde::Serialize;
use tidegate_core::LimitUnit;

use crate::plan::{
    ConcurrencyRule, CounterScope, CustomRule, ExceedAction, Mode, Plan, RejectionPlan, Rule, RuleMatch,
};
use crate::units::{size_text, span_text};

/// All limits that clients of an API have to know.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PublishedLimits {
    /// In the order in which they are checked.
    pub limits: Vec<PublishedLimit>,
    /// The tiers without a limit of their own.
    pub unlimited_tiers: Vec<String>,
}

/// A limit that clients of an API have to know.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PublishedLimit {
    /// Its name, as responses have it.
    pub name: String,
    /// The methods that it applies to; none means all.
    pub methods: Vec<String>,
    /// The paths that it applies to; none means all.
    pub paths: Vec<String>,
    /// Whether it applies only to some of these requests.
    pub is_conditional: bool,
    /// What has a counter of its own.
    pub per: String,
    /// The units per window, as the policy has them, or the number of concurrent requests.
    pub units: u64,
    /// What a unit is.
    pub unit: String,
    /// The window in seconds; a limit on concurrent requests has none.
    pub window: Option<f64>,
    /// How many units can be used at once, if that is another number.
    pub burst: Option<u64>,
    /// What happens beyond it.
    pub beyond: String,
}

/// The published limits of a policy.
pub fn published_limits(plan: &Plan) -> PublishedLimits {
    let limits = &plan.rate_limits;
    let everywhere = RuleMatch::default();
    let mut published = Vec::new();
    let mut add = |rule: &Rule, matches: &RuleMatch, per: String| {
        if rule.mode == Mode::Enforce && rule.is_reported {
            published.push(rate(rule, matches, per));
        }
    };
    let single =
        [(&limits.global, "all clients together"), (&limits.tenant, "tenant"), (&limits.default, "client")];
    for (rule, per) in single {
        if let Some(rule) = rule {
            add(rule, &everywhere, per.to_owned());
        }
    }
    for tier in &limits.tiers {
        if let Some(rule) = &tier.rule {
            add(rule, &everywhere, format!("client of the tier `{}`", tier.name));
        }
    }
    for CustomRule { rule, matches, count, .. } in &limits.rules {
        add(rule, matches, per_text(count));
    }
    for endpoint in &limits.endpoints {
        let matches = RuleMatch { paths: vec![endpoint.pattern.clone()], ..RuleMatch::default() };
        add(&endpoint.rule, &matches, "client".to_owned());
    }
    let is_published = |rule: &&ConcurrencyRule| rule.mode == Mode::Enforce && rule.is_reported;
    published.extend(limits.concurrent.iter().filter(is_published).map(concurrency));
    let unlimited = limits.tiers.iter().filter(|tier| tier.rule.is_none()).map(|tier| tier.name.clone());
    PublishedLimits { limits: published, unlimited_tiers: unlimited.collect() }
}

fn rate(rule: &Rule, matches: &RuleMatch, per: String) -> PublishedLimit {
    let unit = match rule.quota.full_report("").unit {
        LimitUnit::Requests => "requests".to_owned(),
        LimitUnit::Cost => "units of cost".to_owned(),
        LimitUnit::ContentBytes(bytes) => format!("times {} of content", size_text(bytes)),
        LimitUnit::ConcurrentRequests => "concurrent requests".to_owned(),
    };
    PublishedLimit {
        name: rule.name.clone(),
        methods: matches.methods.clone(),
        paths: paths(matches),
        is_conditional: is_conditional(matches),
        per,
        units: rule.requests,
        unit,
        window: Some(std::time::Duration::from(rule.window).as_secs_f64()),
        burst: rule.burst.filter(|burst| *burst != rule.requests),
        beyond: beyond(&rule.on_exceed, rule.rejection.as_deref()),
    }
}

fn concurrency(rule: &ConcurrencyRule) -> PublishedLimit {
    PublishedLimit {
        name: rule.name.clone(),
        methods: rule.matches.methods.clone(),
        paths: paths(&rule.matches),
        is_conditional: is_conditional(&rule.matches),
        per: per_text(&rule.count),
        units: rule.concurrent.into(),
        unit: "concurrent requests".to_owned(),
        window: None,
        burst: None,
        beyond: beyond(&ExceedAction::Reject, rule.rejection.as_deref()),
    }
}

fn paths(matches: &RuleMatch) -> Vec<String> {
    matches.paths.iter().map(ToString::to_string).collect()
}

fn is_conditional(matches: &RuleMatch) -> bool {
    !matches.headers.is_empty() || matches.when.is_some()
}

fn per_text(count: &CounterScope) -> String {
    let names = |kinds: &[crate::ClientKind], with: &str| {
        kinds.iter().map(|kind| kind.name().replace('_', " ")).collect::<Vec<_>>().join(with)
    };
    match count {
        CounterScope::Client => "client".to_owned(),
        CounterScope::Everybody => "all clients together".to_owned(),
        CounterScope::Per(kinds) => names(kinds, " and "),
        CounterScope::PerEach(kinds) => names(kinds, ", "),
    }
}

fn beyond(action: &ExceedAction, rejection: Option<&RejectionPlan>) -> String {
    let status = rejection.map_or(429, |rejection| rejection.status.as_u16());
    match action {
        ExceedAction::Reject | ExceedAction::Slow(_) | ExceedAction::Borrow(_) => status.to_string(),
        ExceedAction::Cached { .. } => format!("a stored response, or {status}"),
        ExceedAction::Wait { max } => format!("waits up to {}, then {status}", span_text(*max)),
        ExceedAction::Defer(_) => format!("202, or {status}"),
        ExceedAction::Degrade { .. } => "served in a simpler way".to_owned(),
    }
}

/// As Markdown.
impl fmt::Display for PublishedLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("| limit | requests | for each | units | beyond it |\n|---|---|---|---|---|\n")?;
        for limit in &self.limits {
            let PublishedLimit { name, per, beyond, .. } = limit;
            // A bar would end the cell.
            let cell = |text: &str| text.replace('|', "\\|");
            writeln!(
                f,
                "| {} | {} | {} | {} | {beyond} |",
                cell(name),
                cell(&limit.place()),
                cell(per),
                limit.amount()
            )?;
        }
        if !self.unlimited_tiers.is_empty() {
            let names: Vec<_> = self.unlimited_tiers.iter().map(|name| format!("`{name}`")).collect();
            writeln!(f, "\nClients of the tier {} have no limit of their own.", names.join(", "))?;
        }
        Ok(())
    }
}

impl PublishedLimit {
    fn place(&self) -> String {
        let mut text = match (self.methods.join(", "), self.paths.join(", ")) {
            (methods, paths) if methods.is_empty() && paths.is_empty() => "all".to_owned(),
            (methods, paths) if methods.is_empty() => paths,
            (methods, paths) if paths.is_empty() => methods,
            (methods, paths) => format!("{methods} {paths}"),
        };
        text.push_str(if self.is_conditional { ", some" } else { "" });
        text
    }

    fn amount(&self) -> String {
        let mut text = format!("{} {}", self.units, self.unit);
        if let Some(window) = self.window {
            let window = std::time::Duration::from_secs_f64(window);
            // Writing to a String cannot fail.
            let _ = write!(text, " per {}", span_text(window.into()));
        }
        if let Some(burst) = self.burst {
            let _ = write!(text, ", at most {burst} at once");
        }
        text
    }
}

#[cfg(test)]
mod tests;
