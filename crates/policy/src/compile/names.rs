//! RuleNames of rules: each rule has its own, and no two share an id.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tidegate_core::RuleId;

/// Every rule seen so far.
#[derive(Debug, Default)]
pub(super) struct RuleNames {
    seen: HashMap<RuleId, (String, u32)>,
}

/// Why a rule cannot have its name.
#[derive(Debug)]
pub(super) enum NameConflict {
    /// A rule of that name stands on this line.
    Same { line: u32 },
    /// Another name has the same id.
    Collides { other: String },
}

impl RuleNames {
    /// Gives `name`, written on `line`, its id.
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
                    Err(NameConflict::Same { line: *line })
                } else {
                    Err(NameConflict::Collides { other: other.clone() })
                }
            }
        }
    }
}
