//! Records decisions: the only place for every interface.

use tidegate_core::{RecordedDecision, RuleId};
use tidegate_store::{Clock, ClockReading};

use crate::metrics::{MetricsHandle, RuleSlots};
use crate::record::RequestRecord;

/// Where a decision is recorded.
#[derive(Debug)]
pub enum DecisionSink<'s, 't> {
    /// In the record of its request.
    Request(&'s mut RequestRecord<'t>),
    /// Only in the metrics: it has no record of its own.
    Metrics {
        /// `None` if telemetry is off.
        metrics: Option<&'t MetricsHandle>,
        /// Measures how long it took.
        clock: &'t dyn Clock,
        /// When it started.
        start: ClockReading,
    },
    /// Nowhere: nothing was decided.
    Off,
}

impl DecisionSink<'_, '_> {
    /// Records a decision: its kind, its client, the limit that is reported, and the rules that reject it or would have. Returns
    /// how many nanoseconds it took, if the metrics alone record it.
    #[inline]
    pub fn record<I: Iterator<Item = RuleId>>(
        &mut self,
        slots: &RuleSlots,
        RecordedDecision { kind, client, rejected_by, limit, shadow_rejections }: RecordedDecision<'_, I>,
    ) -> Option<u64> {
        let (metrics, start, nanos) = match self {
            Self::Request(record) => {
                record.finish_decision(kind);
                if let Some(client) = client {
                    record.set_client(client);
                }
                if let Some(limit) = limit {
                    record.set_limit(limit.name, limit.quota, limit.remaining);
                }
                let (metrics, start) = record.decision_metrics()?;
                (metrics, start, None)
            }
            Self::Metrics { metrics, clock, start } => {
                let metrics = (*metrics)?;
                let nanos = clock.read().nanos_since(*start);
                metrics.record_decision(kind, nanos);
                (metrics, *start, Some(nanos))
            }
            Self::Off => return None,
        };
        for rule in shadow_rejections {
            metrics.record_shadow_rejection(slots, rule);
        }
        if let Some(rule) = rejected_by {
            metrics.record_rejection(slots, rule, client.unwrap_or_default(), start.at);
        }
        nanos
    }
}
