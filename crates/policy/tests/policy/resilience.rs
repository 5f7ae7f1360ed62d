//! The resilience settings of upstreams and routes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::subsequence;
use tidegate_core::{
    AdaptiveConfig, Backoff, BreakerConfig, Jitter, Ratio, SlowCalls, TimeSpan, WindowLength,
};
use tidegate_policy::{
    BreakerPlan, BreakerScope, BulkheadPlan, EjectPlan, FallbackPlan, NoFiles, Plan, ResiliencePlan,
    RetryBudgetPlan, RetryCauses, RetryPlan, TimeoutsPlan, compile, diff,
};

const LIMITS: &str = "rate_limits: { default: { requests: 1, window: 1 } }";

/// A policy with one upstream of two servers and these keys.
fn policy(keys: &str) -> String {
    let keys = if keys.is_empty() { String::new() } else { format!(", {keys}") };
    format!("upstreams: {{ api: {{ servers: [http://a, http://b]{keys} }} }}\n{LIMITS}\n")
}

fn compiled(text: &str) -> (Plan, Vec<String>) {
    let files = BTreeMap::from([("down.html".to_owned(), b"<p>down".to_vec())]);
    let compiled =
        compile("p.yaml", text.as_bytes(), &files).unwrap_or_else(|problems| panic!("{text}\n{problems}"));
    let warnings =
        compiled.warnings.iter().map(|warning| format!("{}: {}", warning.path, warning.what)).collect();
    (compiled.plan, warnings)
}

fn plan(keys: &str) -> ResiliencePlan {
    let (plan, warnings) = compiled(&policy(keys));
    assert_eq!(warnings, [""; 0], "{keys}");
    plan.upstreams[0].resilience.clone()
}

/// The warnings about an upstream with these keys, without the path of the upstream.
fn warnings(keys: &str) -> Vec<String> {
    let (_, warnings) = compiled(&policy(keys));
    warnings.iter().map(|warning| warning.replace("upstreams.api.", "")).collect()
}

fn millis(millis: u64) -> TimeSpan {
    TimeSpan::from_millis(millis)
}

#[test]
fn upstream_with_all_keys_compiles_to_their_values() {
    let plan = plan(
        "timeouts: { connect: 2s, request: 10s, idle: 30s, total: 30s }, \
         retry: { attempts: 3, on: [504, connect, timeout, 429, 502], methods: [GET, PURGE], base: 50ms, cap: 2s, \
                  jitter: full, budget: 20%, buffer: 1MiB }, \
         breaker: { failures: 7, failure_rate: 50%, slow: { over: 2s, rate: 80% }, window: 20s, min_calls: 30, \
                    open_for: 40s, max_open_for: 5m, probes: 2, successes: 3, per: upstream }, \
         bulkhead: { concurrent: 50, queue: 20, wait: 500ms, connections: 100 }, \
         eject: { after: 6, for: 20s, at_most: 50% }, shed: { adaptive: { initial: 30, min: 10, max: 200 } }, \
         fallback: { status: 200, body: down.html }",
    );
    let TimeoutsPlan { connect, request, idle, total, starts_deadline } = plan.timeouts;
    assert!(starts_deadline && !TimeoutsPlan::default().starts_deadline);
    assert_eq!([connect, request, idle, total], [2_000, 10_000, 30_000, 30_000].map(millis));
    let retry = RetryPlan {
        attempts: 3,
        on: RetryCauses { connect: true, reset: false, timeout: true, statuses: vec![429, 502, 504] },
        methods: vec!["GET".to_owned(), "PURGE".to_owned()],
        backoff: Backoff::new(millis(50), millis(2_000), Jitter::Full).unwrap(),
        budget: RetryBudgetPlan { share: Ratio::from_percent(20), ..RetryBudgetPlan::default() },
        buffer: 1 << 20,
    };
    assert_eq!(plan.retry, retry);
    let config = BreakerConfig {
        failures: Some(7),
        failure_rate: Some(Ratio::from_percent(50)),
        slow: Some(SlowCalls { over: millis(2_000), rate: Ratio::from_percent(80) }),
        window: WindowLength::Time(millis(20_000)),
        min_calls: 30,
        open_for: millis(40_000),
        max_open_for: millis(300_000),
        probes: 2,
        successes: 3,
        ..BreakerConfig::default()
    };
    assert_eq!(plan.breaker, Some(BreakerPlan { config, scope: BreakerScope::Upstream }));
    let bulkhead = BulkheadPlan { concurrent: 50, queue: 20, wait: millis(500), connections: Some(100) };
    assert_eq!(plan.bulkhead, Some(bulkhead));
    let eject = EjectPlan { after: 6, duration: millis(20_000), at_most: Ratio::from_percent(50) };
    assert_eq!(plan.eject, Some(eject));
    assert_eq!(
        plan.shed,
        Some(AdaptiveConfig { initial: 30, min: 10, max: 200, ..AdaptiveConfig::default() })
    );
    let Some(FallbackPlan::Response { status: 200, body: Some(body) }) = plan.fallback else {
        panic!("{:?}", plan.fallback)
    };
    assert_eq!((&*body.content, body.content_type), (b"<p>down".as_slice(), "text/html; charset=utf-8"));
}

#[test]
fn short_forms_compile_to_their_meaning() {
    let default = ResiliencePlan::default();
    assert_eq!(plan("retry: off").retry, RetryPlan { attempts: 1, ..default.retry });
    assert_eq!(plan("retry: { buffer: off }").retry.buffer, 0);
    assert_eq!(plan("retry: { on: 5xx }").retry.on.statuses, (500..=599).collect::<Vec<_>>());
    let budget = |text: &str| plan(&format!("retry: {{ budget: {text} }}")).retry.budget;
    let ten = RetryBudgetPlan { share: Ratio::from_percent(10), floor: 10 };
    assert_eq!((budget("10%"), budget("{ share: 10% }"), budget("{}")), (ten, ten, ten));
    assert_eq!(
        budget("{ share: 5%, floor: 0 }"),
        RetryBudgetPlan { share: Ratio::from_percent(5), floor: 0 }
    );
    assert_eq!(plan("eject: off").eject, None);
    assert_eq!(plan("shed: adaptive").shed, Some(AdaptiveConfig::default()));
    let breaker = BreakerPlan { config: BreakerConfig::default(), scope: BreakerScope::Server };
    assert_eq!(plan("breaker: {}").breaker, Some(breaker));
    let rate_only = plan("breaker: { failure_rate: 50% }").breaker.unwrap().config;
    assert_eq!((rate_only.failures, rate_only.failure_rate), (None, Some(Ratio::from_percent(50))));
    let fallback = plan("breaker: {}, fallback: { status: 500 }").fallback;
    assert_eq!(fallback, Some(FallbackPlan::Response { status: 500, body: None }));
}

#[test]
fn bulkhead_wait_defaults_to_one_second_with_a_queue_and_none_without() {
    let bulkhead = |keys: &str| plan(&format!("bulkhead: {{ {keys} }}")).bulkhead.unwrap();
    let expected = BulkheadPlan { concurrent: 5, queue: 0, wait: TimeSpan::ZERO, connections: None };
    assert_eq!(bulkhead("concurrent: 5"), expected);
    assert_eq!(bulkhead("concurrent: 5, queue: 0"), expected);
    assert_eq!(
        bulkhead("concurrent: 5, queue: 2"),
        BulkheadPlan { queue: 2, wait: millis(1_000), ..expected }
    );
}

#[test]
fn fallback_upstream_is_found_by_name_before_and_after() {
    let text = format!(
        "upstreams:\n  a: {{ servers: http://a, breaker: {{}}, fallback: {{ upstream: c }} }}\n\
         \x20 b: {{ servers: http://b, breaker: {{}}, fallback: {{ upstream: a }} }}\n  c: {{ servers: http://c }}\n{LIMITS}\n"
    );
    let (plan, warnings) = compiled(&text);
    let fallbacks: Vec<_> =
        plan.upstreams.iter().map(|upstream| upstream.resilience.fallback.clone()).collect();
    assert_eq!(fallbacks, [Some(FallbackPlan::Upstream(2)), Some(FallbackPlan::Upstream(0)), None]);
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn settings_without_an_effect_warn() {
    for (keys, warning) in [
        ("fallback: { status: 503 }", "fallback: `fallback` never applies: the upstream has no `breaker`"),
        ("bulkhead: { concurrent: 5, wait: 1s }", "bulkhead.wait: `wait` has no effect without `queue`"),
        (
            "bulkhead: { concurrent: 5, connections: 4 }",
            "bulkhead.connections: `concurrent: 5` is never reached: HTTP/1.1 needs a connection for each request",
        ),
        (
            "breaker: { window: 5s }",
            "breaker.window: `window` has no effect without `failure_rate` or `slow`",
        ),
        (
            "breaker: { min_calls: 5 }",
            "breaker.min_calls: `min_calls` has no effect without `failure_rate` or `slow`",
        ),
        (
            "timeouts: { request: 1s }, breaker: { slow: { over: 2s, rate: 50% } }",
            "breaker.slow.over: no request is ever slow: it times out after `timeouts.request`, 1s",
        ),
        (
            "retry: { attempts: 1, budget: 5% }",
            "retry.budget: `budget` has no effect: with `attempts: 1` nothing is sent again",
        ),
        (
            "retry: { on: connect, methods: GET }",
            "retry.methods: `methods` has no effect: only failed connects are retried, with every method",
        ),
        (
            "timeouts: { total: 30s }, retry: { on: [connect, timeout] }",
            "retry.on[1]: a timeout is never retried: one attempt may take all of `timeouts.total`, 30s",
        ),
        (
            "timeouts: { total: 1s }, retry: { base: 1s }",
            "retry.base: no request is ever sent again: `base` is not shorter than `timeouts.total`, 1s",
        ),
        (
            "eject: { at_most: 10% }",
            "eject.at_most: no server is ever ejected: 10% of 2 servers is less than one",
        ),
    ] {
        assert_eq!(warnings(keys), [warning], "{keys}");
    }
}

#[test]
fn risky_settings_warn() {
    let post = "retry.methods[1]: POST is not idempotent: a retry may do its work twice";
    assert_eq!(warnings("retry: { methods: [GET, POST] }"), [post]);
    let patch = "retry.methods: PATCH is not idempotent: a retry may do its work twice";
    assert_eq!(warnings("retry: { methods: PATCH }"), [patch]);
    let most =
        "eject.at_most: up to 51% of the servers may be ejected; the rest, if any, gets all of the load";
    assert_eq!(warnings("eject: { at_most: 51% }"), [most]);
}

#[test]
fn route_bulkhead_as_large_as_that_of_its_upstream_warns() {
    let text = |route: u32| {
        format!(
            "upstreams: {{ api: {{ servers: http://a, bulkhead: {{ concurrent: 50, queue: 10 }} }} }}\n\
             routes: [{{ path: /**, upstream: api, bulkhead: {{ concurrent: {route} }} }}]\n{LIMITS}\n"
        )
    };
    let (plan, warnings) = compiled(&text(49));
    assert_eq!((plan.routes[0].bulkhead.unwrap().concurrent, warnings), (49, Vec::new()));
    let alone = "routes[0].bulkhead: requests of this route alone can fill the bulkhead of the upstream `api`, which admits \
                 50; other routes are then rejected";
    assert_eq!(compiled(&text(50)).1, [alone]);
    assert_eq!(compiled(&text(59)).1, [alone]);
    let never = "routes[0].bulkhead: this bulkhead is never full: that of the upstream `api` admits only 50 requests and queues 10";
    assert_eq!(compiled(&text(60)).1, [never]);
}

#[test]
fn diff_lists_changed_resilience_settings() {
    let changes = |old: &str, new: &str| -> Vec<String> {
        diff(&compiled(old).0, &compiled(new).0).iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        changes(&policy(""), &policy("timeouts: { request: 10s }, retry: off, bulkhead: { concurrent: 5 }")),
        [
            "upstream `api` bulkhead added: at most 5 in flight",
            "upstream `api` retry changed: up to 2 attempts on connect, reset; idempotent methods; \
             waits 25ms to 1s, decorrelated jitter; budget 10% and 10/s; bodies up to 64KiB → off",
            "upstream `api` timeouts changed: connect 5s, request 30s, idle 1m, total 30s → connect 5s, request 10s, idle \
             1m, total 30s",
        ]
    );
    assert_eq!(
        changes(LIMITS, &policy("eject: off")),
        ["upstream `api` added: http://a, http://b, round_robin", "upstream `api` eject added: off"]
    );
    let route = |keys: &str| format!("{}routes: [{{ upstream: api{keys} }}]\n", policy(""));
    assert_eq!(
        changes(&route(""), &route(", bulkhead: { concurrent: 30, queue: 5 }")),
        ["routes changed: */** → api → */** → api, bulkhead: at most 30 in flight, 5 waiting up to 1s"]
    );
}

#[test]
fn long_chain_of_fallbacks_compiles_and_its_cycle_is_reported_once() {
    const MANY: usize = 5_000;
    let text = |last: &str| {
        let upstreams = (0..MANY).map(|n| {
            let next =
                if n + 1 == MANY { last.to_owned() } else { format!("fallback: {{ upstream: u{} }}", n + 1) };
            format!("  u{n}: {{ servers: http://a, breaker: {{}}, {next} }}\n")
        });
        format!("upstreams:\n{}{LIMITS}\n", upstreams.collect::<String>())
    };
    assert_eq!(compiled(&text("eject: off")).1, [""; 0]);
    let problems = compile("p.yaml", text("fallback: { upstream: u0 }").as_bytes(), &NoFiles).unwrap_err();
    assert_eq!(problems.count(), 1, "{problems}");
    let what = &problems.iter().next().unwrap().what;
    assert_eq!(
        what,
        "the fallbacks form a cycle: `u0` → `u1` → `u2` → `u3` → `u4` → `u5` → `u6` → `u7` → … → `u0`"
    );
}

/// The documented defaults, by mapping.
const DEFAULTS: [(&str, &[&str]); 3] = [
    ("timeouts", &["connect: 5s", "request: 30s", "idle: 60s"]),
    (
        "retry",
        &[
            "attempts: 2",
            "on: [connect, reset]",
            "methods: [GET, HEAD, OPTIONS, TRACE, PUT, DELETE]",
            "base: 25ms",
            "cap: 1s",
            "jitter: decorrelated",
            "budget: 10%",
            "buffer: 64KiB",
        ],
    ),
    ("eject", &["after: 5", "for: 10s", "at_most: 50%"]),
];

/// Any of the documented defaults, written out.
fn written_defaults() -> impl Strategy<Value = String> {
    let mappings = DEFAULTS.map(|(name, keys)| {
        let some = subsequence(keys.to_vec(), 0..=keys.len());
        prop::option::of(some)
            .prop_map(move |keys| keys.map(|keys| format!("{name}: {{ {} }}", keys.join(", "))))
    });
    let [timeouts, retry, eject] = mappings;
    (timeouts, retry, eject)
        .prop_map(|(a, b, c)| [a, b, c].into_iter().flatten().collect::<Vec<_>>().join(", "))
}

/// Any of the timeouts, in milliseconds.
fn written_timeouts() -> impl Strategy<Value = [Option<u64>; 3]> {
    prop::array::uniform3(prop::option::of(1_u64..200_000))
}

proptest! {
    #[test]
    fn documented_defaults_equal_the_default_plan(keys in written_defaults()) {
        prop_assert_eq!(plan(&keys), ResiliencePlan::default());
    }

    #[test]
    fn timeouts_are_ordered_or_a_written_pair_is_not(written in written_timeouts()) {
        let names = ["connect", "request", "total"];
        let keys: Vec<_> = names.iter().zip(written).filter_map(|(name, ms)| Some(format!("{name}: {}ms", ms?))).collect();
        let text = policy(&format!("timeouts: {{ {} }}", keys.join(", ")));
        let is_ordered = written.into_iter().flatten().is_sorted();
        match compile("p.yaml", text.as_bytes(), &NoFiles) {
            Ok(compiled) => {
                let TimeoutsPlan { connect, request, total, .. } = compiled.plan.upstreams[0].resilience.timeouts;
                prop_assert!(is_ordered && connect <= request && request <= total);
                for (written, span) in written.into_iter().zip([connect, request, total]) {
                    prop_assert!(written.is_none_or(|ms| millis(ms) == span));
                }
            }
            Err(_) => prop_assert!(!is_ordered, "{text}"),
        }
    }
}
