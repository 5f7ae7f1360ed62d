//! What the connections of a thread share.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tidegate_core::{RuleId, Timestamp};
use tidegate_limiter::Limiter;
use tidegate_policy::ActivePolicy;
use tidegate_store::Store;
use tidegate_telemetry::{Protocol, Recorder, RuleSlots, Telemetry};

use crate::auth::{ListenerTokens, TokenRegister};
use crate::grpc::{EnvoyHandle, GrpcState, ServedEnvoyLimits};
use crate::http::HttpState;
use crate::resp::RespState;

/// The state of a worker thread.
#[derive(Debug)]
pub(crate) struct ServiceWorker<S> {
    pub(crate) limiter: Arc<Limiter<S>>,
    telemetry: Telemetry,
    recorders: [Recorder; 3],
    policy: RefCell<Rc<ServedPolicy>>,
    tokens: Arc<TokenRegister>,
    /// What the connections of the gRPC protocol share.
    pub(crate) grpc: GrpcState,
    /// What the connections of the HTTP protocol share.
    pub(crate) http: HttpState,
    /// What the connections of the Redis protocol share.
    pub(crate) resp: RespState,
}

/// The active policy with the metric slots of its rules.
#[derive(Debug)]
pub(crate) struct ServedPolicy {
    pub(crate) active: Arc<ActivePolicy>,
    pub(crate) counted: RuleSlots,
    /// The tokens of the listeners. Some may be those of an earlier policy.
    pub(crate) tokens: Arc<ListenerTokens>,
}

impl<S: Store + 'static> ServiceWorker<S> {
    pub(crate) fn new(
        limiter: Arc<Limiter<S>>,
        telemetry: Telemetry,
        http: HttpState,
        envoy: Arc<EnvoyHandle>,
    ) -> Self {
        let recorder = |protocol| telemetry.recorder(protocol, Arc::clone(limiter.clock()));
        let recorders = [recorder(Protocol::Http), recorder(Protocol::Grpc), recorder(Protocol::Resp)];
        let tokens = Arc::<TokenRegister>::default();
        tokens.apply(&limiter.policy().matcher.plan().service);
        let policy = RefCell::new(Rc::new(ServedPolicy::new(limiter.policy(), &telemetry, &tokens)));
        let (grpc, resp) = (GrpcState::new(envoy), RespState::default());
        Self { limiter, telemetry, recorders, policy, tokens, grpc, http, resp }
    }

    /// Requires the tokens of `register`, which all workers share.
    pub(crate) fn requiring(self, register: Arc<TokenRegister>) -> Self {
        let policy = ServedPolicy::new(self.limiter.policy(), &self.telemetry, &register);
        Self { policy: RefCell::new(Rc::new(policy)), tokens: register, ..self }
    }

    /// The active policy. A request must use one policy from start to end.
    pub(crate) fn policy(&self) -> Rc<ServedPolicy> {
        let active = self.limiter.policy();
        let mut served = self.policy.borrow_mut();
        if !Arc::ptr_eq(&active, &served.active) {
            let policy = ServedPolicy::new(active, &self.telemetry, &self.tokens);
            *served = Rc::new(policy);
        }
        Rc::clone(&served)
    }

    /// Metric slots for a rule that is not part of a policy.
    pub(crate) fn register_rule(&self, rule: RuleId, name: &str) -> RuleSlots {
        self.telemetry.metrics().register(rule, name)
    }

    /// The active Envoy configuration, if there is one. A call must use one configuration from start to end.
    pub(crate) fn envoy(&self) -> Option<Rc<ServedEnvoyLimits>> {
        self.grpc.envoy(&self.telemetry)
    }

    /// Records the requests of a protocol.
    pub(crate) fn recorder(&self, protocol: Protocol) -> &Recorder {
        let [http, grpc, resp] = &self.recorders;
        match protocol {
            Protocol::Http | Protocol::Gateway => http,
            Protocol::Grpc => grpc,
            Protocol::Resp => resp,
        }
    }

    /// The time for a decision.
    pub(crate) fn now(&self) -> Timestamp {
        self.limiter.clock().now()
    }
}

impl ServedPolicy {
    fn new(active: Arc<ActivePolicy>, telemetry: &Telemetry, tokens: &TokenRegister) -> Self {
        let counted = telemetry.metrics().apply(active.matcher.plan());
        // The register knows the tokens of a policy before the policy is active.
        Self { active, counted, tokens: tokens.current() }
    }
}
