//! Whether a rule refuses, or only watches.

use std::fmt;

use tidegate_core::{Role, RuleId};

use crate::units::percent_text;

/// What a rule may do to requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It refuses what does not fit.
    #[default]
    Enforce,
    /// It decides and counts, and clients see nothing of it.
    Shadow,
    /// It refuses some clients, always the same ones; for the rest it is a shadow.
    Canary(CanaryShare),
}

impl Mode {
    /// What the rule called `rule` may do to a request of `client`.
    pub fn role(self, rule: RuleId, client: &[u8]) -> Role {
        match self {
            Self::Enforce => Role::Binding,
            Self::Canary(share) if share.contains(rule, client) => Role::Binding,
            Self::Shadow | Self::Canary(_) => Role::Advisory,
        }
    }

    /// Whether there is a client that the rule can refuse.
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

/// A share of all clients, more than none and at most all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CanaryShare {
    millionths: u32,
}

impl CanaryShare {
    /// A million millionths.
    const WHOLE: u32 = 1_000_000;

    /// So many millionths; `None` if that is nobody or more than everybody.
    pub const fn from_millionths(millionths: u32) -> Option<Self> {
        if millionths == 0 || millionths > Self::WHOLE { None } else { Some(Self { millionths }) }
    }

    /// Whether `client` belongs to the share of the rule called `rule`.
    ///
    /// It depends on nothing but the names of both, so it is the same on every node and after every restart. A larger
    /// share holds everybody whom a smaller one held. Two rules choose apart from each other.
    pub fn contains(self, rule: RuleId, client: &[u8]) -> bool {
        // The hash as a fraction of 1: below the share in as many cases as the share says.
        let part = (u128::from(stable_hash(rule, client)) * u128::from(Self::WHOLE)) >> 64;
        part < u128::from(self.millionths)
    }
}

impl fmt::Display for CanaryShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&percent_text(self.millionths))
    }
}

/// FNV-1a from the rule's id on, mixed so that every bit of it depends on every byte. It has no seed: whoever is in a
/// canary must stay there, so this must never change.
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
    fn a_slice_is_as_large_as_it_says() {
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
    fn who_is_in_a_slice_never_changes() {
        // Written down once: whoever changes the hash moves clients of running canaries.
        assert_eq!(stable_hash(RuleId::named("default"), b"alice"), 0x4af5_6ebb_5551_961c);
        assert_eq!(stable_hash(RuleId::named("default"), b""), 0xd470_84e0_f7c5_d5ad);
    }

    #[test]
    fn rules_choose_apart_from_each_other() {
        let (one, other) = (RuleId::named("one"), RuleId::named("other"));
        let both = (0_u32..10_000)
            .map(u32::to_be_bytes)
            .filter(|client| share(100_000).contains(one, client) && share(100_000).contains(other, client));
        let both = both.count();
        assert!((50..150).contains(&both), "{both} of 10,000 are in both tenths");
    }

    proptest! {
        #[test]
        fn a_larger_slice_holds_everybody_of_a_smaller(
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
