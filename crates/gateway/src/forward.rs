//! Sends a request to a server of its upstream and builds the response.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;

use http::request::Parts;
use http::{Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use tidegate_core::{CallEnd, CallOutcome, TimeSpan, Timestamp};
use tidegate_limiter::Charge;
use tidegate_policy::FallbackPlan;
use tidegate_store::Store;
use tidegate_telemetry::AttemptResult;

use crate::act::Degradation;
use crate::act::cached::has_marked_end;
use crate::attempt_end::{AttemptFailure, latency_sample, outcome_of, status_cause, upload_error};
use crate::error::{OpenBreaker, ServeError};
use crate::http::header_flags::HeaderFlags;
use crate::http::hop_headers::{self, ConnInfo};
use crate::http::request_body::{UploadFailure, UploadHandle};
use crate::http::response_body::{ForwardedBody, ResponseBody, UpstreamBody};
use crate::http::upgrade;
use crate::service::Exchange;
use crate::time_bounds::{AttemptBound, RunningBound, TimeBounds};
use crate::upstream::{
    AttemptPermit, Caller, Evidence, ExchangePermits, ForwardedRequest, PooledConn, RetryState, SelectError,
    SelectedServer, UpstreamGroup,
};
use crate::worker::Worker;

/// The largest body that is received as a whole before its request probes a server.
const MAX_PROBE_BODY: u64 = 64 << 10;

/// A request to a server, and the upgrade that it asks for.
pub(crate) struct OutboundRequest {
    pub(crate) request: ForwardedRequest,
    pub(crate) upgrade: Option<PendingUpgrade>,
}

/// The upgrade of a client connection, pending until the server agrees.
pub(crate) struct PendingUpgrade {
    client: OnUpgrade,
    conn_info: Rc<ConnInfo>,
}

impl PendingUpgrade {
    pub(crate) fn take_from(parts: &mut Parts, flags: HeaderFlags, conn_info: &Rc<ConnInfo>) -> Option<Self> {
        let is_wanted = hop_headers::wants_upgrade(parts.version, &parts.headers, flags);
        let client = is_wanted.then(|| parts.extensions.remove::<OnUpgrade>()).flatten()?;
        Some(Self { client, conn_info: Rc::clone(conn_info) })
    }
}

/// What the attempts of a request have in common.
#[derive(Clone, Debug)]
pub(crate) struct AttemptContext<'u> {
    pub(crate) upstream: &'u UpstreamGroup,
    pub(crate) caller: Caller,
    pub(crate) permits: ExchangePermits,
    /// Whether it may have waited since its limits let it pass.
    pub(crate) may_have_waited: bool,
}

/// How one attempt is made.
#[derive(Clone, Copy, Debug)]
struct AttemptSetup<'a> {
    bounds: &'a TimeBounds<'a>,
    bound: AttemptBound,
    /// The servers at which earlier attempts have failed.
    tried: &'a [usize],
}

/// How one attempt has ended.
struct FinishedAttempt<'a> {
    /// The place of its server.
    index: usize,
    /// The servers at which earlier attempts have failed.
    tried: &'a [usize],
    breaker: Option<AttemptPermit<'a>>,
    end: CallEnd,
    /// What the end says about the server.
    outcome: CallOutcome,
    /// When it ended; `None` if nothing has measured it.
    ended: Option<Timestamp>,
}

/// The response to an attempt, and its connection.
type Answer = (Response<UpstreamBody>, PooledConn);

/// An attempt that another one may follow.
enum RepeatableEnd {
    Response(Box<Answer>),
    Failure(ServeError),
}

impl RepeatableEnd {
    /// The result of a request whose last attempt this is.
    fn into_answer(self) -> Result<Answer, ServeError> {
        match self {
            Self::Response(answer) => Ok(*answer),
            Self::Failure(error) => Err(error),
        }
    }
}

impl<'e, S: Store + 'static> Exchange<'e, S> {
    /// Returns the response of the upstream, or of the one that replaces it while its breakers are open.
    pub(crate) async fn send(
        &mut self,
        outbound: &mut OutboundRequest,
        context: AttemptContext<'_>,
        mut charge: Option<&mut Charge>,
    ) -> Result<Response<ResponseBody>, ServeError> {
        let fallback = context.upstream.resilience.plan.fallback.as_ref();
        let fallback = match fallback {
            Some(FallbackPlan::Upstream(index)) if !self.is_never_served_by(*index) => {
                self.snapshot.upstreams().get(*index)
            }
            Some(_) | None => None,
        };
        match self.send_to(outbound, &context, charge.as_deref_mut()).await {
            Err(ServeError::BreakerOpen(_)) if fallback.is_some() && outbound.request.rewind() => {
                // Boxed because its state would otherwise be part of every request.
                Box::pin(async {
                    let fallback = fallback.ok_or(ServeError::NoServer)?;
                    // Its response is not that of the usual upstream.
                    self.reuse = None;
                    let AttemptContext { caller, permits, .. } = context;
                    let permits = self.admit_fallback(fallback, permits, caller.at).await?;
                    let caller = Caller { key: caller.key.or_random(), ..caller };
                    let upstream = fallback;
                    let context = AttemptContext { upstream, caller, permits, may_have_waited: true };
                    self.send_to(outbound, &context, charge).await
                })
                .await
            }
            sent => sent,
        }
    }

    /// Whether this is the usual upstream of a request that goes to a cheaper one.
    fn is_never_served_by(&self, upstream: usize) -> bool {
        matches!(self.degradation, Some(Degradation::Upstream { usual, .. }) if usual == upstream)
    }

    /// Sends a request to servers of an upstream until there is a response to forward or no attempt is left.
    async fn send_to(
        &mut self,
        OutboundRequest { request, upgrade }: &mut OutboundRequest,
        context: &AttemptContext<'_>,
        mut charge: Option<&mut Charge>,
    ) -> Result<Response<ResponseBody>, ServeError> {
        let AttemptContext { upstream, caller, permits, may_have_waited } = context;
        let resilience = &upstream.resilience;
        let mut bounds = self.time_bounds(upstream, caller.at, upgrade.is_some());
        let mut selected = upstream.select(*caller, &[]).map_err(|error| select_error(upstream, error))?;
        let has_body = self.worker.can_start(upstream, &selected, request.upload());
        if !has_body {
            // Boxed because its state would otherwise be part of every request.
            selected = Box::pin(self.select_with_body(context, selected, request, &mut bounds)).await?;
        }
        let mut bound = if *may_have_waited || !has_body { bounds.next() } else { bounds.first() }?;
        // All workers share the budget: without retries it is not written.
        if resilience.plan.retry.attempts > 1 {
            resilience.budget.budget().record_request(caller.at);
        }
        if upgrade.is_none() {
            request.prepare_retries(&resilience.plan.retry);
        }
        let recording = UploadRecording(request.upload().clone());
        let mut retry = RetryState::new(upstream, *caller);
        loop {
            let index = selected.index;
            if resilience.connections.is_some() {
                // Boxed because its state would otherwise be part of every request.
                Box::pin(self.reserve_slot(upstream, &mut selected, request, &bounds)).await?;
                bound = bounds.next()?;
            }
            if let Some(charge) = &mut charge {
                charge.serve();
            }
            let attempt = AttemptSetup { bounds: &bounds, bound, tried: retry.tried() };
            let attempted = self.attempt(request, context, selected, attempt).await;
            let (cause, end) = match attempted {
                Ok(answer) => match status_cause(&answer.0, &resilience.plan.retry) {
                    None => return self.accept(answer, upgrade.take(), permits, recording),
                    Some(cause) => (cause, RepeatableEnd::Response(Box::new(answer))),
                },
                Err(AttemptFailure { cause: Some(cause), error, .. }) => {
                    (cause, RepeatableEnd::Failure(error))
                }
                Err(failure) => return Err(failure.error),
            };
            let next = retry.next(index, cause, request.can_repeat());
            let next = next.filter(|next| bounds.allows_wait(next.wait) && request.rewind());
            let (other, permit) = match next {
                // Boxed because its state would otherwise be part of every request.
                Some(next) => Box::pin(retry.wait_for(next, cause)).await,
                None => (None, None),
            };
            // The body may have outgrown the buffer while the request waited.
            let other = other.filter(|_| request.is_complete());
            let Some(other) = other.and_then(|it| self.worker.start(upstream, it, request.upload())) else {
                return self.accept(end.into_answer()?, upgrade.take(), permits, recording);
            };
            if let RepeatableEnd::Response(answer) = end {
                discard(*answer);
            }
            bound = bounds.next()?;
            selected = other;
            if let Some(permit) = permit {
                permit.spend();
                resilience.count_retry();
            }
        }
    }

    /// A server for a request that is to probe one. The body is received first, as far as it is not too large, so that the client
    /// cannot delay the probe.
    async fn select_with_body<'u>(
        &self,
        AttemptContext { upstream, caller, .. }: &AttemptContext<'u>,
        probed: SelectedServer<'u>,
        request: &ForwardedRequest,
        bounds: &mut TimeBounds<'_>,
    ) -> Result<SelectedServer<'u>, ServeError> {
        // Meanwhile others may probe.
        probed.cancel();
        let upload = request.upload();
        let filled = tokio::time::timeout(bounds.left(), upload.fill(MAX_PROBE_BODY)).await;
        filled.unwrap_or(Err(UploadFailure::TooSlow)).map_err(|failure| match bounds.next() {
            Err(error @ ServeError::DeadlineExceeded) => error,
            _ => upload_error(failure),
        })?;
        // The time of the server begins when it can have the body.
        bounds.started = bounds.clock.now();
        let selected = upstream.select(*caller, &[]).map_err(|error| select_error(upstream, error))?;
        selected.started(upload).ok_or_else(|| select_error(upstream, SelectError::BreakerOpen(None)))
    }

    /// The bounds of a request to an upstream that its limits let pass at `at`.
    fn time_bounds(&self, upstream: &UpstreamGroup, started: Timestamp, is_upgrade: bool) -> TimeBounds<'e> {
        let worker = self.worker;
        let max_stall = 2 * worker.limits.request_min_rate.period;
        let (clock, mut timeouts) = (&**worker.limiter.clock(), upstream.resilience.timeouts);
        // What follows an upgrade has no end.
        timeouts.starts_deadline &= !is_upgrade;
        TimeBounds { clock, started, timeouts, deadline: self.deadline, max_stall }
    }

    /// One attempt at a server. Its result is recorded.
    async fn attempt(
        &mut self,
        request: &mut ForwardedRequest,
        context: &AttemptContext<'_>,
        SelectedServer { index, server, breaker, slot }: SelectedServer<'_>,
        AttemptSetup { bounds, bound, tried }: AttemptSetup<'_>,
    ) -> Result<Answer, AttemptFailure> {
        let AttemptContext { upstream, permits, .. } = context;
        let (worker, record) = (self.worker, &mut self.record);
        bounds.tell_server(request);
        let shed = upstream.resilience.shed.as_ref().map(|shed| (shed, bounds.clock.read()));
        let trial = record.start_attempt(&upstream.counts);
        let (upload, running) = (request.upload().clone(), RunningBound::new(bound));
        let breaker = RefCell::new(breaker);
        let sent = {
            let sending = pin!(worker.transport.send(upstream, (server, slot), request, permits));
            let extension = || {
                let more = bounds.extension(&upload, &running);
                // A client that sends its body slowly must not keep the probe of a breaker.
                if more.is_some() {
                    breaker.borrow_mut().iter_mut().for_each(AttemptPermit::release_slot);
                }
                more
            };
            worker.timeouts.run_within(bound.timeout, sending, extension).await
        };
        let sent = match sent {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(AttemptFailure::new(&error, upload.failure())),
            None => Err(AttemptFailure::timeout(running.is_deadline())),
        };
        let (result, end) = match &sent {
            Ok((response, _)) => {
                let status = response.status().as_u16();
                (AttemptResult::Response(status), CallEnd::Status(status))
            }
            Err(failure) => (failure.result, failure.end),
        };
        let ended = record.finish_attempt(trial, &server.addr, result);
        if let Some((shed, started)) = shed
            && !upload.has_awaited_client()
        {
            let now = bounds.clock.read();
            let elapsed = TimeSpan::from_micros(now.nanos_since(started) / 1_000);
            let client = context.caller.client.hash();
            if let Some(latency) = latency_sample(end, elapsed, bound.timeout.into()) {
                shed.limit().record(client, latency, now.at);
            } else if matches!(&sent, Err(AttemptFailure { error: ServeError::DeadlineExceeded, .. })) {
                shed.limit().record_unfinished(client, elapsed, now.at);
            }
        }
        self.may_have_arrived |= sent.as_ref().err().is_none_or(|failure| failure.may_have_arrived);
        // While requests succeed, a connection that broke says more about one of its clients than about the server.
        let is_of_several = sent.as_ref().is_err_and(|failure| failure.is_of_several);
        let is_at_fault = || {
            upload.is_incomplete_by_client()
                || bounds.is_due_to_deadline(end, bound, &running)
                || (is_of_several && upstream.serves_any(index, context.caller.at))
        };
        let outcome = outcome_of(end, is_at_fault);
        match sent.as_ref() {
            Ok(_) => server.outage.record_response(),
            Err(failure) => worker.note_failure(upstream, server, failure, outcome),
        }
        // The result counts, but the server could not respond before it had the body.
        let breaker = breaker.into_inner().map(|breaker| breaker.timed(!upload.has_awaited_client()));
        self.record_outcome(context, FinishedAttempt { index, tried, breaker, end, outcome, ended });
        sent
    }

    /// Records what an attempt says about its server. A request that has failed before counts once: its failures have one cause.
    fn record_outcome(
        &self,
        AttemptContext { upstream, caller, .. }: &AttemptContext<'_>,
        FinishedAttempt { index, tried, breaker, end, outcome, ended }: FinishedAttempt<'_>,
    ) {
        let worker = self.worker;
        let Some(server) = upstream.servers.get(index) else { return };
        let counts_fully = end == CallEnd::ConnectError;
        let evidence = Evidence { client: caller.client, at: caller.at, counts_fully };
        let once = |has_failed: bool| {
            let is_repeated = outcome == CallOutcome::Failure && has_failed && !counts_fully;
            if is_repeated { CallOutcome::Neutral } else { outcome }
        };
        let has_failed_here = tried.contains(&index);
        if let Some(breaker) = breaker {
            let is_shared = upstream.resilience.breakers.shared().is_some();
            let has_failed = if is_shared { !tried.is_empty() } else { has_failed_here };
            let has_others = || upstream.serves_others(index, evidence);
            if let Some(change) = breaker.record(once(has_failed), counts_fully, has_others) {
                worker.log_breaker(upstream, server, change);
            }
        }
        // A server that takes long works now, not when the request began.
        let at = ended.filter(|_| outcome == CallOutcome::Success).unwrap_or(caller.at);
        let evidence = Evidence { at, ..evidence };
        if let Some(span) = upstream.record_outcome(index, once(has_failed_here), evidence) {
            worker.log_ejection(upstream, server, span);
        }
    }

    /// The response for the client.
    fn accept(
        &mut self,
        (response, conn): Answer,
        upgrade: Option<PendingUpgrade>,
        permits: &ExchangePermits,
        recording: UploadRecording,
    ) -> Result<Response<ResponseBody>, ServeError> {
        recording.end();
        permits.release_shed();
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return self.worker.upgrade(response, conn, upgrade);
        }
        let min_rate = self.worker.limits.response_min_rate;
        let now = || self.worker.limiter.clock().now();
        let of_body = self.deadline.filter(|deadline| !deadline.is_for_head());
        let left = of_body.map(|deadline| deadline.remaining(now()).into());
        let body =
            |source| ResponseBody::Upstream(Box::new(ForwardedBody::new(source, conn, min_rate, left)));
        let has_end = self.reuse.is_some() && has_marked_end(&response);
        let mut response = response.map(body);
        hop_headers::prepare_response(response.headers_mut(), false);
        *response.version_mut() = Version::HTTP_11;
        Ok(if has_end { self.copied(response) } else { response })
    }

    /// Settles the open parts of a charge by the response, or refunds them if no server received the request.
    pub(crate) async fn settle(&self, charge: Charge, response: &Result<Response<ResponseBody>, ServeError>) {
        match response {
            Ok(response) => charge.settle(response.status().as_u16(), response.headers()).await,
            // The error is that of the last attempt: an earlier one may have reached a server.
            Err(ServeError::NoServer | ServeError::Unreachable | ServeError::Untrusted(_))
                if !self.may_have_arrived =>
            {
                charge.release().await;
            }
            Err(_) => {}
        }
    }
}

impl<S: Store + 'static> Worker<S> {
    /// Whether the first attempt can start. A probe needs the whole body of its request: its client could delay it otherwise.
    fn can_start(
        &self,
        upstream: &UpstreamGroup,
        selected: &SelectedServer<'_>,
        upload: &UploadHandle,
    ) -> bool {
        if !selected.is_probe() {
            return true;
        }
        self.log_half_open(upstream, selected);
        upload.is_complete()
    }

    /// The server of another attempt that starts now; `None` if it cannot.
    fn start<'u>(
        &self,
        upstream: &UpstreamGroup,
        selected: SelectedServer<'u>,
        upload: &UploadHandle,
    ) -> Option<SelectedServer<'u>> {
        let started = selected.started(upload)?;
        if started.is_probe() {
            self.log_half_open(upstream, &started);
        }
        Some(started)
    }

    /// Relays between client and server after the server has agreed to switch protocols.
    fn upgrade(
        &self,
        mut response: Response<UpstreamBody>,
        conn: PooledConn,
        upgrade: Option<PendingUpgrade>,
    ) -> Result<Response<ResponseBody>, ServeError> {
        let Some(PendingUpgrade { client, conn_info }) = upgrade else {
            return Err(ServeError::BadUpstreamResponse);
        };
        let server = hyper::upgrade::on(&mut response);
        let relay =
            upgrade::relay((client, server), conn, conn_info, self.limits.tunnel_timeout, self.stop());
        tokio::task::spawn_local(relay);
        let mut response = response.map(|_| ResponseBody::empty());
        hop_headers::prepare_response(response.headers_mut(), true);
        Ok(response)
    }
}

/// Ends the recording of a request body: dropped without a response, the rest of the body is not needed.
struct UploadRecording(UploadHandle);

impl UploadRecording {
    /// There is a response; the body may still be sent, but not again.
    fn end(mut self) {
        std::mem::take(&mut self.0).end_recording();
    }
}

impl Drop for UploadRecording {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Drops a response that is not forwarded. Its connection is kept if the response is complete.
fn discard((response, conn): Answer) {
    if response.body().is_received() {
        conn.give_back();
    } else {
        conn.give_up();
    }
}

fn select_error(upstream: &UpstreamGroup, error: SelectError) -> ServeError {
    match error {
        SelectError::NoServer => ServeError::NoServer,
        SelectError::BreakerOpen(retry_after) => ServeError::BreakerOpen(OpenBreaker {
            retry_after: retry_after.map_or(1, |wait| wait.as_secs_ceil().max(1)),
            response: upstream.resilience.fixed_response.clone(),
        }),
    }
}
