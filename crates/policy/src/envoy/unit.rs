//! The units of time of a limit.

use tidegate_core::TimeSpan;

tidegate_core::named_enum! {
    /// The unit of a limit. Months have 30 days and years 365, as in the reference server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum RateUnit {
        /// A second.
        Second = "second",
        /// A minute.
        Minute = "minute",
        /// An hour.
        Hour = "hour",
        /// A day.
        Day = "day",
        /// Seven days.
        Week = "week",
        /// 30 days.
        Month = "month",
        /// 365 days.
        Year = "year",
    }
}

impl RateUnit {
    /// Its length.
    pub const fn span(self) -> TimeSpan {
        const DAY: u64 = 86_400;
        TimeSpan::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        })
    }
}
