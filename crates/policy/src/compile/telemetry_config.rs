//! Decodes `log` and `traces`.

use crate::language::{LOG, TRACES};
use crate::plan::{LogPlan, LogTarget, SampleRate, TracesPlan};
use crate::raw::{Fields, Finding, ProblemReport, YamlNode};
use crate::render::quote;
use crate::units;

use super::scalar;

pub(super) fn log<'s>(node: &YamlNode<'s>, report: &mut ProblemReport<'s>) -> Option<LogPlan> {
    let fields = Fields::open(node, &LOG, report)?;
    let access = fields.get_or("access", SampleRate::NONE, |node| sample(node, report));
    let rejected = fields.get("rejected").map_or(access, |node| sample(node, report));
    let to = fields.get_or("to", LogTarget::Stderr, |node| to(node, report));
    Some(LogPlan { access: access?, rejected: rejected?, to: to? })
}

fn to(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<LogTarget> {
    match scalar::text(node, "`stderr`, `stdout`, or a file name", report)? {
        "stderr" => Some(LogTarget::Stderr),
        "stdout" => Some(LogTarget::Stdout),
        name if name.chars().any(char::is_control) => {
            report.push(Finding::error(node, format!("invalid file name {}", quote(name))));
            None
        }
        name => Some(LogTarget::File(name.to_owned())),
    }
}

pub(super) fn traces<'s>(node: &YamlNode<'s>, report: &mut ProblemReport<'s>) -> Option<TracesPlan> {
    const ONE_PERCENT: Option<SampleRate> = SampleRate::from_millionths(10_000);
    let fields = Fields::open(node, &TRACES, report)?;
    let sample = fields.get("sample").map_or(ONE_PERCENT, |node| sample(node, report));
    let node = fields.require("endpoint", report)?;
    let endpoint = scalar::text(node, "a URL, for example `http://127.0.0.1:4317`", report)?;
    let authority = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    let authority = authority.map(|authority| authority.strip_suffix('/').unwrap_or(authority));
    let is_valid = authority.is_some_and(|authority| {
        !authority.is_empty()
            && authority.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte))
    });
    if !is_valid {
        let finding = Finding::error(node, format!("invalid collector URL {}", quote(endpoint)));
        let finding = finding.expected("http:// or https://, host and port, without a path");
        report.push(
            finding.hint("for example `http://127.0.0.1:4317`; 4317 is the usual port of OTLP over gRPC"),
        );
        return None;
    }
    Some(TracesPlan { endpoint: endpoint.trim_end_matches('/').to_owned(), sample: sample? })
}

fn sample(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<SampleRate> {
    const EXPECTED: &str = "`off`, `all`, or a percentage, for example `1%`";
    let text = scalar::text(node, EXPECTED, report)?;
    match text {
        "off" => return Some(SampleRate::NONE),
        "all" => return Some(SampleRate::ALL),
        _ => {}
    }
    let wrong = |what: String| Finding::error(node, what).expected(EXPECTED);
    let finding = match units::percent(text).map(SampleRate::from_millionths) {
        Ok(Some(sample)) => return Some(sample),
        Ok(None) => wrong(format!("{} is more than 100%", quote(text))).hint("write `all`"),
        Err(_) => {
            let hint = match text.parse::<f64>() {
                Ok(number) if (0.0..=100.0).contains(&number) => format!("write `{text}%`"),
                _ if matches!(text, "true" | "on" | "yes") => "write `all`".to_owned(),
                _ if matches!(text, "false" | "no" | "none") => "write `off`".to_owned(),
                _ => "for example `1%` or `0.5%`".to_owned(),
            };
            wrong(format!("{} is not a percentage", quote(text))).hint(hint)
        }
    };
    report.push(finding);
    None
}
