//! `tidegate check`: is this policy good, and if not, why.

use std::borrow::Cow;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use tidegate_policy::{FileError, Files, LARGEST_FILE, Problems, compile};

use crate::args::{CheckArgs, Format};
use crate::exit::Exit;

/// What a policy may refer to can be larger than itself: a million API keys are about 50 MB.
const LARGEST_REFERENCED: u64 = 256 << 20;

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<Exit> {
    let reports: Vec<_> = args.files.iter().map(|path| check(path)).collect();
    let mut output = std::io::stdout().lock();
    let written = match args.format {
        Format::Human => human(&reports, &mut output),
        Format::Json => json(&reports, &mut output),
    };
    match written {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.context("cannot write the result")?,
    }
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

fn check(path: &Path) -> Report {
    let file = path.display().to_string();
    // One byte more than allowed is enough to see that there is too much.
    let most = u64::try_from(LARGEST_FILE).unwrap_or(u64::MAX).saturating_add(1);
    let bytes = match read(path, most) {
        Ok(bytes) => bytes,
        Err(error) => {
            let unreadable = Some(error.to_string());
            return Report { file, ok: false, unreadable, problems: Problems::default(), rules: None };
        }
    };
    let folder = Folder(path.parent().unwrap_or(Path::new("")).to_owned());
    match compile(&file, &bytes, &folder) {
        Ok(compiled) => {
            let rules = Some(compiled.plan.rate_limits.iter().count());
            Report { file, ok: true, unreadable: None, problems: compiled.warnings, rules }
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

/// Files in the folder of the policy.
struct Folder(PathBuf);

impl Files for Folder {
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        match read(&self.0.join(name), LARGEST_REFERENCED.saturating_add(1)) {
            Ok(bytes) if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > LARGEST_REFERENCED => {
                Err(FileError::Unreadable { reason: "it is larger than 256 MiB".to_owned() })
            }
            Ok(bytes) => Ok(Cow::Owned(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(FileError::Missing),
            Err(error) => Err(FileError::Unreadable { reason: error.to_string() }),
        }
    }
}

/// At most `most` bytes of a file.
fn read(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
