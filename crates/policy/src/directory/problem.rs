//! What is wrong with a directory's file, line by line.

use std::collections::BTreeMap;
use std::fmt;

use crate::problem::{Problem, Problems, Severity};

/// After this many, problems are only counted.
const MAX_PROBLEMS: usize = 20;

/// Everything that is wrong with a directory's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryError {
    /// The first problems, in the order of their lines.
    pub problems: Vec<LineProblem>,
    /// How many more there are.
    pub more: usize,
}

impl DirectoryError {
    /// The same, as problems of the policy that refers to `file`.
    pub(crate) fn into_problems(self, file: &str) -> Problems {
        let problem = |LineProblem { line, cause }| {
            let (what, hint) = cause.message_and_hint();
            Problem {
                severity: Severity::Error,
                file: file.to_owned(),
                line: u32::try_from(line).unwrap_or(u32::MAX),
                column: 1,
                path: String::new(),
                what,
                expected: Some(
                    "a line such as `sk_live_51H,premium,acme`: API key, tier, maybe a tenant".to_owned(),
                ),
                hint,
                // The line holds a secret.
                excerpt: None,
            }
        };
        Problems::new(self.problems.into_iter().map(problem).collect(), self.more, file)
    }
}

impl LineError {
    /// What is wrong, and how to mend it.
    fn message_and_hint(&self) -> (String, Option<String>) {
        let text = self.to_string();
        match text.split_once("; ") {
            Some((what, hint)) => (what.to_owned(), Some(hint.to_owned())),
            None => (text, None),
        }
    }
}

/// What is wrong with one line. The key itself is never shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {cause}")]
pub struct LineProblem {
    /// The line, from 1.
    pub line: u64,
    /// What is wrong.
    pub cause: LineError,
}

/// What can be wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Too few or too many fields.
    #[error("{found} fields; write `key,tier` or `key,tier,tenant`")]
    Fields {
        /// How many there are.
        found: usize,
    },
    /// There is no key.
    #[error("the key is empty")]
    NoKey,
    /// A field holds a control character, a line end for one.
    #[error("a field holds a control character or a line end; is a quote left open?")]
    Control,
    /// The first field is a tier.
    #[error("`{tier}` is a tier; the key comes first: `key,tier` or `key,tier,tenant`")]
    Swapped {
        /// The tier that stands first.
        tier: String,
    },
    /// The policy has no such tier.
    #[error("there is no tier `{tier}`; add it to `rate_limits.tiers`{}", hint(nearest.as_deref()))]
    UnknownTier {
        /// The tier as written.
        tier: String,
        /// The tier that may be meant.
        nearest: Option<String>,
    },
    /// The key was given on an earlier line.
    #[error("the key was given on an earlier line")]
    Duplicate,
    /// A tier or a tenant is not UTF-8.
    #[error("the tier or tenant is not UTF-8")]
    NotUtf8,
    /// The names of all tenants together are too long.
    #[error("the tenants' names take more than 4 GiB")]
    TooManyTenants,
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for DirectoryError {}

fn hint(nearest: Option<&str>) -> String {
    nearest.map(|name| format!(", or is it `{name}`?")).unwrap_or_default()
}

/// The first problems of a file, in whatever order they are found. A line has at most one.
#[derive(Default)]
pub(super) struct ProblemCollector {
    first: BTreeMap<u64, LineError>,
    more: usize,
}

impl ProblemCollector {
    pub(super) fn add_problem(&mut self, line: u64, cause: LineError) {
        self.first.insert(line, cause);
        if self.first.len() > MAX_PROBLEMS {
            self.first.pop_last();
            self.more += 1;
        }
    }

    pub(super) fn into_result(self) -> Result<(), DirectoryError> {
        if self.first.is_empty() {
            return Ok(());
        }
        let problems = self.first.into_iter().map(|(line, cause)| LineProblem { line, cause });
        Err(DirectoryError { problems: problems.collect(), more: self.more })
    }
}
