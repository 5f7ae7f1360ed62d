//! `tidegate check`: is this policy good, and if not, why.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use tidegate_core::Timestamp;
use tidegate_policy::{Problems, compile};
use tidegate_store::{Clock, SystemClock};

use crate::args::{CheckArgs, Format};
use crate::certificate;
use crate::exit::Exit;
use crate::file::{self, Folder};
use crate::print::to_stdout;

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<Exit> {
    let now = SystemClock::new().now();
    let reports: Vec<_> = args.files.iter().map(|path| check(path, now)).collect();
    let written = to_stdout(|output| match args.format {
        Format::Human => human(&reports, output),
        Format::Json => json(&reports, output),
    });
    written.context("cannot write the result")?;
    Ok(if reports.iter().all(|report| report.ok) { Exit::Done } else { Exit::Failed })
}

/// What is to be said of one file.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    ok: bool,
    /// Why the file could not be read at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
    #[serde(flatten)]
    problems: Problems,
    /// How many rules a good policy has.
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<usize>,
}

fn check(path: &Path, now: Timestamp) -> Report {
    let file = path.display().to_string();
    let bytes = match file::policy(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            let unreadable = Some(error.to_string());
            return Report { file, ok: false, unreadable, problems: Problems::default(), rules: None };
        }
    };
    match compile(&file, &bytes, &Folder::of(path)) {
        Ok(compiled) => {
            let mut problems = compiled.warnings;
            problems.extend(certificate::inspect(&compiled.plan, now));
            let ok = !problems.has_errors();
            let limits = &compiled.plan.rate_limits;
            let rules = ok.then(|| limits.iter().count() + limits.concurrent.len());
            Report { file, ok, unreadable: None, problems, rules }
        }
        Err(problems) => Report { file, ok: false, unreadable: None, problems, rules: None },
    }
}

fn human(reports: &[Report], output: &mut impl Write) -> std::io::Result<()> {
    for Report { file, ok, unreadable, problems, rules } in reports {
        write!(output, "{problems}")?;
        let count = problems.count();
        let counted = |word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        match (unreadable, ok) {
            (Some(error), _) => writeln!(output, "{file}: cannot be read: {error}")?,
            (None, false) => writeln!(output, "{file}: {}", counted("problem"))?,
            (None, true) => {
                let rules = rules.unwrap_or_default();
                let rules = format!("{rules} rule{}", if rules == 1 { "" } else { "s" });
                let warnings =
                    if problems.is_empty() { String::new() } else { format!(", {}", counted("warning")) };
                writeln!(output, "{file}: good, {rules}{warnings}")?;
            }
        }
    }
    Ok(())
}

fn json(reports: &[Report], output: &mut impl Write) -> std::io::Result<()> {
    serde_json::to_writer_pretty(&mut *output, reports)?;
    writeln!(output)
}
