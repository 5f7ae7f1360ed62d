//! What an examination has found.

use std::fmt;

/// What an examination has found.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// The findings, in the order of the examination.
    pub items: Vec<DiagnosisItem>,
}

/// One finding.
#[derive(Clone, Debug)]
pub struct DiagnosisItem {
    /// Whether something should be changed.
    pub level: DiagnosisLevel,
    /// What was examined.
    pub subject: String,
    /// What was found, and what to change.
    pub message: String,
}

/// Whether something should be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiagnosisLevel {
    /// Nothing.
    Ok,
    /// It works, but a change may be better.
    Advice,
    /// It must be changed.
    Problem,
}

impl Diagnosis {
    /// Whether something must be changed.
    pub fn has_problems(&self) -> bool {
        self.items.iter().any(|item| item.level == DiagnosisLevel::Problem)
    }

    pub(super) fn ok(&mut self, subject: &str, message: impl Into<String>) {
        self.push(DiagnosisLevel::Ok, subject, message);
    }

    pub(super) fn advice(&mut self, subject: &str, message: impl Into<String>) {
        self.push(DiagnosisLevel::Advice, subject, message);
    }

    pub(super) fn problem(&mut self, subject: &str, message: impl Into<String>) {
        self.push(DiagnosisLevel::Problem, subject, message);
    }

    fn push(&mut self, level: DiagnosisLevel, subject: &str, message: impl Into<String>) {
        self.items.push(DiagnosisItem { level, subject: subject.to_owned(), message: message.into() });
    }
}

impl fmt::Display for DiagnosisLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Advice => "advice",
            Self::Problem => "problem",
        })
    }
}
