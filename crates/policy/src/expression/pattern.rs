//! Regular expressions whose cost is known when they are compiled.
//!
//! A pattern is a table of states, built completely at compile time: it reads every byte of a text once, and a match needs
//! no memory. A pattern whose table would be too large is an error. Engines that build states on demand accept such a
//! pattern and then need seconds for a long header.

use std::fmt;

use regex_automata::Input;
use regex_automata::dfa::dense::{Builder, Config, DFA};
use regex_automata::dfa::{Automaton, StartKind};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;

/// The maximum size of the table and of the memory to build it, in bytes.
pub(super) const LARGEST_PATTERN: usize = 1 << 20;
/// The maximum size of the automaton that the table is built from, in bytes. It bounds the time for each state.
const LARGEST_AUTOMATON: usize = 64 << 10;

/// A compiled pattern.
pub(super) struct Pattern(DFA<Vec<u32>>);

/// Why a pattern cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegexError {
    #[error("{0}")]
    Syntax(String),
    #[error("the regular expression is too complex")]
    TooComplex,
}

/// A text has a character outside ASCII, and the pattern a Unicode word boundary.
#[derive(Debug)]
pub(super) struct UnsupportedText;

impl Pattern {
    pub(super) fn compile(text: &str) -> Result<Self, RegexError> {
        let parsed = syntax::parse(text).map_err(|error| RegexError::Syntax(error.to_string()))?;
        let automaton = thompson::Config::new()
            .nfa_size_limit(Some(LARGEST_AUTOMATON))
            .which_captures(thompson::WhichCaptures::None);
        let automaton = thompson::Compiler::new().configure(automaton).build_from_hir(&parsed);
        let table = Config::new()
            .start_kind(StartKind::Unanchored)
            .dfa_size_limit(Some(LARGEST_PATTERN))
            .determinize_size_limit(Some(LARGEST_PATTERN))
            .unicode_word_boundary(true);
        let automaton = automaton.map_err(|_| RegexError::TooComplex)?;
        let table = Builder::new().configure(table).build_from_nfa(&automaton);
        table.map(Self).map_err(|_| RegexError::TooComplex)
    }

    /// The size of its table in bytes.
    pub(super) fn size(&self) -> usize {
        self.0.memory_usage()
    }

    pub(super) fn is_match(&self, text: &str) -> Result<bool, UnsupportedText> {
        let found = self.0.try_search_fwd(&Input::new(text).earliest(true));
        found.map(|found| found.is_some()).map_err(|_| UnsupportedText)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({} bytes)", self.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_with_too_many_states_is_rejected() {
        for text in [
            "([a-z]{1,40} ?){1,60}bot",
            "[ab]*a[ab]{14}$",
            "(a|b)*a(a|b){16}",
            ".{1,200}x.{1,200}",
            r"\w{1,200}",
            "(((a{1,999}){1,999}){1,999}){1,999}",
        ] {
            assert!(matches!(Pattern::compile(text), Err(RegexError::TooComplex)), "{text}");
        }
    }

    #[test]
    fn pattern_that_policies_use_is_accepted_and_matches_anywhere() {
        for (text, matching, other) in [
            ("^/v[0-9]+/", "/v12/a", "/x/v1/"),
            ("(?i)bot|crawler|spider|curl|wget|python|scrapy|httpclient", "A CrAwLeR", "Firefox"),
            (r"\bbot\b", "a bot.", "robots"),
            (r"^\w+@\w+$", "ä@b", "a@"),
            (r"\d{1,3}(\.\d{1,3}){3}", "at 192.0.2.1", "192.0.2"),
            (
                "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
                "x6b6c2f3e-0000-4000-8000-00000000000f",
                "6b6c2f3e",
            ),
            ("(?i)(union.*select|select.*from|insert.*into|drop.*table)", "UNION all SELECT", "union"),
            ("", "", "-"),
        ] {
            let pattern = Pattern::compile(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(pattern.is_match(matching).unwrap(), "{text}");
            assert_eq!(pattern.is_match(other).unwrap(), text.is_empty(), "{text}");
        }
        let boundary = Pattern::compile(r"\bbot\b").unwrap();
        assert!(boundary.is_match("ä bot").is_err());
        assert!(Pattern::compile(r"(?-u:\b)bot(?-u:\b)").unwrap().is_match("ä bot").unwrap());
    }
}
