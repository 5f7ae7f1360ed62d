//! Values with `*`.

/// A value in which each `*` matches any text, also none.
#[derive(Debug)]
pub(super) struct WildcardPattern {
    /// The text before the first `*`.
    prefix: String,
    /// The texts between two `*`.
    middle: Vec<String>,
    /// The text after the last `*`.
    suffix: String,
}

impl WildcardPattern {
    /// Parses a value; `None` if it contains no `*`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (prefix, rest) = text.split_once('*')?;
        let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        let middle = middle.split('*').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        Some(Self { prefix: prefix.to_owned(), middle, suffix: suffix.to_owned() })
    }

    /// Whether the pattern matches `value`. Each part takes its first occurrence, so the time is linear in the value for
    /// each part.
    pub(super) fn matches(&self, value: &str) -> bool {
        let rest = value.strip_prefix(&*self.prefix).and_then(|rest| rest.strip_suffix(&*self.suffix));
        let Some(mut rest) = rest else { return false };
        for part in &self.middle {
            let Some((_, after)) = rest.split_once(&**part) else { return false };
            rest = after;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_each_star_matches_any_text_in_order() {
        for (pattern, matching, other) in [
            ("value*", &["value", "value1", "valueXYZ"][..], &["valu", "xvalue"][..]),
            ("*", &["", "x"], &[]),
            ("*.org", &["a.org", ".org"], &["a.orga"]),
            ("/api/*/action", &["/api/1/action", "/api//action"], &["/api/1/other", "/api/action"]),
            ("a*b*c", &["abc", "axbxc", "abbc"], &["acb", "ab", "ac"]),
            ("a**a", &["aa", "axa"], &["a"]),
        ] {
            let parsed = WildcardPattern::parse(pattern).expect("a wildcard");
            assert!(matching.iter().all(|value| parsed.matches(value)), "{pattern}");
            assert!(!other.iter().any(|value| parsed.matches(value)), "{pattern}");
        }
        assert!(WildcardPattern::parse("plain").is_none());
    }
}
