//! Bounds on the requests in flight to an upstream: load shedding first, because it rejects at once; then the bulkhead of the
//! route, then that of the upstream, which may wait.

use std::sync::Mutex;
use std::time::Duration;

use http::HeaderMap;
use tidegate_core::{Criticality, TimeSpan, Timestamp};
use tidegate_policy::Route;
use tidegate_store::{Permit, Store};
use tidegate_tower::bulkhead::{Bulkhead, BulkheadPermit};
use tidegate_tower::load_shed::criticality;

use crate::error::ServeError;
use crate::service::Exchange;
use crate::time_bounds::TimeBounds;
use crate::upstream::{
    ExchangePermits, ForwardedRequest, NoConnectionSlot, PermitList, SelectedServer, UpstreamGroup,
};

impl<S: Store + 'static> Exchange<'_, S> {
    /// The permits of a request that its limits have admitted at `at`; `limits` are those of concurrency limits.
    pub(crate) async fn admit(
        &self,
        (route, upstream): (&Route, &UpstreamGroup),
        limits: Vec<Permit>,
        (headers, is_trusted): (&HeaderMap, bool),
        at: Timestamp,
    ) -> Result<ExchangePermits, ServeError> {
        let permits = PermitList { limits, ..PermitList::default() };
        let resilience = &upstream.resilience;
        if resilience.shed.is_none() && resilience.bulkhead.is_none() && route.bulkhead.is_none() {
            return Ok(permits.into());
        }
        // Others could claim any importance.
        let criticality = if is_trusted { criticality(headers) } else { Criticality::default() };
        // Boxed because its state would otherwise be part of every request.
        Box::pin(self.fill(permits, Some(route), (upstream, at), criticality)).await
    }

    /// The permits for the upstream that replaces one whose breaker is open. `first` are those of the request so far; what it
    /// holds of the first upstream is released.
    pub(crate) async fn admit_fallback(
        &self,
        upstream: &UpstreamGroup,
        first: ExchangePermits,
        at: Timestamp,
    ) -> Result<ExchangePermits, ServeError> {
        self.fill(first.without_upstream(), None, (upstream, at), Criticality::default()).await
    }

    async fn fill(
        &self,
        mut permits: PermitList,
        route: Option<&Route>,
        (upstream, at): (&UpstreamGroup, Timestamp),
        criticality: Criticality,
    ) -> Result<ExchangePermits, ServeError> {
        if let Some(shedder) = &upstream.resilience.shed {
            let permit = shedder.try_acquire(criticality).map_err(|_| ServeError::Overloaded)?;
            permits.shed = Mutex::new(Some(permit));
        }
        let route_bulkhead = route.and_then(|route| self.snapshot.route_bulkhead(route));
        let bulkheads = [route_bulkhead, upstream.resilience.bulkhead.as_ref()];
        let ends_at = at + TimeSpan::from(upstream.resilience.timeouts.total);
        for (slot, bulkhead) in permits.bulkheads.iter_mut().zip(bulkheads) {
            if let Some(bulkhead) = bulkhead {
                *slot = Some(self.enter(bulkhead, ends_at).await?);
            }
        }
        Ok(permits.into())
    }

    /// A permit of a bulkhead, at the latest when the total time of the request ends or by its deadline.
    async fn enter(&self, bulkhead: &Bulkhead, ends_at: Timestamp) -> Result<BulkheadPermit, ServeError> {
        let now = self.worker.limiter.clock().now();
        let total = ends_at.since(now);
        let deadline = self.deadline.map(|deadline| deadline.remaining(now)).filter(|left| *left <= total);
        let left = Duration::from(deadline.unwrap_or(total));
        match tokio::time::timeout(left, bulkhead.acquire()).await {
            Ok(permit) => permit.map_err(|_| ServeError::BulkheadFull),
            Err(_) if deadline.is_some() => Err(ServeError::DeadlineExceeded),
            Err(_) => Err(ServeError::BulkheadFull),
        }
    }

    /// Reserves the slot of a connection for an attempt, before the time that the server has for it starts.
    pub(crate) async fn reserve_slot(
        &self,
        upstream: &UpstreamGroup,
        selected: &mut SelectedServer<'_>,
        request: &ForwardedRequest,
        bounds: &TimeBounds<'_>,
    ) -> Result<(), ServeError> {
        let may_wait = upstream.resilience.may_wait_for_connection();
        let reserving = self.worker.transport.reserve_slot(upstream, selected.server, request);
        selected.slot = match tokio::time::timeout(bounds.left(), reserving).await {
            Ok(reserved) => reserved.map_err(|NoConnectionSlot| ServeError::BulkheadFull)?,
            Err(_) => return Err(bounds.next().err().unwrap_or(ServeError::BulkheadFull)),
        };
        if let Some(breaker) = &mut selected.breaker
            && may_wait
            && selected.slot.is_some()
        {
            breaker.ignore_duration();
        }
        Ok(())
    }
}
