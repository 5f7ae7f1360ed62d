//! Collects findings by node while a policy is compiled; adds document paths and excerpts at the end.
//!
//! The compiler reports only the node. The path in the document is found afterwards by a walk from the root to the
//! node, so valid values cost nothing.

use crate::problem::{Problem, Problems, Severity};
use crate::raw::{MappingEntry, MappingKey, SourcePosition, YamlNode, YamlValue};
use crate::render;

/// Further findings are only counted, which bounds memory and output.
const MAX_PROBLEMS: usize = 500;

/// A problem of one node, before its path is known.
#[derive(Debug)]
pub(crate) struct Finding {
    severity: Severity,
    position: SourcePosition,
    /// The node or key whose path is reported; `None` if there is no tree.
    target: Option<NodeRef>,
    what: String,
    expected: Option<String>,
    hint: Option<String>,
}

impl Finding {
    fn new(
        severity: Severity,
        position: SourcePosition,
        target: Option<NodeRef>,
        what: impl Into<String>,
    ) -> Self {
        Self { severity, position, target, what: what.into(), expected: None, hint: None }
    }

    /// An error of a value.
    pub(crate) fn error(node: impl Into<NodeRef>, what: impl Into<String>) -> Self {
        let target = node.into();
        Self::new(Severity::Error, target.position, Some(target), what)
    }

    /// An error of a key.
    pub(crate) fn key_error(key: &MappingKey<'_>, what: impl Into<String>) -> Self {
        Self::new(Severity::Error, key.position, Some(key.into()), what)
    }

    /// An error at a position, without a path.
    pub(crate) fn error_at(position: SourcePosition, what: impl Into<String>) -> Self {
        Self::new(Severity::Error, position, None, what)
    }

    /// A warning about a node.
    pub(crate) fn warning(target: NodeRef, what: impl Into<String>) -> Self {
        Self::new(Severity::Warning, target.position, Some(target), what)
    }

    /// Reports the path of `key`.
    pub(crate) fn with_path_of(mut self, key: &MappingKey<'_>) -> Self {
        self.target = Some(key.into());
        self
    }

    /// Moves the position to a part of the value, if that part is known.
    pub(crate) fn at(mut self, position: Option<SourcePosition>) -> Self {
        self.position = position.unwrap_or(self.position);
        self
    }

    /// Sets what is valid here.
    pub(crate) fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    /// Suggests a name that was probably meant, if there is one. Otherwise an earlier hint stays.
    pub(crate) fn did_you_mean(self, name: Option<&str>) -> Self {
        match name {
            Some(name) => self.hint(format!("did you mean `{name}`?")),
            None => self,
        }
    }

    /// Sets how to fix it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Identifies a node after the tree is no longer borrowed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NodeRef {
    pub(crate) id: u32,
    pub(crate) position: SourcePosition,
}

impl From<&YamlNode<'_>> for NodeRef {
    fn from(node: &YamlNode<'_>) -> Self {
        Self { id: node.id, position: node.position }
    }
}

impl From<&MappingKey<'_>> for NodeRef {
    fn from(key: &MappingKey<'_>) -> Self {
        Self { id: key.id, position: key.position }
    }
}

/// All findings of one file.
#[derive(Debug)]
pub(crate) struct ProblemReport<'s> {
    file: &'s str,
    text: &'s str,
    findings: Vec<Finding>,
    /// Problems of files that this one refers to.
    others: Vec<Problem>,
    left_off: usize,
    failed: bool,
}

impl<'s> ProblemReport<'s> {
    pub(crate) fn new(file: &'s str, text: &'s str) -> Self {
        Self { file, text, findings: Vec::new(), others: Vec::new(), left_off: 0, failed: false }
    }

    /// The name of the file.
    pub(crate) fn file(&self) -> &'s str {
        self.file
    }

    pub(crate) fn push(&mut self, finding: Finding) {
        self.failed |= finding.severity == Severity::Error;
        if self.is_full() {
            self.left_off = self.left_off.saturating_add(1);
        } else {
            self.findings.push(finding);
        }
    }

    /// Adds the problems of a file that the policy refers to.
    pub(crate) fn push_others(&mut self, problems: &Problems) {
        self.failed |= problems.has_errors();
        self.left_off = self.left_off.saturating_add(problems.left_off());
        self.others.extend(problems.iter().cloned());
    }

    /// Returns the source position of a line and column within `text`, the value of the scalar `node`. Returns `None` if
    /// the source differs from the value, because it spans several lines or contains escapes.
    pub(crate) fn within(
        &self,
        node: &YamlNode<'_>,
        text: &str,
        line: usize,
        column: usize,
    ) -> Option<SourcePosition> {
        let written = self.text.get(node.position.offset..)?;
        let quote = usize::from(written.starts_with(['"', '\'']));
        if line != 1 || !written.get(quote..)?.starts_with(text) {
            return None;
        }
        let before = column.checked_sub(1)?;
        let bytes: usize = text.chars().take(before).map(char::len_utf8).sum();
        let characters = u32::try_from(quote + before).ok()?;
        Some(SourcePosition {
            offset: node.position.offset + quote + bytes,
            line: node.position.line,
            column: node.position.column.saturating_add(characters),
            length: 1,
        })
    }

    /// Whether further findings are only counted, so that computing hints is wasted.
    pub(crate) fn is_full(&self) -> bool {
        self.findings.len() >= MAX_PROBLEMS
    }

    /// Whether an error was reported.
    pub(crate) fn failed(&self) -> bool {
        self.failed
    }

    /// Returns all problems, with paths and excerpts.
    pub(crate) fn finish(self, root: Option<&YamlNode<'_>>) -> Problems {
        let Self { file, text, findings, others, left_off, .. } = self;
        let problem = |finding: Finding| {
            let Finding { severity, mut position, target, what, expected, hint } = finding;
            let mut path = String::new();
            if let (Some(root), Some(target)) = (root, target) {
                let found = locate(root, target.id, target.position.offset);
                path = found.path;
                // For a collection, point at the key that holds it, not at its first entry.
                if let (true, Some(key)) = (found.is_collection, found.key) {
                    position = key;
                }
            }
            let excerpt = (position.line > 0).then(|| {
                render::excerpt(text, position.offset, usize::try_from(position.length).unwrap_or(usize::MAX))
            });
            let (line, column) = (position.line, position.column);
            Problem { severity, file: file.to_owned(), line, column, path, what, expected, hint, excerpt }
        };
        Problems::new(findings.into_iter().map(problem).chain(others).collect(), left_off, file)
    }
}

/// The path from the root to a node.
#[derive(Debug, Default)]
struct NodePath {
    path: String,
    /// The position of the last key of the path.
    key: Option<SourcePosition>,
    is_collection: bool,
}

/// Finds the path from `root` to the node or key `target` at `offset`.
fn locate(root: &YamlNode<'_>, target: u32, offset: usize) -> NodePath {
    let mut found = NodePath::default();
    let mut node = root;
    loop {
        found.is_collection = !matches!(node.value, YamlValue::Scalar { .. });
        if node.id == target {
            return found;
        }
        match &node.value {
            YamlValue::Scalar { .. } => return found,
            YamlValue::List(items) => {
                let after = items.partition_point(|item| item.position.offset <= offset);
                let Some((index, item)) = after.checked_sub(1).and_then(|at| Some((at, items.get(at)?)))
                else {
                    return found;
                };
                found.path.extend(["[", &index.to_string(), "]"]);
                found.key = None;
                node = item;
            }
            YamlValue::Mapping(entries) => {
                let after = entries.partition_point(|entry| entry.key.position.offset <= offset);
                let Some(MappingEntry { key, value }) = after.checked_sub(1).and_then(|at| entries.get(at))
                else {
                    return found;
                };
                if !found.path.is_empty() {
                    found.path.push('.');
                }
                found.path.extend(key.text.chars().take(80).map(render::visible));
                found.key = Some(key.position);
                found.is_collection = false;
                if key.id == target {
                    return found;
                }
                node = value;
            }
        }
    }
}
