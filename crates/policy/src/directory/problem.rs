//! Problems of a directory file, by line.

use std::collections::BTreeMap;
use std::fmt;

use crate::problem::{Problem, Problems, Severity};

/// Further problems are only counted.
const MAX_PROBLEMS: usize = 20;

/// All problems of a directory file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryError {
    /// The first problems, sorted by line.
    pub problems: Vec<LineProblem>,
    /// The number of further problems.
    pub more: usize,
}

impl DirectoryError {
    /// Converts to problems of the policy that refers to `file`.
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
                    "API key, tier and optionally a tenant, for example `sk_live_51H,premium,acme`"
                        .to_owned(),
                ),
                hint,
                // The line contains a secret.
                excerpt: None,
            }
        };
        Problems::new(self.problems.into_iter().map(problem).collect(), self.more, file)
    }
}

impl LineError {
    /// Splits the message into what is wrong and how to fix it.
    fn message_and_hint(&self) -> (String, Option<String>) {
        let text = self.to_string();
        match text.split_once("; ") {
            Some((what, hint)) => (what.to_owned(), Some(hint.to_owned())),
            None => (text, None),
        }
    }
}

/// A problem of one line. It never contains the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {cause}")]
pub struct LineProblem {
    /// The line, from 1.
    pub line: u64,
    /// What is wrong.
    pub cause: LineError,
}

/// Why a line is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Too few or too many fields.
    #[error("found {found} {}; write `key,tier` or `key,tier,tenant`", if *found == 1 { "field" } else { "fields" })]
    Fields {
        /// The number of fields.
        found: usize,
    },
    /// The key is empty.
    #[error("the key is empty; write `key,tier` or `key,tier,tenant`")]
    NoKey,
    /// The key is not ASCII. Requests with such a key are rejected, as servers read it differently.
    #[error("the key contains a character outside of ASCII, so requests with it get 400; change the key")]
    NotAscii,
    /// `sha256:` is not followed by a hash.
    #[error(
        "`sha256:` is not followed by 64 hexadecimal digits; print them with `printf %s KEY | sha256sum`"
    )]
    Hash,
    /// A field contains a control character, for example a line break.
    #[error("a field contains a control character or a line break; check for an unclosed quote")]
    Control,
    /// The first field is a tier, so key and tier are swapped.
    #[error("the first field is the tier `{tier}`; write the key first: `key,tier` or `key,tier,tenant`")]
    Swapped {
        /// The tier in the first field.
        tier: String,
    },
    /// The policy has no such tier.
    #[error("unknown tier `{tier}`; {}", tier_hint(nearest.as_deref()))]
    UnknownTier {
        /// The tier as written.
        tier: String,
        /// The tier that was probably meant.
        nearest: Option<String>,
    },
    /// An earlier line has the same key.
    #[error("duplicate key; remove one of the lines")]
    Duplicate,
    /// A tier or a tenant is not UTF-8.
    #[error("the tier or tenant is not valid UTF-8; save the file as UTF-8")]
    NotUtf8,
    /// The names of all tenants are too long in total.
    #[error("the names of all tenants take more than 4 GiB; use fewer or shorter names")]
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

fn tier_hint(nearest: Option<&str>) -> String {
    nearest
        .map_or_else(|| "add it to `rate_limits.tiers`".to_owned(), |name| format!("did you mean `{name}`?"))
}

/// Collects the first problems of a file, in any order. A line has at most one.
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
