//! `tidegate check`: validates policies.

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

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<CommandOutcome> {
    let now = SystemClock::new().now();
    let reports: Vec<_> = args.files.iter().map(|path| check(path, now)).collect();
    let written = write_stdout(|output| match args.format {
        Format::Human => write_text(&reports, output),
        Format::Json => write_json(&reports, output),
    });
    written.context("cannot write the result")?;
    Ok(if reports.iter().all(|report| report.ok) { CommandOutcome::Success } else { CommandOutcome::Failure })
}

/// The result for one file.
#[derive(Debug, Serialize)]
struct CheckReport {
    file: String,
    ok: bool,
    /// Why the file could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
    #[serde(flatten)]
    problems: Problems,
    /// The number of rules, if the policy is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<usize>,
}

fn check(path: &Path, now: Timestamp) -> CheckReport {
    let file = path.display().to_string();
    let bytes = match file::read_policy(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            let unreadable = Some(file::describe_io_error(&error));
            return CheckReport { file, ok: false, unreadable, problems: Problems::default(), rules: None };
        }
    };
    match compile(&file, &bytes, &PolicyFolder::of(path)) {
        Ok(compiled) => {
            let mut problems = compiled.warnings;
            problems.extend(certificate::inspect(&compiled.plan, now));
            let ok = !problems.has_errors();
            let limits = &compiled.plan.rate_limits;
            let rules = ok.then(|| limits.iter().count() + limits.concurrent.len());
            CheckReport { file, ok, unreadable: None, problems, rules }
        }
        Err(problems) => CheckReport { file, ok: false, unreadable: None, problems, rules: None },
    }
}

fn write_text(reports: &[CheckReport], output: &mut impl Write) -> std::io::Result<()> {
    for CheckReport { file, ok, unreadable, problems, rules } in reports {
        write!(output, "{problems}")?;
        let count = problems.count();
        let counted = |word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        match (unreadable, ok) {
            (Some(error), _) => writeln!(output, "cannot read {file}: {error}")?,
            (None, false) => writeln!(output, "{file}: {}", counted("problem"))?,
            (None, true) => {
                let rules = rules.unwrap_or_default();
                let rules = format!("{rules} rule{}", if rules == 1 { "" } else { "s" });
                let warnings =
                    if problems.is_empty() { String::new() } else { format!(", {}", counted("warning")) };
                writeln!(output, "{file}: valid, {rules}{warnings}")?;
            }
        }
    }
    Ok(())
}

fn write_json(reports: &[CheckReport], output: &mut impl Write) -> std::io::Result<()> {
    serde_json::to_writer_pretty(&mut *output, reports)?;
    writeln!(output)
}
