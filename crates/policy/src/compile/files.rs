//! Files that a policy refers to.

use crate::compile::{CompileContext, scalar};
use crate::files::FileError;
use crate::raw::{Finding, YamlNode};
use crate::render::quote;

/// What a problem repeats of a long list of bad lines.
const MAX_REPORTED_LINES: usize = 5;

/// A referenced file: its name and what it holds.
pub(super) struct ReferencedFile {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// The file that `node` names.
pub(super) fn read_file(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<ReferencedFile> {
    let name = scalar::text(node, "a file name, such as `keys.csv`", &mut context.report)?;
    let finding = match context.files.read(name) {
        Ok(bytes) => return Some(ReferencedFile { name: name.to_owned(), bytes: bytes.into_owned() }),
        Err(FileError::Missing) => Finding::error(node, format!("there is no file {}", quote(name)))
            .hint("it is looked for in the folder of the policy; create it, or correct the name"),
        Err(error) => Finding::error(node, format!("the file {} cannot be read: {error}", quote(name)))
            .hint("let the user that runs tidegate read it"),
    };
    context.report.push(finding);
    None
}

/// The lines of a list in a file, numbered from 1; comments and empty lines are left out.
pub(super) fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    lines
        .map(|(index, line)| {
            let end = line.iter().position(|byte| *byte == b'#').unwrap_or(line.len());
            (index + 1, line.get(..end).unwrap_or_default().trim_ascii())
        })
        .filter(|(_, line)| !line.is_empty())
}

/// Reports lines of a file that are not what they should be.
pub(super) fn bad_lines(
    node: &YamlNode<'_>,
    file: &str,
    bad: &[(usize, String)],
    expected: &str,
    context: &mut CompileContext<'_, '_>,
) {
    for (line, what) in bad.iter().take(MAX_REPORTED_LINES) {
        let finding = Finding::error(node, format!("line {line} of {} is wrong: {what}", quote(file)));
        context.report.push(finding.expected(expected));
    }
    if let Some(more) = bad.len().checked_sub(MAX_REPORTED_LINES).filter(|more| *more > 0) {
        let finding = Finding::error(node, format!("{more} more lines of {} are wrong", quote(file)));
        context.report.push(finding.expected(expected));
    }
}
