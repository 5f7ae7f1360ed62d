//! The active Envoy configuration, and what a worker keeps for it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use tidegate_core::Timestamp;
use tidegate_headers::HeaderValueCache;
use tidegate_policy::EnvoyLimits;
use tidegate_store::{RetainedLimits, Store, StoreError};
use tidegate_telemetry::{RuleSlots, Telemetry};

use super::rate_limit::POLICY_DOMAIN;

/// The most unknown domains that are logged between two activations.
const MAX_UNKNOWN: usize = 100;
/// The most known domains in such a log line, and the most characters of the unknown one.
const MAX_NAMED: usize = 20;
const MAX_SHOWN: usize = 200;

/// The active Envoy configuration of a process.
#[derive(Debug, Default)]
pub(crate) struct EnvoyHandle {
    active: ArcSwapOption<ActiveEnvoyLimits>,
    /// The unknown domains that were logged since the last activation.
    unknown: Mutex<BTreeSet<Box<str>>>,
}

/// A configuration whose limits the store has registered.
#[derive(Debug)]
pub(crate) struct ActiveEnvoyLimits {
    pub(crate) limits: EnvoyLimits,
    _retained: RetainedLimits,
}

impl EnvoyHandle {
    /// Registers `limits` with the store and activates them. Counters stay. If the store cannot count them, nothing changes.
    pub(crate) fn activate(
        &self,
        limits: EnvoyLimits,
        store: &impl Store,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let rates = limits.iter().filter_map(|limit| limit.rate?.limit);
        let retained = store.retain_limits(&rates.map(|(limit, _)| limit).collect::<Vec<_>>(), now)?;
        self.active.store(Some(Arc::new(ActiveEnvoyLimits { limits, _retained: retained })));
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    }

    /// Logs the first call for a domain that nobody configures: its requests are not limited.
    fn log_unknown(&self, domain: &str) {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        if unknown.len() >= MAX_UNKNOWN || unknown.contains(domain) {
            return;
        }
        unknown.insert(domain.into());
        drop(unknown);
        let active = self.active.load();
        let known = active.iter().flat_map(|active| active.limits.iter_domains().map(|(name, _)| name));
        let known: Vec<_> = known.chain([POLICY_DOMAIN]).take(MAX_NAMED).collect();
        let shown: String = domain.chars().take(MAX_SHOWN).collect();
        tracing::warn!(
            event = "unknown_domain",
            domain = shown,
            "calls for an unknown domain are admitted without a limit; known domains: {}",
            known.join(", ")
        );
    }
}

/// What the gRPC calls of a worker share.
#[derive(Debug)]
pub(crate) struct GrpcState {
    handle: Arc<EnvoyHandle>,
    served: RefCell<Option<Rc<ServedEnvoyLimits>>>,
    pub(super) header_values: RefCell<HeaderValueCache>,
}

/// The active Envoy configuration with the metric slots of its descriptors.
#[derive(Debug)]
pub(crate) struct ServedEnvoyLimits {
    active: Arc<ActiveEnvoyLimits>,
    pub(super) counted: RuleSlots,
}

impl GrpcState {
    pub(crate) fn new(handle: Arc<EnvoyHandle>) -> Self {
        Self { handle, served: RefCell::default(), header_values: RefCell::default() }
    }

    /// Logs a call for a domain that nobody configures.
    pub(super) fn log_unknown(&self, domain: &str) {
        self.handle.log_unknown(domain);
    }

    /// The active configuration. A call must use one configuration from start to end.
    pub(crate) fn envoy(&self, telemetry: &Telemetry) -> Option<Rc<ServedEnvoyLimits>> {
        let active = self.handle.active.load();
        let active = active.as_ref()?;
        let mut served = self.served.borrow_mut();
        match &*served {
            Some(served) if Arc::ptr_eq(&served.active, active) => Some(Rc::clone(served)),
            _ => {
                let counted = telemetry.metrics().apply_envoy(&active.limits);
                let current = Rc::new(ServedEnvoyLimits { active: Arc::clone(active), counted });
                *served = Some(Rc::clone(&current));
                Some(current)
            }
        }
    }
}

impl ServedEnvoyLimits {
    pub(super) fn limits(&self) -> &EnvoyLimits {
        &self.active.limits
    }
}
