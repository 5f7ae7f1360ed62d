//! What is wrong with a policy, where, and what to write instead.

use std::fmt;

use serde::Serialize;

use crate::render;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The policy cannot be used.
    Error,
    /// The policy can be used, but hardly does what was meant.
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

/// One thing that is wrong, with its place and the way out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The file, as the caller named it.
    pub file: String,
    /// The line, counted from 1; 0 where the problem has no line.
    pub line: u32,
    /// The column in characters, counted from 1; 0 where the problem has no line.
    pub column: u32,
    /// The path in the document, such as `rate_limits.default.requests`; empty at the root.
    pub path: String,
    /// What is wrong.
    pub what: String,
    /// What would be right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// How to get there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The line itself, for people.
    #[serde(skip)]
    pub excerpt: Option<Excerpt>,
}

/// The part of a source line that a problem is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The line, or the part of a long one around the place; free of control characters.
    pub text: String,
    /// How many characters of it stand before the place.
    pub before: usize,
    /// How many characters the place is long; at least 1.
    pub length: usize,
}

impl fmt::Display for Problem {
    /// Several lines for a person to read, without a line break at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render::problem(self, f)
    }
}

/// All problems of one policy, in the order of their places.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Problems {
    problems: Vec<Problem>,
    /// How many more there were than are kept.
    left_off: usize,
}

impl Problems {
    /// Problems of `file` and, after them, of the files it refers to.
    pub(crate) fn new(mut problems: Vec<Problem>, left_off: usize, file: &str) -> Self {
        problems
            .sort_by_key(|problem| (problem.file != file, problem.line, problem.column, problem.severity));
        // What stands behind an alias is wrong once, however often it is used.
        problems.dedup();
        Self { problems, left_off }
    }

    /// The problems in the order of their places.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.problems.iter()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// How many there are, those left off included.
    pub fn count(&self) -> usize {
        self.problems.len().saturating_add(self.left_off)
    }

    /// How many were left off, because nobody reads thousands.
    pub fn left_off(&self) -> usize {
        self.left_off
    }

    /// Whether the policy cannot be used.
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }
}

impl Extend<Problem> for Problems {
    /// Adds problems that were found after compiling, behind the others.
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
    /// Every problem for a person to read, an empty line between them.
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
