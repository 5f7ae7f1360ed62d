//! Problems on their way: collected by place while a policy is decoded, given their paths at the end.
//!
//! A decoder needs to know only the node that is wrong. The path in the document is found afterwards by walking
//! the tree towards the node, so nothing has to be carried along for the many values that are right.

use crate::problem::{Problem, Problems, Severity};
use crate::raw::{MappingEntry, MappingKey, SourcePosition, YamlNode, YamlValue};
use crate::render;

/// Nobody reads more, and nobody's memory should hold more.
const MAX_PROBLEMS: usize = 500;

/// What was found at one place.
#[derive(Debug)]
pub(crate) struct Finding {
    severity: Severity,
    position: SourcePosition,
    /// The node or key whose path it has; `None` where there is no tree.
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

    /// A value that is wrong.
    pub(crate) fn error(node: &YamlNode<'_>, what: impl Into<String>) -> Self {
        Self::new(Severity::Error, node.position, Some(node.into()), what)
    }

    /// A key that is wrong.
    pub(crate) fn key_error(key: &MappingKey<'_>, what: impl Into<String>) -> Self {
        Self::new(Severity::Error, key.position, Some(key.into()), what)
    }

    /// A place that is wrong, where there is no tree to find it in.
    pub(crate) fn error_at(position: SourcePosition, what: impl Into<String>) -> Self {
        Self::new(Severity::Error, position, None, what)
    }

    /// A value that is hardly what was meant.
    pub(crate) fn warning(target: NodeRef, what: impl Into<String>) -> Self {
        Self::new(Severity::Warning, target.position, Some(target), what)
    }

    /// Gives it the path of `key`, which it is like.
    pub(crate) fn like(mut self, key: &MappingKey<'_>) -> Self {
        self.target = Some(key.into());
        self
    }

    /// Points at a part of its value, where that part is known.
    pub(crate) fn at(mut self, position: Option<SourcePosition>) -> Self {
        self.position = position.unwrap_or(self.position);
        self
    }

    /// What would be right.
    pub(crate) fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    /// How to get there.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A node to come back to, once the tree is out of reach.
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

/// Everything found in one file.
#[derive(Debug)]
pub(crate) struct ProblemReport<'s> {
    file: &'s str,
    text: &'s str,
    findings: Vec<Finding>,
    /// What is wrong with other files.
    others: Vec<Problem>,
    left_off: usize,
    failed: bool,
}

impl<'s> ProblemReport<'s> {
    pub(crate) fn new(file: &'s str, text: &'s str) -> Self {
        Self { file, text, findings: Vec::new(), others: Vec::new(), left_off: 0, failed: false }
    }

    pub(crate) fn push(&mut self, finding: Finding) {
        self.failed |= finding.severity == Severity::Error;
        if self.is_full() {
            self.left_off = self.left_off.saturating_add(1);
        } else {
            self.findings.push(finding);
        }
    }

    /// Adds what is wrong with a file that the policy refers to.
    pub(crate) fn push_others(&mut self, problems: &Problems) {
        self.failed |= problems.has_errors();
        self.left_off = self.left_off.saturating_add(problems.left_off());
        self.others.extend(problems.iter().cloned());
    }

    /// The place of a line and a column of `text`, which the scalar `node` was read as. None if the scalar is written
    /// in another way than it reads: over several lines, or with escapes.
    pub(crate) fn within(
        &self,
        node: &YamlNode<'_>,
        text: &str,
        (line, column): (usize, usize),
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

    /// Whether further findings are only counted, so that nobody need look for hints.
    pub(crate) fn is_full(&self) -> bool {
        self.findings.len() >= MAX_PROBLEMS
    }

    /// Whether the policy cannot be used.
    pub(crate) fn failed(&self) -> bool {
        self.failed
    }

    /// All of it, with paths and excerpts.
    pub(crate) fn finish(self, root: Option<&YamlNode<'_>>) -> Problems {
        let Self { file, text, findings, others, left_off, .. } = self;
        let problem = |finding: Finding| {
            let Finding { severity, mut position, target, what, expected, hint } = finding;
            let mut path = String::new();
            if let (Some(root), Some(target)) = (root, target) {
                let found = locate(root, target.id, target.position.offset);
                path = found.path;
                // A mapping that lacks something begins with what it has; its own name says more.
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

/// The way to a node.
#[derive(Debug, Default)]
struct NodePath {
    path: String,
    /// The last key on the way.
    key: Option<SourcePosition>,
    is_collection: bool,
}

/// Walks from `root` towards the node or key `target` at `offset`.
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
