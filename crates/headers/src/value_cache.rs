//! Caches header values. There are few distinct limits and windows, and limits reset at few distinct seconds.

use http::HeaderValue;
use tidegate_core::{LimitReport, LimitUnit, TimeSpan};

use crate::structured_list::ListWriter;

/// Cached header values of one thread.
#[derive(Debug, Default)]
pub struct HeaderValueCache {
    limits: Slots<()>,
    resets: Slots<()>,
    policies: Slots<Vec<AnnouncedQuota>>,
}

impl HeaderValueCache {
    pub(crate) fn limit(&mut self, limit: u64) -> HeaderValue {
        self.limits.get(limit, |()| true, || ((), limit.into()))
    }

    pub(crate) fn reset(&mut self, seconds: u64) -> HeaderValue {
        self.resets.get(seconds, |()| true, || ((), seconds.into()))
    }

    /// `RateLimit-Policy`.
    pub(crate) fn policy(&mut self, reports: &[LimitReport<'_>]) -> HeaderValue {
        let is_same = |quotas: &Vec<AnnouncedQuota>| {
            quotas.len() == reports.len()
                && quotas.iter().zip(reports).all(|(quota, report)| quota.describes(report))
        };
        let write = || (reports.iter().map(AnnouncedQuota::new).collect(), policy_value(reports));
        self.policies.get(fingerprint(reports), is_same, write)
    }
}

fn policy_value(reports: &[LimitReport<'_>]) -> HeaderValue {
    let mut list = ListWriter::default();
    for report in reports {
        list.member(report.name);
        list.integer(";q=", report.quota);
        if report.unit != LimitUnit::Requests {
            list.string(";qu=", &report.unit.to_string());
        }
        if let Some(window) = report.window {
            list.integer(";w=", window.as_secs_ceil());
        }
    }
    list.finish()
}

/// A hash of what a policy announces. Rules do not move while a policy is active, so the address of a name
/// identifies it; equality is decided by its bytes.
fn fingerprint(reports: &[LimitReport<'_>]) -> u64 {
    // An odd number without a pattern: the upper half of the product depends on all bits of the other factor.
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = reports.iter().fold(0_u64, |mixed, report| {
        let address = report.name.as_ptr().addr() as u64;
        (mixed.rotate_left(7) ^ address ^ report.quota).wrapping_mul(MIX)
    });
    mixed >> 32
}

/// One limit as announced by `RateLimit-Policy`.
#[derive(Debug)]
struct AnnouncedQuota {
    name: Box<str>,
    quota: u64,
    window: Option<TimeSpan>,
    unit: LimitUnit,
}

impl AnnouncedQuota {
    fn new(report: &LimitReport<'_>) -> Self {
        Self { name: report.name.into(), quota: report.quota, window: report.window, unit: report.unit }
    }

    fn describes(&self, report: &LimitReport<'_>) -> bool {
        self.quota == report.quota
            && self.window == report.window
            && self.unit == report.unit
            && *self.name == *report.name
    }
}

/// The number of cached values of each kind.
const SLOTS: usize = 16;

/// The latest values by hash, one in each slot. A value is cached on its second use in a row, so one-off values are never
/// stored.
#[derive(Debug)]
struct Slots<K>([Option<CacheSlot<K>>; SLOTS]);

#[derive(Debug)]
struct CacheSlot<K> {
    hash: u64,
    /// The value and its full key.
    stored: Option<(K, HeaderValue)>,
}

impl<K> Default for Slots<K> {
    fn default() -> Self {
        Self([const { None }; SLOTS])
    }
}

impl<K> Slots<K> {
    /// The cached value with this `hash` for which `is_same` holds, otherwise the result of `write`.
    fn get(
        &mut self,
        hash: u64,
        is_same: impl FnOnce(&K) -> bool,
        write: impl FnOnce() -> (K, HeaderValue),
    ) -> HeaderValue {
        let index = usize::try_from(hash % SLOTS as u64).unwrap_or_default();
        let Some(slot) = self.0.get_mut(index) else { return write().1 };
        match slot {
            Some(CacheSlot { hash: used, stored }) if *used == hash => match stored {
                Some((key, value)) if is_same(key) => value.clone(),
                _ => stored.insert(write()).1.clone(),
            },
            _ => {
                *slot = Some(CacheSlot { hash, stored: None });
                write().1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_cache_number_in_any_order_is_the_number() {
        let mut cache = HeaderValueCache::default();
        for number in [1, 1, 1, 17, 17, 1, 2, 17, 2, 2, 17] {
            assert_eq!(cache.limit(number), number.to_string());
        }
    }

    #[test]
    fn value_cache_policy_differs_by_name_quota_window_and_unit() {
        let base = LimitReport {
            name: "a",
            quota: 10,
            window: Some(TimeSpan::from_secs(60)),
            remaining: 10,
            reset_after: TimeSpan::ZERO,
            retry_after: None,
            unit: LimitUnit::Requests,
        };
        let policies = [
            (vec![base], r#""a";q=10;w=60"#),
            (vec![LimitReport { name: "b", ..base }], r#""b";q=10;w=60"#),
            (vec![LimitReport { quota: 11, ..base }], r#""a";q=11;w=60"#),
            (vec![LimitReport { window: None, ..base }], r#""a";q=10"#),
            (vec![LimitReport { unit: LimitUnit::Cost, ..base }], r#""a";q=10;qu="cost-units";w=60"#),
            (vec![base, base], r#""a";q=10;w=60, "a";q=10;w=60"#),
        ];
        let mut cache = HeaderValueCache::default();
        for repeat in [1, 2, 3] {
            for (reports, text) in &policies {
                for _ in 0..repeat {
                    assert_eq!(cache.policy(reports), *text);
                }
            }
        }
    }

    #[test]
    fn value_cache_hash_collision_replaces_the_value() {
        let mut slots = Slots::<u64>::default();
        for key in [1, 1, 2, 2, 1, 1, 2_u64] {
            assert_eq!(slots.get(7, |stored| *stored == key, || (key, key.into())), key.to_string());
        }
    }
}
