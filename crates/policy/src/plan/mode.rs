//! Whether a rule is enforced.

use std::fmt;

use tidegate_core::{Role, RuleId};

use crate::units::percent_text;

/// Whether a rule is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The rule rejects requests that exceed the limit.
    #[default]
    Enforce,
    /// The rule is evaluated and counted, without effect on clients.
    Shadow,
    /// The rule is enforced for a fixed share of clients, and in shadow mode for all others.
    Canary(CanaryShare),
}

impl Mode {
    /// The role of the rule `rule` for a request of `client`.
    pub fn role(self, rule: RuleId, client: &[u8]) -> Role {
        match self {
            Self::Enforce => Role::Binding,
            Self::Canary(share) if share.contains(rule, client) => Role::Binding,
            Self::Shadow | Self::Canary(_) => Role::Advisory,
        }
    }

    /// Whether the rule can reject any client.
    pub const fn can_reject(self) -> bool {
        !matches!(self, Self::Shadow)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enforce => f.write_str("enforce"),
            Self::Shadow => f.write_str("shadow"),
            Self::Canary(share) => write!(f, "canary {share}"),
        }
    }
}

/// A share of all clients: more than 0, at most 100 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CanaryShare {
    millionths: u32,
}

impl CanaryShare {
    /// A million millionths.
    const WHOLE: u32 = 1_000_000;

    /// Creates a share; `None` if it is 0 or more than 100 %.
    pub const fn from_millionths(millionths: u32) -> Option<Self> {
        if millionths == 0 || millionths > Self::WHOLE { None } else { Some(Self { millionths }) }
    }

    /// Whether `client` belongs to the share of the rule `rule`.
    ///
    /// The result depends only on the two ids, so it is the same on every node and after every restart. A larger share
    /// contains all clients of a smaller one. Different rules choose clients independently.
    pub fn contains(self, rule: RuleId, client: &[u8]) -> bool {
        // Scales the hash to 0..1_000_000; it is uniform, so `millionths` of all clients are below the share.
        let part = (u128::from(stable_hash(rule, client)) * u128::from(Self::WHOLE)) >> 64;
        part < u128::from(self.millionths)
    }
}

impl fmt::Display for CanaryShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&percent_text(self.millionths))
    }
}

/// FNV-1a seeded with the rule's id, with a finalizer so that every bit depends on every byte. It must never change:
/// clients of running canaries would move.
fn stable_hash(rule: RuleId, client: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let hash = client.iter().fold(rule.as_u64(), |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(millionths: u32) -> CanaryShare {
        CanaryShare::from_millionths(millionths).unwrap()
    }

    fn chosen_clients(share: CanaryShare, rule: RuleId) -> usize {
        (0_u32..100_000).filter(|client| share.contains(rule, format!("client-{client}").as_bytes())).count()
    }

    #[test]
    fn share_contains_the_given_fraction_of_clients() {
        for name in ["default", "global", "login-bruteforce", "a"] {
            let rule = RuleId::named(name);
            for percent in [1, 10, 50, 99] {
                let chosen = chosen_clients(share(percent * 10_000), rule);
                let expected = percent as usize * 1_000;
                assert!(chosen.abs_diff(expected) < 1_000, "{name}: {chosen} of 100,000 for {percent} %");
            }
            let chosen = chosen_clients(share(5_000), rule);
            assert!(chosen.abs_diff(500) < 100, "{name}: {chosen} of 100,000 for 0.5 %");
            assert_eq!(chosen_clients(share(1_000_000), rule), 100_000);
        }
    }

    #[test]
    fn stable_hash_never_changes() {
        // Changing the hash would move clients of running canaries.
        assert_eq!(stable_hash(RuleId::named("default"), b"alice"), 0x4af5_6ebb_5551_961c);
        assert_eq!(stable_hash(RuleId::named("default"), b""), 0xd470_84e0_f7c5_d5ad);
    }

    #[test]
    fn shares_of_different_rules_are_independent() {
        let (one, other) = (RuleId::named("one"), RuleId::named("other"));
        let both = (0_u32..10_000)
            .map(u32::to_be_bytes)
            .filter(|client| share(100_000).contains(one, client) && share(100_000).contains(other, client));
        let both = both.count();
        assert!((50..150).contains(&both), "{both} of 10,000 are in both tenths");
    }

    proptest! {
        #[test]
        fn larger_share_contains_all_clients_of_a_smaller_one(
            client in prop::collection::vec(any::<u8>(), 0..40),
            one in 1_u32..=1_000_000,
            other in 1_u32..=1_000_000,
        ) {
            let rule = RuleId::named("rule");
            let (small, large) = (share(one.min(other)), share(one.max(other)));
            prop_assert!(!small.contains(rule, &client) || large.contains(rule, &client));
        }
    }
}
