//! What a request holds until the server is done with it.

use std::sync::{Arc, Mutex, PoisonError};

use tidegate_store::Permit;
use tidegate_tower::bulkhead::BulkheadPermit;
use tidegate_tower::load_shed::LoadShedPermit;

/// The permits of a request. Each attempt has a clone, because a server may still work on an attempt that timed out: the
/// permits are released with the last clone. A request without permits has no allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExchangePermits(Option<Arc<PermitList>>);

/// Permits of concurrency limits, bulkheads and load shedding.
#[derive(Debug, Default)]
pub(crate) struct PermitList {
    /// Of concurrency limits.
    pub(crate) limits: Vec<Permit>,
    /// Of the route and the upstream.
    pub(crate) bulkheads: [Option<BulkheadPermit>; 2],
    pub(crate) shed: Mutex<Option<LoadShedPermit>>,
}

impl From<PermitList> for ExchangePermits {
    fn from(mut list: PermitList) -> Self {
        let has_shed = list.shed.get_mut().unwrap_or_else(PoisonError::into_inner).is_some();
        let has_bulkhead = list.bulkheads.iter().any(Option::is_some);
        let is_empty = list.limits.is_empty() && !has_bulkhead && !has_shed;
        Self((!is_empty).then(|| Arc::new(list)))
    }
}

impl ExchangePermits {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Releases this clone.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// What a request to another upstream keeps: the permits of its limits and its route. Those of the first upstream, which
    /// got nothing, are released.
    pub(crate) fn without_upstream(self) -> PermitList {
        // No attempt was made, so there is no other clone.
        let list = self.0.and_then(Arc::into_inner).unwrap_or_default();
        let PermitList { limits, bulkheads: [route, _], .. } = list;
        PermitList { limits, bulkheads: [route, None], ..PermitList::default() }
    }

    /// Releases the permit of load shedding: the adaptive limit bounds the time until a response starts. Clients that read
    /// slowly must not use it up.
    pub(crate) fn release_shed(&self) {
        if let Some(list) = &self.0 {
            list.shed.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}
