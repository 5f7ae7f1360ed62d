//! Reads the files that a policy refers to.

use std::path::Path;

use crate::compile::{CompileContext, scalar};
use crate::files::FileError;
use crate::raw::{Finding, YamlNode};
use crate::render::quote;

/// The number of invalid lines that are reported one by one.
const MAX_REPORTED_LINES: usize = 5;

/// A referenced file: its name and contents.
pub(super) struct ReferencedFile {
    /// The name as in the policy.
    pub(super) name: String,
    /// The name as seen from the current folder, for messages.
    pub(super) shown: String,
    pub(super) bytes: Vec<u8>,
}

/// Reads the file that `node` names.
pub(super) fn read_file(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<ReferencedFile> {
    let name = scalar::text(node, "a file name, for example `keys.csv`", &mut context.report)?;
    let shown = shown_name(context.report.file(), name);
    let finding = match context.files.read(name) {
        Ok(bytes) => {
            return Some(ReferencedFile { name: name.to_owned(), shown, bytes: bytes.into_owned() });
        }
        Err(FileError::Missing) => Finding::error(node, format!("file not found: {}", quote(&shown)))
            .hint("create it or correct the name; the path is relative to the policy's directory"),
        Err(error) => Finding::error(node, format!("cannot read {}: {error}", quote(&shown)))
            .hint("check that the user that runs tidegate may read it"),
    };
    context.report.push(finding);
    None
}

/// The name of a file beside the policy, as seen from the current folder.
fn shown_name(policy: &str, name: &str) -> String {
    let folder = Path::new(policy).parent().unwrap_or(Path::new(""));
    folder.join(name).display().to_string()
}

/// The content type of a file, by the end of its name; `None` if that is not known.
pub(super) fn content_type(name: &str) -> Option<&'static str> {
    let extension = Path::new(name).extension()?.to_str()?.to_ascii_lowercase();
    match extension.as_str() {
        "json" => Some("application/json"),
        "html" => Some("text/html; charset=utf-8"),
        "txt" => Some("text/plain; charset=utf-8"),
        _ => None,
    }
}

/// Iterates over the lines of a list file, numbered from 1, without comments and empty lines. A comment begins at `#` at the
/// start of a line or after white space: a key may contain `#`.
pub(super) fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    lines
        .map(|(index, line)| {
            let is_comment = |at: usize| line[at] == b'#' && (at == 0 || line[at - 1].is_ascii_whitespace());
            let end = (0..line.len()).find(|at| is_comment(*at)).unwrap_or(line.len());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_in_a_list_begins_only_after_white_space() {
        let text = b"# all\nZx#9f8e\n10.0.0.1 # one\n\t#two\na#b # c\n\xff##\r\n";
        let found: Vec<_> = lines(text).collect();
        let expected: [(usize, &[u8]); 4] = [(2, b"Zx#9f8e"), (3, b"10.0.0.1"), (5, b"a#b"), (6, b"\xff##")];
        assert_eq!(found, expected);
    }
}
