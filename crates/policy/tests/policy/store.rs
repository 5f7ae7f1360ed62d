//! How nodes share counters: `store` and the keys of rules.

use std::collections::BTreeMap;

use http::header::HOST;
use http::{HeaderMap, HeaderValue};
use tidegate_core::{Coordination, StoreFailureMode, TimeSpan, Timestamp};
use tidegate_policy::{
    CompiledPolicy, ConcurrencyRule, ExplainRequest, Matcher, Plan, RuleSharing, compile, diff, explain,
};

fn compiled(text: &str) -> CompiledPolicy {
    let files = BTreeMap::from([
        ("store.secret".to_owned(), b"a secret of more than sixteen bytes\n".to_vec()),
        ("redis.password".to_owned(), b"hunter2\n".to_vec()),
        ("ca.pem".to_owned(), b"-----BEGIN CERTIFICATE-----".to_vec()),
    ]);
    compile("policy.yaml", text.as_bytes(), &files).unwrap_or_else(|problems| panic!("{problems}"))
}

fn plan(text: &str) -> Plan {
    compiled(text).plan
}

const SHARED: &str = "\
store: { url: rediss://cache, coordination: lease, timeout: 5ms, on_store_failure: allow, nodes: 3,
         secret_file: store.secret, password_file: redis.password, tls: { ca: ca.pem } }
rate_limits:
  default: { requests: 100, window: 60 }
  global: { requests: 10, window: 1s, coordination: central, on_store_failure: deny }
";

fn sharing(coordination: Coordination, on_store_failure: StoreFailureMode) -> RuleSharing {
    RuleSharing { coordination, on_store_failure }
}

#[test]
fn rule_without_own_settings_inherits_those_of_the_store() {
    let plan = plan(SHARED);
    let limits = &plan.rate_limits;
    let of = |rule: &Option<tidegate_policy::Rule>| rule.as_ref().and_then(|rule| rule.sharing);
    assert_eq!(of(&limits.default), Some(sharing(Coordination::Lease, StoreFailureMode::Allow)));
    assert_eq!(of(&limits.global), Some(sharing(Coordination::Central, StoreFailureMode::Deny)));
    assert_eq!(plan.store.timeout, TimeSpan::from_millis(5));
    assert_eq!(plan.store.nodes.get(), 3);
    assert_eq!(
        plan.store.password.map(|password| password.secret.expose().to_vec()),
        Some(b"hunter2".to_vec())
    );
    assert!(plan.store.tls.ca.is_some());
}

#[test]
fn rule_of_one_process_shares_nothing() {
    let plan = plan("rate_limits: { default: { requests: 100, window: 60 } }");
    assert!(plan.rate_limits.iter().all(|rule| rule.sharing.is_none()));
}

#[test]
fn static_rule_needs_no_url() {
    let plan = plan(
        "store: { nodes: 4 }\nrate_limits: { default: { requests: 8, window: 60, coordination: static } }",
    );
    let rule = plan.rate_limits.default.unwrap();
    assert_eq!(rule.sharing.unwrap().coordination, Coordination::Static);
    assert_eq!((rule.requests, rule.limit.capacity()), (8, 2), "each of four nodes admits two");
}

#[test]
fn secrets_appear_neither_in_debug_output_nor_in_differences() {
    let (old, new) = (plan("rate_limits: { default: { requests: 100, window: 60 } }"), plan(SHARED));
    let changes: Vec<_> = diff(&old, &new).iter().map(ToString::to_string).collect();
    let text = format!("{changes:?}{:?}", new.store);
    assert!(!text.contains("hunter2") && !text.contains("more than sixteen"), "{text}");
    assert!(text.contains("store.coordination added: lease"), "{text}");
    assert!(text.contains("store.secret_file added: store.secret"), "{text}");
}

#[test]
fn changed_coordination_resets_counters_and_changed_failure_mode_keeps_them() {
    let text = |settings: &str| {
        plan(&format!(
            "store: {{ url: redis://a, secret_file: store.secret }}\nrate_limits:\n  default: {{ requests: 9, window: 1s{settings} }}\n"
        ))
    };
    let effect = |settings: &str| diff(&text(""), &text(settings))[0].to_string();
    assert!(effect(", coordination: lease").ends_with("; counters reset"));
    assert!(effect(", on_store_failure: deny").ends_with("; counters kept"));
}

/// The concurrency rule of a policy with these keys.
fn exports(store: &str, keys: &str) -> ConcurrencyRule {
    let text = format!("{store}\nrate_limits: {{ rules: [{{ name: exports, concurrent: 10{keys} }}] }}");
    plan(&text).rate_limits.concurrent.remove(0)
}

#[test]
fn concurrency_rule_shares_permits_only_with_its_own_coordination() {
    let store = "store: { url: rediss://cache, coordination: lease, on_store_failure: allow, secret_file: store.secret }";
    let of = |keys: &str| exports(store, keys).sharing;
    assert_eq!(of(""), None, "each node counts");
    assert!(!exports(store, "").has_shared_permits());
    assert!(exports(store, ", coordination: central").has_shared_permits());
    let expected = sharing(Coordination::Central, StoreFailureMode::Allow);
    assert_eq!(of(", coordination: central"), Some(expected));
    let expected = sharing(Coordination::Central, StoreFailureMode::Deny);
    assert_eq!(of(", coordination: central, on_store_failure: deny"), Some(expected));
}

#[test]
fn static_concurrency_rule_is_divided_by_the_nodes_and_stays_positive() {
    let of = |nodes: u32| exports(&format!("store: {{ nodes: {nodes} }}"), ", coordination: static");
    assert_eq!([1, 3, 10, 11].map(|nodes| of(nodes).concurrent), [10, 3, 1, 1]);
    assert!(!of(3).has_shared_permits(), "each node has its own");
}

#[test]
fn changed_coordination_of_a_concurrency_rule_is_a_difference() {
    let policy = |keys: &str| {
        plan(&format!(
            "store: {{ url: redis://cache }}\nrate_limits: {{ rules: [{{ name: exports, concurrent: 2{keys} }}] }}"
        ))
    };
    let change = diff(&policy(""), &policy(", coordination: central"))[0].to_string();
    assert!(change.contains("at most 2 concurrent requests, central, on_store_failure local"), "{change}");
}

#[test]
fn explanation_of_a_concurrency_rule_names_its_coordination() {
    let text = "store: { url: redis://cache }\nrate_limits: { rules: [{ name: exports, concurrent: 2, coordination: central }] }";
    let matcher = Matcher::new(plan(text));
    let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("a.example"))]);
    let request = ExplainRequest {
        method: "GET",
        target: "/",
        headers: &headers,
        peer: [192, 0, 2, 1].into(),
        body: tidegate_policy::BodyFacts::Unknown,
    };
    let directory = matcher.plan().directory.clone();
    let text = explain(&matcher, &request, directory.as_deref(), Timestamp::ZERO).to_string();
    assert!(
        text.contains("central; while the store fails, each node enforces a part of the limit"),
        "{text}"
    );
}

#[test]
fn questionable_store_settings_are_warnings() {
    let warnings = |text: &str| -> Vec<String> {
        compiled(text).warnings.iter().map(|warning| format!("{}: {}", warning.line, warning.what)).collect()
    };
    let text = "\
store: { url: redis://cache, coordination: static, nodes: 8, sync_interval: 2s, fallback_share: 10% }
rate_limits: { default: { requests: 5, window: 60 } }
";
    assert_eq!(
        warnings(text),
        [
            "1: without `secret_file`, anyone who can read Redis can test guesses of API keys and users",
            "1: `sync_interval` has no effect: no limit has `coordination: sync`",
            "1: `fallback_share` has no effect: no limit has `on_store_failure: local`",
            "2: 5 requests cannot be divided by 8 nodes: each node admits 1 request in a longer window",
        ]
    );
    assert_eq!(
        warnings(SHARED),
        ["1: `nodes` has no effect: no limit has `coordination: static`"],
        "neither rule divides anything"
    );
}
