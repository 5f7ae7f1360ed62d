//! What the log says about upstreams and their servers.

use tidegate_core::{BreakerState, CallOutcome, TimeSpan};
use tidegate_store::Store;
use tidegate_telemetry::AttemptResult;

use crate::attempt_end::AttemptFailure;
use crate::upstream::{AttemptPermit, OutageNotice, SelectedServer, Server, UpstreamGroup};
use crate::worker::Worker;

impl<S: Store + 'static> Worker<S> {
    #[cold]
    pub(crate) fn log_ejection(&self, upstream: &UpstreamGroup, server: &Server, span: TimeSpan) {
        let (name, address, span) = (&upstream.name, &server.addr, format!("{span:?}"));
        let message = format!("server {address} of upstream `{name}` keeps failing: no requests for {span}");
        let fields = [("upstream", name.as_str()), ("server", address), ("duration", &span)];
        self.log.event("server_ejected", &message, &fields);
    }

    /// Records that an attempt got no response, unless its client is at fault. Logs it unless that was logged lately.
    #[cold]
    pub(crate) fn note_failure(
        &self,
        upstream: &UpstreamGroup,
        server: &Server,
        failure: &AttemptFailure,
        outcome: CallOutcome,
    ) {
        if outcome != CallOutcome::Failure && failure.result != AttemptResult::Unreachable {
            return;
        }
        let Some(notice) = server.outage.record(&failure.description, upstream.clock.now()) else { return };
        let OutageNotice { cause, failures, lasted } = notice;
        let (name, address) = (&upstream.name, &server.addr);
        let message = match failures {
            1 => format!("server {address} of upstream `{name}` fails: {cause}"),
            _ => format!(
                "server {address} of upstream `{name}` still fails: {cause}; {failures} failures in {lasted}"
            ),
        };
        let fields = [("upstream", name.as_str()), ("server", address), ("cause", &cause)];
        self.log.event("server_failing", &message, &fields);
    }

    /// Logs that a breaker has become half-open, when its first probe starts.
    #[cold]
    pub(crate) fn log_half_open(&self, upstream: &UpstreamGroup, probe: &SelectedServer<'_>) {
        if probe.breaker.as_ref().is_some_and(AttemptPermit::take_half_open) {
            let (name, address) = (&upstream.name, &probe.server.addr);
            let message =
                format!("the breaker of upstream `{name}` is half_open: a request probes {address}");
            let fields = [("upstream", name.as_str()), ("server", address), ("state", "half_open")];
            self.log.event("breaker_changed", &message, &fields);
        }
    }

    #[cold]
    pub(crate) fn log_breaker(&self, upstream: &UpstreamGroup, server: &Server, state: BreakerState) {
        let (name, address) = (&upstream.name, &server.addr);
        let state = state.name();
        let message = format!("the breaker of upstream `{name}` is {state} after a request to {address}");
        let fields = [("upstream", name.as_str()), ("server", address), ("state", state)];
        self.log.event("breaker_changed", &message, &fields);
    }
}
