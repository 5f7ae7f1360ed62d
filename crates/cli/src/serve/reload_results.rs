//! The results of reloads, for metrics and `tidegate status`.

use std::sync::{Mutex, PoisonError};

use tidegate_admin::{ReloadError, ReloadState};
use tidegate_core::Timestamp;
use tidegate_telemetry::Exposition;

/// How many reloads had which result, and the state of the policy after the last one.
#[derive(Debug)]
pub(crate) struct ReloadResults {
    counts: Mutex<ReloadCounts>,
}

#[derive(Debug)]
struct ReloadCounts {
    applied: u64,
    invalid: u64,
    refused: u64,
    state: ReloadState,
}

impl ReloadResults {
    /// The policy was loaded by the start, at `started`.
    pub(crate) fn new(started: Timestamp) -> Self {
        let state = ReloadState { applied_at: started, failure: None };
        Self { counts: Mutex::new(ReloadCounts { applied: 0, invalid: 0, refused: 0, state }) }
    }

    /// Records a reload that ended at `now`.
    pub(crate) fn record(&self, failure: Option<&ReloadError>, now: Timestamp) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        match failure {
            None => counts.applied += 1,
            Some(ReloadError::Invalid { .. }) => counts.invalid += 1,
            Some(ReloadError::Refused { .. }) => counts.refused += 1,
        }
        if failure.is_none() {
            counts.state.applied_at = now;
        }
        counts.state.failure = failure.map(|error| (error.clone(), now));
    }

    /// The state of the policy.
    pub(crate) fn state(&self) -> ReloadState {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).state.clone()
    }

    pub(crate) fn write(&self, page: &mut Exposition) {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let help =
            "Reloads of the policy by result; `refused` ones would have removed too many bans or keys.";
        let mut family = page.counter("tidegate_reloads_total", help);
        family.sample(&[("result", "applied")], counts.applied);
        family.sample(&[("result", "invalid")], counts.invalid);
        family.sample(&[("result", "refused")], counts.refused);
        let ReloadState { applied_at, failure } = &counts.state;
        let help = "Whether the last reload failed, so that the files differ from the running policy.";
        page.gauge("tidegate_reload_failed", help).value(u64::from(failure.is_some()));
        let help = "When the running policy was loaded, by the start or by a reload.";
        page.gauge("tidegate_reload_last_success_timestamp_seconds", help)
            .value(applied_at.as_micros() / 1_000_000);
    }
}
