//! The results of reloads, for metrics and `tidegate status`.

use std::sync::{Mutex, PoisonError};

use tidegate_admin::ReloadError;
use tidegate_telemetry::{Exposition, MetricKind};

/// How many reloads had which result, and why the last one failed.
#[derive(Debug, Default)]
pub(crate) struct ReloadResults {
    counts: Mutex<ReloadCounts>,
}

#[derive(Debug, Default)]
struct ReloadCounts {
    applied: u64,
    invalid: u64,
    refused: u64,
    /// Why the last reload failed; `None` if the files are active.
    failure: Option<ReloadError>,
}

impl ReloadResults {
    pub(crate) fn record(&self, failure: Option<&ReloadError>) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        match failure {
            None => counts.applied += 1,
            Some(ReloadError::Invalid { .. }) => counts.invalid += 1,
            Some(ReloadError::Refused { .. }) => counts.refused += 1,
        }
        counts.failure = failure.cloned();
    }

    /// Why the last reload failed; `None` if the files are active.
    pub(crate) fn failure(&self) -> Option<ReloadError> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).failure.clone()
    }

    pub(crate) fn write(&self, page: &mut Exposition) {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let help =
            "Reloads of the policy by result; `refused` ones would have removed too many bans or keys.";
        let mut family = page.family("tidegate_reloads_total", MetricKind::Counter, help);
        family.sample(&[("result", "applied")], counts.applied);
        family.sample(&[("result", "invalid")], counts.invalid);
        family.sample(&[("result", "refused")], counts.refused);
        let help = "Whether the last reload failed, so that the files differ from the running policy.";
        page.single("tidegate_reload_failed", MetricKind::Gauge, help, u64::from(counts.failure.is_some()));
    }
}
