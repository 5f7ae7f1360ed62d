//! Reads the files that a policy refers to.

use crate::compile::{CompileContext, scalar};
use crate::files::FileError;
use crate::raw::{Finding, YamlNode};
use crate::render::quote;

/// The number of invalid lines that are reported one by one.
const MAX_REPORTED_LINES: usize = 5;

/// A referenced file: its name and contents.
pub(super) struct ReferencedFile {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// Reads the file that `node` names.
pub(super) fn read_file(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<ReferencedFile> {
    let name = scalar::text(node, "a file name, for example `keys.csv`", &mut context.report)?;
    let finding = match context.files.read(name) {
        Ok(bytes) => return Some(ReferencedFile { name: name.to_owned(), bytes: bytes.into_owned() }),
        Err(FileError::Missing) => Finding::error(node, format!("file not found: {}", quote(name)))
            .hint("create it or correct the name; the path is relative to the policy's directory"),
        Err(error) => Finding::error(node, format!("cannot read {}: {error}", quote(name)))
            .hint("check that the user that runs tidegate may read it"),
    };
    context.report.push(finding);
    None
}

/// Iterates over the lines of a list file, numbered from 1, without comments and empty lines.
pub(super) fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    lines
        .map(|(index, line)| {
            let end = line.iter().position(|byte| *byte == b'#').unwrap_or(line.len());
            (index + 1, line.get(..end).unwrap_or_default().trim_ascii())
        })
        .filter(|(_, line)| !line.is_empty())
}

/// Reports invalid lines of a file.
pub(super) fn report_invalid_lines(
    node: &YamlNode<'_>,
    file: &str,
    invalid: &[(usize, String)],
    expected: &str,
    context: &mut CompileContext<'_, '_>,
) {
    for (line, what) in invalid.iter().take(MAX_REPORTED_LINES) {
        let finding = Finding::error(node, format!("{}, line {line}: {what}", quote(file)));
        context.report.push(finding.expected(expected));
    }
    if let Some(more) = invalid.len().checked_sub(MAX_REPORTED_LINES).filter(|more| *more > 0) {
        let finding = Finding::error(node, format!("{}: {more} more invalid lines", quote(file)));
        context.report.push(finding.expected(expected));
    }
}
