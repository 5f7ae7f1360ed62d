//! What happens to a request that exceeds a limit, in place of a rejection.

use thiserror::Error;

use crate::time::TimeSpan;

named_enum! {
    /// What happens to a request that exceeds a limit. Of several exceeded limits the first of those up to `Degrade` applies.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ActionKind {
        /// It is rejected.
        Reject = "reject",
        /// It gets a response from a cache.
        Cached = "cached",
        /// It waits for its turn.
        Wait = "wait",
        /// It is accepted, and delivered later.
        Defer = "defer",
        /// It is served in a cheaper way.
        Degrade = "degrade",
        /// Near the limit requests are delayed; beyond it they are rejected.
        Slow = "slow",
        /// Some more units are admitted, which take longer to be available again; beyond them requests are rejected.
        Borrow = "borrow",
    }
}

impl ActionKind {
    /// Whether a request that exceeds the limit is admitted as far as the other limits admit it.
    pub const fn admits(self) -> bool {
        matches!(self, Self::Defer | Self::Degrade)
    }

    /// Whether an interface has to perform it. Rejecting and lending need none.
    pub const fn needs_interface(self) -> bool {
        !matches!(self, Self::Reject | Self::Borrow)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of actions: those that an interface can perform.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActionSet(u8);

impl ActionSet {
    /// No action: every request that exceeds a limit is rejected.
    pub const NONE: Self = Self(0);

    /// These actions.
    pub const fn of(actions: &[ActionKind]) -> Self {
        let mut set = Self::NONE;
        let mut rest = actions;
        while let [first, others @ ..] = rest {
            set.0 |= first.bit();
            rest = others;
        }
        set
    }

    /// Whether the set contains `action`. Rejecting and lending need no interface.
    pub const fn contains(self, action: ActionKind) -> bool {
        !action.needs_interface() || self.0 & action.bit() != 0
    }
}

/// A soft limit: from a share of the limit on, requests are delayed more and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slowdown {
    from_millionths: u32,
    max: TimeSpan,
}

/// Why a soft limit is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SlowdownError {
    /// No request would be delayed.
    #[error("`from` is 100% or more, so no request would be delayed; use less")]
    FromTooHigh,
    /// No request would be delayed.
    #[error("`max` is 0, so no request would be delayed; use at least 1 ms")]
    ZeroMax,
    /// Clients do not wait that long.
    #[error("`max` is longer than {longest:?}", longest = Slowdown::LONGEST)]
    MaxTooLong,
}

impl Slowdown {
    /// The longest delay.
    pub const LONGEST: TimeSpan = TimeSpan::from_secs(3_600);
    const WHOLE: u32 = 1_000_000;

    /// Delays requests from `from_millionths` of the limit on, at the limit by `max`.
    pub fn new(from_millionths: u32, max: TimeSpan) -> Result<Self, SlowdownError> {
        if from_millionths >= Self::WHOLE {
            return Err(SlowdownError::FromTooHigh);
        }
        if max.is_zero() {
            return Err(SlowdownError::ZeroMax);
        }
        if max > Self::LONGEST {
            return Err(SlowdownError::MaxTooLong);
        }
        Ok(Self { from_millionths, max })
    }

    /// The share of the limit from which requests are delayed, in millionths.
    pub const fn from_millionths(&self) -> u32 {
        self.from_millionths
    }

    /// The delay at the limit.
    pub const fn max(&self) -> TimeSpan {
        self.max
    }

    /// The delay of a request after which `used` of `limit` units are used: 0 up to `from`, `max` at the limit, and in between in
    /// proportion, rounded down.
    pub fn delay(&self, used: u64, limit: u64) -> TimeSpan {
        let (used, limit) = (u128::from(used.min(limit)), u128::from(limit));
        let (from, whole) = (u128::from(self.from_millionths), u128::from(Self::WHOLE));
        // All products fit: at most 64, 20 and 32 bits.
        let over = used.saturating_mul(whole).saturating_sub(limit.saturating_mul(from));
        let range = limit.saturating_mul(whole.saturating_sub(from));
        let delay = over.saturating_mul(u128::from(self.max.as_micros())).checked_div(range);
        delay.map_or(TimeSpan::ZERO, |micros| {
            TimeSpan::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)).min(self.max)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn action_set_contains_its_actions_and_what_needs_no_interface() {
        let set = ActionSet::of(&[ActionKind::Wait, ActionKind::Degrade]);
        for action in ActionKind::ALL {
            let expected = matches!(
                action,
                ActionKind::Reject | ActionKind::Borrow | ActionKind::Wait | ActionKind::Degrade
            );
            assert_eq!(set.contains(action), expected, "{}", action.name());
        }
    }

    #[test]
    fn slowdown_of_80_percent_and_one_second_delays_in_proportion_above() {
        let slow = Slowdown::new(800_000, TimeSpan::from_secs(1)).unwrap();
        for (used, millis) in [(0, 0), (80, 0), (81, 50), (85, 250), (90, 500), (99, 950), (100, 1_000)] {
            assert_eq!(slow.delay(used, 100), TimeSpan::from_millis(millis), "{used}");
        }
    }

    proptest! {
        #[test]
        fn slowdown_is_zero_up_to_its_start_monotonic_and_max_at_the_limit(
            from in 0_u32..1_000_000,
            max in 1_u64..=3_600_000_000,
            limit in 1_u64..,
            (one, other) in any::<(u64, u64)>(),
        ) {
            let max = TimeSpan::from_micros(max);
            let slow = Slowdown::new(from, max).unwrap();
            let (less, more) = (one.min(other), one.max(other));
            prop_assert!(slow.delay(less, limit) <= slow.delay(more, limit));
            prop_assert!(slow.delay(more, limit) <= max);
            prop_assert_eq!(slow.delay(limit, limit), max);
            let start = u64::try_from(u128::from(limit) * u128::from(from) / 1_000_000).unwrap();
            prop_assert_eq!(slow.delay(start, limit), TimeSpan::ZERO);
        }
    }
}
