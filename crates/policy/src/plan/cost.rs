//! What a request takes of a limit, and when that is known.

use std::fmt;

use http::header::HeaderName;
use tidegate_core::Cost;

use crate::units::size_text;

/// What a request takes of a rule's limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RuleCost {
    /// Always this much.
    Constant(Cost),
    /// What this request header says; 1 without it, the whole limit if it is no whole number.
    Header(HeaderName),
    /// A unit for each so many bytes of the body that have begun, at least one.
    Body(u64),
}

impl fmt::Display for RuleCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(cost) => write!(f, "{}", cost.get()),
            Self::Header(name) => write!(f, "from the request header {name}"),
            Self::Body(unit) => write!(f, "1 per {} of request body", size_text(*unit)),
        }
    }
}

/// When a request is charged. What it costs is taken up front in any case, so that no number of requests at once gets
/// past a limit; what comes after settles it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Charge {
    /// Up front, and that is all.
    #[default]
    UpFront,
    /// Given back unless the response has one of these statuses.
    Status(StatusSet),
    /// What this response header says, instead: the rest is given back, or more is charged, even into debt.
    Header(HeaderName),
}

impl fmt::Display for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UpFront => f.write_str("charged up front"),
            Self::Status(statuses) => write!(f, "charged if the response status is {statuses}"),
            Self::Header(name) => write!(f, "charged as the response header {name} reports"),
        }
    }
}

/// Statuses of responses, 100 to 599.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StatusSet {
    /// A bit for each, 64 in a word.
    words: [u64; 10],
}

impl StatusSet {
    /// Adds a status; says whether there is such a one.
    pub fn insert(&mut self, status: u16) -> bool {
        let is_status = (100..600).contains(&status);
        if is_status && let Some(word) = self.words.get_mut(usize::from(status / 64)) {
            *word |= 1 << (status % 64);
        }
        is_status
    }

    /// Adds the hundred statuses of a class, 1 to 5; says whether there is such a one.
    pub fn insert_class(&mut self, class: u16) -> bool {
        (1..6).contains(&class) && (0..100).all(|rest| self.insert(class * 100 + rest))
    }

    /// Whether `status` is among them.
    pub fn contains(&self, status: u16) -> bool {
        self.words.get(usize::from(status / 64)).is_some_and(|word| word & (1 << (status % 64)) != 0)
    }
}

impl fmt::Display for StatusSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for class in 1..6 {
            let of_class = (class * 100..class * 100 + 100).filter(|status| self.contains(*status));
            let of_class: Vec<_> = of_class.collect();
            if of_class.len() == 100 {
                parts.push(format!("{class}xx"));
            } else {
                parts.extend(of_class.iter().map(u16::to_string));
            }
        }
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_that_were_added() {
        let mut statuses = StatusSet::default();
        assert!(statuses.insert(401) && statuses.insert(403) && statuses.insert(100) && statuses.insert(599));
        assert!(statuses.insert_class(5));
        assert!(!statuses.insert(99) && !statuses.insert(600) && !statuses.insert_class(6));
        let held: Vec<_> = (0..=u16::MAX).filter(|status| statuses.contains(*status)).collect();
        let meant: Vec<_> = [100, 401, 403].into_iter().chain(500..600).collect();
        assert_eq!(held, meant);
        assert_eq!(statuses.to_string(), "100, 401, 403, 5xx");
    }
}
