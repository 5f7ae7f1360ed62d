//! Records decisions: the only place for every interface.

use tidegate_core::{ActionKind, RecordedDecision, RuleAction};
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
    /// Records a decision: its kind, its client, the limit that is reported, and the rules that reject it, act on it or would have. Returns
    /// how many nanoseconds it took, if the metrics alone record it.
    #[inline]
    pub fn record<I: Iterator<Item = RuleAction>>(
        &mut self,
        slots: &RuleSlots,
        RecordedDecision { kind, client, rejected_by, limit, action, shadow_actions }: RecordedDecision<
            '_,
            I,
        >,
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
                if let Some(action) = action {
                    record.set_action(action.kind);
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
        for RuleAction { rule, kind } in shadow_actions {
            match kind {
                ActionKind::Reject => metrics.record_shadow_rejection(slots, rule),
                kind => metrics.record_shadow_action(slots, rule, kind),
            }
        }
        if let Some(RuleAction { rule, kind }) = action {
            metrics.record_action(slots, rule, kind);
        }
        if let Some(rule) = rejected_by {
            metrics.record_rejection(slots, rule, client.unwrap_or_default(), start.at);
        }
        nanos
    }
}
