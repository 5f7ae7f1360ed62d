//! Resilience settings as text, for explanations and reloads.

use std::fmt;

use tidegate_core::{AdaptiveConfig, BreakerConfig, WindowLength};

use super::{
    BreakerPlan, BulkheadPlan, EjectPlan, FallbackPlan, ResiliencePlan, RetryCauses, RetryPlan, TimeoutsPlan,
};
use crate::plan::UpstreamPlan;
use crate::units::{size_text, span_text};

impl ResiliencePlan {
    /// The settings by key, without those that are not set. Those with a default that applies are always there.
    pub(crate) fn settings(&self, upstreams: &[UpstreamPlan]) -> Vec<(&'static str, String)> {
        let Self { timeouts, retry, breaker, bulkhead, eject, shed, fallback } = self;
        let eject = eject.as_ref().map_or_else(|| "off".to_owned(), ToString::to_string);
        let settings = [
            ("timeouts", Some(timeouts.to_string())),
            ("retry", Some(retry.to_string())),
            ("breaker", breaker.as_ref().map(ToString::to_string)),
            ("bulkhead", bulkhead.as_ref().map(ToString::to_string)),
            ("eject", Some(eject)),
            ("shed", shed.as_ref().map(describe_shed)),
            ("fallback", fallback.as_ref().map(|fallback| fallback.describe(upstreams))),
        ];
        settings.into_iter().filter_map(|(key, text)| Some((key, text?))).collect()
    }
}

impl fmt::Display for TimeoutsPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connect, request, idle, total, starts_deadline } = *self;
        let [connect, request, idle, total] = [connect, request, idle, total].map(span_text);
        let deadline = if starts_deadline { ", starts a deadline" } else { "" };
        write!(f, "connect {connect}, request {request}, idle {idle}, total {total}{deadline}")
    }
}

impl fmt::Display for RetryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempts, on, methods, backoff, budget, buffer } = self;
        if *attempts <= 1 {
            return f.write_str("off");
        }
        let [base, cap] = [backoff.base(), backoff.cap()].map(span_text);
        let jitter = backoff.jitter().name();
        let methods =
            if *methods == Self::IDEMPOTENT { "idempotent methods".to_owned() } else { methods.join(", ") };
        write!(f, "up to {attempts} attempts on {on}; {methods}; ")?;
        write!(
            f,
            "waits {base} to {cap}, {jitter} jitter; budget {} and {}/s; ",
            budget.share, budget.floor
        )?;
        match *buffer {
            0 => f.write_str("no bodies"),
            bytes => write!(f, "bodies up to {}", size_text(bytes)),
        }
    }
}

impl fmt::Display for RetryCauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connect, reset, timeout, statuses } = self;
        let words = [("connect", connect), ("reset", reset), ("timeout", timeout)];
        let words = words.into_iter().filter(|(_, is_set)| **is_set).map(|(word, _)| word.to_owned());
        let is_server_error = |status: &&u16| (500..=599).contains(*status);
        let is_whole_class = statuses.iter().filter(is_server_error).count() == 100;
        let listed = statuses.iter().filter(|status| !(is_whole_class && is_server_error(status)));
        let class = is_whole_class.then(|| "5xx".to_owned());
        let all: Vec<_> = words.chain(listed.map(ToString::to_string)).chain(class).collect();
        f.write_str(&all.join(", "))
    }
}

impl fmt::Display for BreakerPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BreakerConfig { failures, failure_rate, slow, window, min_calls, .. } = self.config;
        let BreakerConfig { open_for, max_open_for, probes, successes, .. } = self.config;
        let rates = [
            failure_rate.map(|rate| format!("{rate} failures")),
            slow.map(|slow| format!("{} over {}", slow.rate, span_text(slow.over))),
        ];
        let rates: Vec<_> = rates.into_iter().flatten().collect();
        let length = match window {
            WindowLength::Time(span) => span_text(span),
            WindowLength::Calls(calls) => format!("{calls} calls"),
        };
        let rates = (!rates.is_empty())
            .then(|| format!("at {} (window {length}, at least {min_calls} calls)", rates.join(" or ")));
        let failures = failures.map(|failures| format!("after {failures} failures in a row"));
        let conditions: Vec<_> = failures.into_iter().chain(rates).collect();
        write!(f, "per {}: opens {}; ", self.scope.name(), conditions.join(" or "))?;
        write!(f, "open for {}", span_text(open_for))?;
        if max_open_for > open_for {
            write!(f, " to {}", span_text(max_open_for))?;
        }
        write!(f, "; probes {probes}, successes {successes}")
    }
}

impl fmt::Display for BulkheadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { concurrent, queue, wait, connections } = *self;
        write!(f, "at most {concurrent} in flight")?;
        if queue > 0 {
            write!(f, ", {queue} waiting up to {}", span_text(wait))?;
        }
        match connections {
            Some(connections) => write!(f, ", {connections} connections"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for EjectPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, duration, at_most } = *self;
        write!(f, "after {after} failures in a row for {}, at most {at_most} of servers", span_text(duration))
    }
}

fn describe_shed(config: &AdaptiveConfig) -> String {
    let AdaptiveConfig { initial, min, max, .. } = config;
    format!("adaptive, {min} to {max} in flight, initially {initial}")
}

impl FallbackPlan {
    fn describe(&self, upstreams: &[UpstreamPlan]) -> String {
        match self {
            Self::Response { status, body: None } => status.to_string(),
            Self::Response { status, body: Some(body) } => {
                format!("{status} with {} ({} bytes)", body.file, body.content.len())
            }
            Self::Upstream(index) => {
                let name = upstreams.get(*index).map_or("", |upstream| upstream.name.as_str());
                format!("upstream {name}")
            }
        }
    }
}
