//! Problems of a policy: what is wrong, where, and how to fix it.

use std::fmt;

use serde::Serialize;

use crate::render;

/// Whether a problem is an error or a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The policy cannot be used.
    Error,
    /// The policy is valid but probably mistaken.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// One problem, with its position and a way to fix it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Whether it is an error or a warning.
    pub severity: Severity,
    /// The file name that the caller passed.
    pub file: String,
    /// The line, counted from 1; 0 if the problem has no line.
    pub line: u32,
    /// The column in characters, counted from 1; 0 if the problem has no line.
    pub column: u32,
    /// The path in the document, such as `rate_limits.default.requests`; empty at the root.
    pub path: String,
    /// What is wrong.
    pub what: String,
    /// What is valid here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// How to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The source line, shown to people.
    #[serde(skip)]
    pub excerpt: Option<Excerpt>,
}

/// The part of a source line that a problem is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The line, or the part of a long line around the position; without control characters.
    pub text: String,
    /// The number of characters before the position.
    pub before: usize,
    /// The number of characters to mark; at least 1.
    pub length: usize,
}

impl fmt::Display for Problem {
    /// Writes several lines, without a line break at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render::problem(self, f)
    }
}

/// All problems of one policy, sorted by position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Problems {
    problems: Vec<Problem>,
    /// The number of problems that were counted but not kept.
    left_off: usize,
}

impl Problems {
    /// Sorts the problems: those of `file` first, then those of the files it refers to.
    pub(crate) fn new(mut problems: Vec<Problem>, left_off: usize, file: &str) -> Self {
        problems
            .sort_by_key(|problem| (problem.file != file, problem.line, problem.column, problem.severity));
        // A problem in an aliased value is found at every use of the alias; report it once.
        problems.dedup();
        Self { problems, left_off }
    }

    /// Iterates over the problems, sorted by position.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.problems.iter()
    }

    /// Whether there are no problems.
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// The number of problems, including those that were not kept.
    pub fn count(&self) -> usize {
        self.problems.len().saturating_add(self.left_off)
    }

    /// The number of problems that were counted but not kept.
    pub fn left_off(&self) -> usize {
        self.left_off
    }

    /// Whether at least one problem is an error.
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }
}

impl Extend<Problem> for Problems {
    /// Appends problems that were found after compiling.
    fn extend<I: IntoIterator<Item = Problem>>(&mut self, more: I) {
        self.problems.extend(more);
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Problems {
    /// Writes every problem, with an empty line between them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            writeln!(f, "{problem}\n")?;
        }
        if self.left_off > 0 {
            writeln!(f, "and {} more\n", self.left_off)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
