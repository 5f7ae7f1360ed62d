//! Assigns ids to rule names and detects conflicts.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tidegate_core::RuleId;

/// The names and lines of the rules decoded so far.
#[derive(Debug, Default)]
pub(super) struct RuleNames {
    seen: HashMap<RuleId, (String, u32)>,
}

/// Why a rule name cannot be used.
#[derive(Debug)]
pub(super) enum NameConflict {
    /// A rule on this line has the same name.
    Duplicate { line: u32 },
    /// Another name hashes to the same id.
    IdCollision { other: String },
}

impl RuleNames {
    /// Registers `name`, written on `line`, and returns its id.
    pub(super) fn claim(&mut self, name: &str, line: u32) -> Result<RuleId, NameConflict> {
        let id = RuleId::named(name);
        match self.seen.entry(id) {
            Entry::Vacant(entry) => {
                entry.insert((name.to_owned(), line));
                Ok(id)
            }
            Entry::Occupied(entry) => {
                let (other, line) = entry.get();
                if other == name {
                    Err(NameConflict::Duplicate { line: *line })
                } else {
                    Err(NameConflict::IdCollision { other: other.clone() })
                }
            }
        }
    }
}
