//! Explanations as text.

use std::fmt;

use crate::explain::{ExplainedConcurrency, ExplainedRoute, ExplainedRule, ExplainedVerdict, Explanation};

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            method,
            host,
            path,
            readings,
            client,
            route,
            verdict,
            rules,
            concurrency_checks,
            tightest,
            checks: _,
        } = self;
        writeln!(
            f,
            "{method} {path}{}",
            if host.is_empty() { String::new() } else { format!(" at {host}") }
        )?;
        for reading in readings {
            writeln!(f, "also as   {reading}")?;
        }
        writeln!(f, "client    {} ({})", client.key, client.how)?;
        writeln!(f, "address   {}", client.address)?;
        writeln!(f, "tier      {}", client.tier.as_deref().unwrap_or("none"))?;
        if let Some(tenant) = &client.tenant {
            writeln!(f, "tenant    {tenant}")?;
        }
        match route {
            // The request was rejected before routing.
            None if matches!(verdict, ExplainedVerdict::Rejected { status: 400, .. }) => {}
            Some(route) => route.write(f)?,
            None => writeln!(f, "route     no match")?,
        }
        for (index, rule) in rules.iter().enumerate() {
            rule.write(index + 1, *tightest == Some(index), f)?;
        }
        for (index, check) in (rules.len() + 1..).zip(concurrency_checks) {
            check.write(index, f)?;
        }
        match verdict {
            ExplainedVerdict::Exempt { why } => writeln!(f, "verdict   exempt from limits: {why}"),
            ExplainedVerdict::Banned { subject, by: "policy" } => {
                writeln!(f, "verdict   403: {subject} is banned")
            }
            ExplainedVerdict::Banned { subject, by } => {
                writeln!(f, "verdict   403: {subject} is banned by an {by}")
            }
            ExplainedVerdict::NotAllowed => {
                writeln!(f, "verdict   403: {} is in no network of `allow`", client.address)
            }
            ExplainedVerdict::Rejected { status, reason } => writeln!(f, "verdict   {status}: {reason}"),
            ExplainedVerdict::Admitted if rules.is_empty() && concurrency_checks.is_empty() => {
                writeln!(f, "verdict   admitted: no limit applies")
            }
            ExplainedVerdict::Admitted => writeln!(f, "verdict   admitted, assuming no earlier requests"),
            ExplainedVerdict::LimitExceeded { by } => writeln!(f, "verdict   429: limit `{by}` exceeded"),
            ExplainedVerdict::LockedOut { by, left } => {
                writeln!(f, "verdict   429: locked out by `{by}` for {left}")
            }
        }
    }
}

impl ExplainedRoute {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, path, upstream, servers, bulkhead, resilience } = self;
        writeln!(f, "route     {host}{path} → {upstream} ({})", servers.join(", "))?;
        if let Some(bulkhead) = bulkhead {
            writeln!(f, "bulkhead  of this route: {bulkhead}")?;
        }
        for (key, text) in resilience {
            writeln!(f, "{key:<9} {text}")?;
        }
        Ok(())
    }
}

impl ExplainedRule {
    fn write(&self, number: usize, is_tightest: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, line, limit, key, cost, charge, binding, mode, on_exceed, penalty, .. } = self;
        let Self { sharing, condition_failed, outcome, .. } = self;
        writeln!(f, "{number:>2}. {name} (line {line}): {limit}")?;
        writeln!(f, "    counter {key}, cost {cost}, {}", role(mode, *binding))?;
        if let Some(charge) = charge {
            writeln!(f, "    {charge}")?;
        }
        if let Some(action) = on_exceed {
            writeln!(f, "    when exceeded: {action}")?;
        }
        if let Some(penalty) = penalty {
            writeln!(f, "    {penalty}")?;
        }
        if let Some(sharing) = sharing {
            writeln!(f, "    {}", sharing.text)?;
        }
        if *condition_failed {
            writeln!(f, "    condition could not be evaluated, so the rule applies")?;
        }
        let after = outcome.after.as_deref().unwrap_or_default();
        let result = match outcome.verdict {
            "pass" if after.is_empty() => "admitted".to_owned(),
            "pass" => format!("admitted after a delay of {after}"),
            "never" => "never admitted: the cost exceeds the limit".to_owned(),
            _ => format!("rejected, retry after {after}"),
        };
        let tightest = if is_tightest { "; tightest limit" } else { "" };
        let would = if *binding { "" } else { "if enforced: " };
        writeln!(f, "    {would}{result}, {} of {} left{tightest}", outcome.remaining, outcome.limit)
    }
}

impl ExplainedConcurrency {
    fn write(&self, number: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, line, limit, key, binding, mode, sharing, condition_failed } = self;
        writeln!(f, "{number:>2}. {name} (line {line}): {limit}")?;
        writeln!(f, "    counts requests in progress of {key}, {}", role(mode, *binding))?;
        if let Some(sharing) = sharing {
            writeln!(f, "    {}", sharing.text)?;
        }
        if *condition_failed {
            writeln!(f, "    condition could not be evaluated, so the rule applies")?;
        }
        Ok(())
    }
}

/// Whether a rule is enforced for the client, and why.
fn role(mode: &str, binding: bool) -> String {
    match (mode, binding) {
        ("enforce", _) => "enforced".to_owned(),
        ("shadow", _) => "not enforced: shadow mode".to_owned(),
        (mode, true) => format!("enforced: in the {mode}"),
        (mode, false) => format!("not enforced: outside the {mode}"),
    }
}
