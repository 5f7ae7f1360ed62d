//! The cost of a request, and when it is charged.

use std::fmt;

use http::header::HeaderName;
use tidegate_core::Cost;

use crate::units::size_text;

/// The cost of a request for a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RuleCost {
    /// A constant.
    Constant(Cost),
    /// The value of this request header: 1 if it is missing, the whole limit if it is not a whole number.
    Header(HeaderName),
    /// One unit for each started block of this many bytes of the request body, at least one.
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

/// When a request is charged. The cost is always reserved up front, so that concurrent requests cannot exceed a limit.
/// The response may settle it later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChargeBasis {
    /// Up front only.
    #[default]
    UpFront,
    /// Refunded unless the response has one of these statuses.
    Status(StatusSet),
    /// Replaced by the value of this response header. The difference is refunded or charged, even into debt.
    Header(HeaderName),
}

impl fmt::Display for ChargeBasis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UpFront => f.write_str("charged up front"),
            Self::Status(statuses) => write!(f, "charged if the response status is {statuses}"),
            Self::Header(name) => write!(f, "charged as the response header {name} reports"),
        }
    }
}

/// A set of response statuses, 100 to 599.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StatusSet {
    /// One bit per status.
    words: [u64; 10],
}

impl StatusSet {
    /// Adds a status. Returns whether it is valid.
    pub fn insert(&mut self, status: u16) -> bool {
        let is_status = (100..600).contains(&status);
        if is_status && let Some(word) = self.words.get_mut(usize::from(status / 64)) {
            *word |= 1 << (status % 64);
        }
        is_status
    }

    /// Adds all statuses of a class, 1 to 5. Returns whether the class is valid.
    pub fn insert_class(&mut self, class: u16) -> bool {
        (1..6).contains(&class) && (0..100).all(|rest| self.insert(class * 100 + rest))
    }

    /// Whether the set contains `status`.
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
    fn status_set_contains_exactly_the_added_statuses() {
        let mut statuses = StatusSet::default();
        assert!(statuses.insert(401) && statuses.insert(403) && statuses.insert(100) && statuses.insert(599));
        assert!(statuses.insert_class(5));
        assert!(!statuses.insert(99) && !statuses.insert(600) && !statuses.insert_class(6));
        let contained: Vec<_> = (0..=u16::MAX).filter(|status| statuses.contains(*status)).collect();
        let expected: Vec<_> = [100, 401, 403].into_iter().chain(500..600).collect();
        assert_eq!(contained, expected);
        assert_eq!(statuses.to_string(), "100, 401, 403, 5xx");
    }
}
