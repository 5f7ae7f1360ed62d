use crate::{NoFiles, Plan, compile};

use super::*;

fn plan(text: &str) -> Plan {
    compile("policy.yaml", text.as_bytes(), &NoFiles).unwrap().plan
}

fn changes(old: &str, new: &str) -> Vec<String> {
    diff(&plan(old), &plan(new)).iter().map(ToString::to_string).collect()
}

#[test]
fn diff_of_equal_plans_is_empty() {
    let text = include_str!("../../../../examples/small-api.yaml");
    assert_eq!(changes(text, text), Vec::<String>::new());
}

#[test]
fn diff_changed_limit_keeps_counters_and_changed_algorithm_resets_them() {
    let old = "rate_limits: { default: { requests: 100, window: 60 }, global: { requests: 5, window: 1s } }";
    let new = "rate_limits: { default: { requests: 200, window: 60 }, \
               global: { requests: 5, window: 1s, algorithm: token_bucket } }";
    assert_eq!(
        changes(old, new),
        [
            "rule `global` changed: 5 per 1s, sliding_window_counter → 5 per 1s, token_bucket; counters reset",
            "rule `default` changed: 100 per 1m, sliding_window_counter → 200 per 1m, sliding_window_counter; \
             counters kept",
        ]
    );
}

#[test]
fn diff_changed_identities_reset_counters() {
    let rule = |per| format!("rate_limits: {{ rules: [{{ name: login, {per}, requests: 5, window: 1m }}] }}");
    assert_eq!(
        changes(&rule("per: ip"), &rule("per_each: [ip, fingerprint]")),
        [
            "rule `login` changed: 5 per 1m, sliding_window_counter, per ip → 5 per 1m, sliding_window_counter, per \
             each of ip, fingerprint; counters reset"
        ]
    );
}

#[test]
fn diff_lists_added_and_removed_rules_before_settings() {
    let old = "{ listen: 0.0.0.0:80, rate_limits: { endpoints: { /a: { requests: 1, window: 1 } } } }";
    let new = "{ listen: 0.0.0.0:81, rate_limits: { endpoints: { POST /b: { requests: 1, window: 1 } } } }";
    assert_eq!(
        changes(old, new),
        [
            "rule `endpoint:POST /b` added: 1 per 1s, sliding_window_counter",
            "rule `endpoint:/a` removed: 1 per 1s, sliding_window_counter",
            "listen changed: 0.0.0.0:80 → 0.0.0.0:81",
        ]
    );
}

#[test]
fn diff_changed_mode_keeps_counters() {
    let rule = |mode| format!("rate_limits: {{ default: {{ requests: 5, window: 1m, mode: {mode} }} }}");
    assert_eq!(
        changes(&rule("shadow"), &rule("{ canary: 0.5% }")),
        [
            "rule `default` changed: 5 per 1m, sliding_window_counter, shadow → 5 per 1m, sliding_window_counter, \
             canary 0.5%; counters kept"
        ]
    );
    let rules = |rest: &str| format!("rate_limits: {{ rules: [{{ name: r, {rest} }}] }}");
    assert_eq!(
        changes(
            &rules("concurrent: 2"),
            &rules("requests: 5, window: 1m, charge: { after: { status: 4xx } }")
        ),
        [
            "rule `r` changed: at most 2 concurrent requests → 5 per 1m, sliding_window_counter, charged if the response status is 4xx; \
             counters reset"
        ]
    );
    assert_eq!(changes(&rule("enforce"), "rate_limits: { default: { requests: 5, window: 1m } }"), [""; 0]);
}

#[test]
fn diff_lists_http_settings_of_policy_and_route() {
    let policy = |http: &str, route: &str| {
        format!(
            "{{ http: {{ {http} }}, upstreams: {{ api: {{ servers: [http://a] }} }}, \
             routes: [{{ path: /x, upstream: api, http: {{ {route} }} }}] }}"
        )
    };
    assert_eq!(
        changes(&policy("", ""), &policy("encoded_slash: keep", "path_case: sensitive")),
        [
            "http.encoded_slash changed: reject → keep",
            "routes changed: */x → api → */x → api, path_case: sensitive",
        ]
    );
}
