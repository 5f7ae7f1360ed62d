//! `tidegate check`: validates policies and Envoy configurations.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use tidegate_core::Timestamp;
use tidegate_policy::{Problems, compile};
use tidegate_store::{Clock, SystemClock};

use crate::args::{CheckArgs, Format};
use crate::certificate;
use crate::exit::CommandOutcome;
use crate::file::{self, PolicyFolder};
use crate::print::write_stdout;
use crate::serve::envoy_config::{DescriptorReport, DomainReport, EnvoyConfig, EnvoyConfigError, domains};

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<CommandOutcome> {
    let now = SystemClock::new().now();
    let policies = args.files.iter().map(|path| check(path, now));
    let reports: Vec<_> = policies.chain(args.envoy_config.as_deref().map(check_envoy)).collect();
    let written = write_stdout(|output| match args.format {
        Format::Human => write_text(&reports, output),
        Format::Json => write_json(&reports, output),
    });
    written.context("cannot write the result")?;
    Ok(if reports.iter().all(|report| report.ok) { CommandOutcome::Success } else { CommandOutcome::Failure })
}

/// The result for one file, or for the folder of an Envoy configuration.
#[derive(Debug, Default, Serialize)]
struct CheckReport {
    file: String,
    ok: bool,
    /// Why the file could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
    /// The same as a sentence.
    #[serde(skip)]
    failure: String,
    #[serde(flatten)]
    problems: Problems,
    /// The number of rules, if the policy is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<usize>,
    /// What an Envoy configuration contains, if it is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    domains: Option<Vec<DomainReport>>,
}

fn check_envoy(folder: &Path) -> CheckReport {
    let file = folder.display().to_string();
    match EnvoyConfig::new(folder).check() {
        Ok(limits) => {
            CheckReport { file, ok: true, domains: Some(domains(&limits)), ..CheckReport::default() }
        }
        Err(EnvoyConfigError::Problems(problems)) => CheckReport { file, problems, ..CheckReport::default() },
        Err(error) => {
            let failure = error.to_string();
            CheckReport { file, unreadable: Some(failure.clone()), failure, ..CheckReport::default() }
        }
    }
}

fn check(path: &Path, now: Timestamp) -> CheckReport {
    let file = path.display().to_string();
    let bytes = match file::read_policy_or_pipe(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            let reason = file::describe_io_error(&error);
            let failure = format!("cannot read {file}: {reason}");
            return CheckReport { file, unreadable: Some(reason), failure, ..CheckReport::default() };
        }
    };
    match compile(&file, &bytes, &PolicyFolder::of(path)) {
        Ok(compiled) => {
            let mut problems = compiled.warnings;
            problems.extend(certificate::inspect(&compiled.plan, now));
            let ok = !problems.has_errors();
            let limits = &compiled.plan.rate_limits;
            let rules = ok.then(|| limits.iter().count() + limits.concurrent.len());
            CheckReport { file, ok, problems, rules, ..CheckReport::default() }
        }
        Err(problems) => CheckReport { file, problems, ..CheckReport::default() },
    }
}

fn write_text(reports: &[CheckReport], output: &mut impl Write) -> std::io::Result<()> {
    for CheckReport { file, ok, unreadable, failure, problems, rules, domains } in reports {
        write!(output, "{problems}")?;
        match (unreadable, ok) {
            (Some(_), _) => writeln!(output, "{failure}")?,
            (None, false) => writeln!(output, "{file}: {}", counted(problems.count(), "problem"))?,
            (None, true) => {
                let found = match domains {
                    Some(domains) => {
                        let limits = domains.iter().map(|domain| domain.limits.len()).sum();
                        format!("{}, {}", counted(domains.len(), "domain"), counted(limits, "limit"))
                    }
                    None => counted(rules.unwrap_or_default(), "rule"),
                };
                let warnings = match problems.count() {
                    0 => String::new(),
                    count => format!(", {}", counted(count, "warning")),
                };
                writeln!(output, "{file}: valid, {found}{warnings}")?;
            }
        }
        write_domains(domains.as_deref().unwrap_or_default(), output)?;
    }
    Ok(())
}

fn counted(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

fn write_domains(domains: &[DomainReport], output: &mut impl Write) -> std::io::Result<()> {
    for DomainReport { domain, limits } in domains {
        writeln!(output, "  domain {domain}")?;
        for DescriptorReport { descriptor, limit, shadow_mode, quota_mode } in limits {
            let shadow = if *shadow_mode { ", shadow mode" } else { "" };
            let quota = if *quota_mode { ", quota mode" } else { "" };
            writeln!(output, "    {descriptor}: {limit}{shadow}{quota}")?;
        }
    }
    Ok(())
}

fn write_json(reports: &[CheckReport], output: &mut impl Write) -> std::io::Result<()> {
    serde_json::to_writer_pretty(&mut *output, reports)?;
    writeln!(output)
}

#[cfg(test)]
mod tests {
    use tidegate_testkit::folder::Folder;

    use super::*;

    fn text_of(report: CheckReport) -> String {
        let mut output = Vec::new();
        write_text(&[report], &mut output).unwrap();
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn check_of_an_envoy_configuration_lists_domains_and_limits() {
        let folder = Folder::new();
        folder.write(
            "edge.yaml",
            "
domain: edge
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 3, algorithm: token_bucket } }
  - { key: user, value: blocked, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 0 } }
  - key: path
    descriptors:
      - { key: user, shadow_mode: true, rate_limit: { unit: hour, unit_multiplier: 2, requests_per_unit: 9 } }
",
        );
        folder.write("empty.yml", "domain: a");
        let report = check_envoy(folder.root());
        assert!(report.ok);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["domains"][1]["limits"][1]["limit"], "3 per minute, token_bucket");
        let expected = "valid, 2 domains, 3 limits
  domain a
  domain edge
    path/user: 9 per 2 hours, shadow mode
    user: 3 per minute, token_bucket
    user=blocked: 0 per day, quota mode
";
        assert_eq!(text_of(report), format!("{}: {expected}", folder.root().display()));
    }

    #[test]
    fn check_of_an_invalid_envoy_configuration_reports_what_serve_reports() {
        let folder = Folder::new();
        let text = text_of(check_envoy(folder.root()));
        assert!(text.ends_with("contains no files that end with .yaml or .yml\n"), "{text}");
        folder.write("edge.yaml", "domain: edge\ndescriptors: [{ kye: user }]");
        let report = check_envoy(folder.root());
        assert!(!report.ok);
        let text = text_of(report);
        assert!(text.contains("edge.yaml:2:17") && text.contains("did you mean `key`?"), "{text}");
        assert!(text.ends_with(": 1 problem\n"), "{text}");
        let missing = check_envoy(&folder.path("missing"));
        assert!(!missing.ok && text_of(missing).ends_with("missing: no such file\n"));
    }
}
