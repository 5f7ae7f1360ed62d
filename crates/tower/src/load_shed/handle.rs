//! The adaptive limit of one service, and the permits of its calls.

use std::sync::Arc;

use http::HeaderMap;
use http::header::HeaderName;
use tidegate_core::{AdaptiveConfig, AdaptiveConfigError, AdaptiveLimit, Criticality, TimeSpan};
use tidegate_store::{Clock, ClockReading};

use super::error::Overload;
use crate::clock::system_clock;

const CRITICALITY: HeaderName = HeaderName::from_static("x-criticality");

/// The importance of a request by its header `X-Criticality`. A request without the header, or with an unknown value, has the
/// default importance.
pub fn criticality(headers: &HeaderMap) -> Criticality {
    let value = headers.get(CRITICALITY).and_then(|value| value.to_str().ok());
    value.and_then(Criticality::parse).unwrap_or_default()
}

/// The adaptive concurrency limit of one service. Clones share it.
#[derive(Clone, Debug)]
pub struct LoadShedder {
    shared: Arc<LimitWithClock>,
}

#[derive(Debug)]
struct LimitWithClock {
    limit: AdaptiveLimit,
    clock: Arc<dyn Clock>,
}

impl LoadShedder {
    /// A limit at its initial value that uses the [system clock](system_clock).
    pub fn new(config: AdaptiveConfig) -> Result<Self, AdaptiveConfigError> {
        Self::with_clock(config, system_clock())
    }

    /// A limit at its initial value that uses `clock`.
    pub fn with_clock(config: AdaptiveConfig, clock: Arc<dyn Clock>) -> Result<Self, AdaptiveConfigError> {
        Ok(Self { shared: Arc::new(LimitWithClock { limit: AdaptiveLimit::new(config)?, clock }) })
    }

    /// Admits a call if its importance leaves room for it.
    pub fn try_acquire(&self, criticality: Criticality) -> Result<LoadShedPermit, Overload> {
        if !self.shared.limit.try_acquire(criticality) {
            return Err(Overload { criticality });
        }
        let started = self.shared.clock.read();
        Ok(LoadShedPermit { shared: Arc::clone(&self.shared), started })
    }

    /// The limit: for its value and its counts.
    pub fn limit(&self) -> &AdaptiveLimit {
        &self.shared.limit
    }
}

impl Default for LoadShedder {
    /// A limit that starts at 20 calls in flight.
    fn default() -> Self {
        let Ok(shedder) = Self::new(AdaptiveConfig::default()) else { unreachable!("the default is valid") };
        shedder
    }
}

/// A call in flight. Dropping it ends the call; only [`Self::record`] makes its latency count.
#[derive(Debug)]
#[must_use = "a dropped permit ends the call"]
pub struct LoadShedPermit {
    shared: Arc<LimitWithClock>,
    started: ClockReading,
}

impl LoadShedPermit {
    /// Ends the call and records its latency. A call that was cancelled or that failed, except by a timeout, says nothing about
    /// the load: drop its permit instead.
    pub fn record(self) {
        let end = self.shared.clock.read();
        let latency = TimeSpan::from_micros(end.nanos_since(self.started) / 1_000);
        // Callers are not known here, so all of them count as one.
        self.shared.limit.record(0, latency, end.at);
    }
}

impl Drop for LoadShedPermit {
    fn drop(&mut self) {
        self.shared.limit.release();
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use tidegate_core::Timestamp;
    use tidegate_store::ManualClock;

    use super::*;

    fn shedder(clock: &Arc<ManualClock>) -> LoadShedder {
        let clock = Arc::clone(clock) as Arc<dyn Clock>;
        LoadShedder::with_clock(AdaptiveConfig::default(), clock).unwrap()
    }

    fn clock() -> Arc<ManualClock> {
        Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)))
    }

    #[test]
    fn load_shedder_at_its_limit_rejects_less_important_requests_first() {
        let shedder = shedder(&clock());
        let mut permits: Vec<_> =
            std::iter::from_fn(|| shedder.try_acquire(Criticality::Critical).ok()).collect();
        assert_eq!(permits.len(), 18, "90 % of 20");
        let criticality = Criticality::Sheddable;
        assert_eq!(shedder.try_acquire(criticality).unwrap_err(), Overload { criticality });
        permits.push(shedder.try_acquire(Criticality::CriticalPlus).unwrap());
        drop(permits);
        assert_eq!(shedder.limit().in_flight(), 0);
        assert!(shedder.try_acquire(criticality).is_ok());
    }

    #[test]
    fn load_shedder_limit_shrinks_when_recorded_calls_become_slow() {
        let clock = clock();
        let shedder = shedder(&clock);
        for millis in [10; 20].into_iter().chain([1_000; 200]) {
            let permits: Vec<_> =
                (0..10).map(|_| shedder.try_acquire(Criticality::CriticalPlus).unwrap()).collect();
            clock.advance(TimeSpan::from_millis(millis));
            permits.into_iter().for_each(LoadShedPermit::record);
            if shedder.limit().limit() < 12 {
                break;
            }
        }
        assert!(shedder.limit().limit() < 12, "{}", shedder.limit().limit());
        assert_eq!(shedder.limit().in_flight(), 0);
    }

    #[test]
    fn criticality_without_or_with_unknown_header_is_the_default() {
        let mut headers = HeaderMap::new();
        assert_eq!(criticality(&headers), Criticality::Critical);
        headers.insert(CRITICALITY, HeaderValue::from_static("urgent"));
        assert_eq!(criticality(&headers), Criticality::Critical);
        headers.insert(CRITICALITY, HeaderValue::from_static("Sheddable"));
        assert_eq!(criticality(&headers), Criticality::Sheddable);
    }
}
