//! Every message of Envoy's rate limit service and every configuration is answered or rejected.

use std::sync::{Arc, OnceLock};

use tidegate_core::Timestamp;
use tidegate_limiter::Limiter;
use tidegate_policy::{ActivePolicy, EnvoyFile, EnvoyLimits, NoFiles, compile};
use tidegate_service::Service;
use tidegate_store::{Clock, ManualClock, MemoryStore};
use tidegate_telemetry::Telemetry;

const POLICY: &str = "rate_limits: { default: { requests: 5, window: 60 } }";
const CONFIG: &str = "
domain: d
descriptors:
  - { key: k, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: k, value: 'a*b', share_threshold: true, rate_limit: { unit: day, requests_per_unit: 0 } }
  - key: n
    shadow_mode: true
    rate_limit: { name: n, unit: hour, requests_per_unit: 2, algorithm: token_bucket }
    descriptors: [{ key: k, rate_limit: { unlimited: true, replaces: [{ name: n }] } }]
";

fn envoy_limits(bytes: &[u8]) -> Option<EnvoyLimits> {
    let file = EnvoyFile { name: "config.yaml".to_owned(), bytes: bytes.to_vec() };
    match EnvoyLimits::compile(&[file]) {
        Ok(limits) => Some(limits),
        Err(problems) => {
            assert!(problems.has_errors() && !problems.to_string().is_empty());
            None
        }
    }
}

fn service() -> &'static Service<MemoryStore> {
    static SERVICE: OnceLock<Service<MemoryStore>> = OnceLock::new();
    SERVICE.get_or_init(|| {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
        let plan = compile("policy.yaml", POLICY.as_bytes(), &NoFiles).expect("a valid policy").plan;
        let store = Arc::new(MemoryStore::with_cap(1 << 20));
        let limiter = Limiter::new(ActivePolicy::new(plan), store, Arc::clone(&clock)).expect("few limits");
        let service = Service::new(Arc::new(limiter), Telemetry::metrics_only(1, clock));
        let limits = envoy_limits(CONFIG.as_bytes()).expect("a valid configuration");
        service.apply_envoy_limits(limits).expect("few limits");
        service
    })
}

pub(crate) fn assert_law(bytes: &[u8]) {
    if let Some(response) = pollster::block_on(service().decide_rls(bytes)) {
        // The first field is the overall code: OK or OVER_LIMIT.
        assert!(matches!(response.as_slice(), [8, 1 | 2, ..]), "{response:?}");
    }
    if let Some(limits) = envoy_limits(bytes) {
        let text = String::from_utf8_lossy(bytes);
        let words: Vec<_> = text.split(|c: char| !c.is_alphanumeric()).collect();
        for domain in words.iter().filter_map(|word| limits.domain(word)) {
            for pair in words.windows(2) {
                let _ = domain.find([(pair[0], pair[1])], &mut Vec::new());
            }
        }
    }
}
