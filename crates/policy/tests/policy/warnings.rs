//! Warnings about policies that are valid but probably mistaken.

use std::collections::BTreeMap;

use tidegate_policy::{NoFiles, compile};

use super::policies::{SMALLEST, compile_valid, routed, warnings};

#[test]
fn tiers_without_tier_source_warn() {
    assert_eq!(
        warnings(&routed(SMALLEST)),
        ["6: the limits in `tiers` never apply: no client is assigned a tier"]
    );
}

#[test]
fn tier_of_a_request_without_tiers_or_trusted_proxies_warns() {
    let header = "clients: { tiers: { header: X-Plan } }\n";
    let default = "rate_limits: { default: { requests: 1, window: 1 } }\n";
    let tiers =
        "rate_limits: { default: { requests: 1, window: 1 }, tiers: { free: { requests: 9, window: 1 } } }\n";
    let ignored = "1: the header `x-plan` is always ignored: only a trusted proxy may send it, and `trusted_proxies` is empty";
    let empty = "1: no tier has this name: `rate_limits.tiers` is empty, so it assigns no tier";
    assert_eq!(warnings(&format!("{header}{tiers}")), [ignored]);
    assert_eq!(warnings(&routed(&format!("{header}{default}"))), [ignored, empty]);
    let trusted = "clients: { tiers: { header: X-Plan }, ip: { trusted_proxies: 10.0.0.0/8 } }\n";
    assert_eq!(warnings(&format!("{trusted}{tiers}")), Vec::<String>::new());
}

#[test]
fn default_limit_with_default_tier_warns() {
    let text = "clients: { tiers: { default: free } }\n\
                rate_limits:\n  default: { requests: 9, window: 1 }\n  tiers: { free: { requests: 1, window: 1m } }\n";
    assert_eq!(
        warnings(&routed(text)),
        ["3: `default` never applies: clients without a tier have the tier `free`"]
    );
}

#[test]
fn tenant_limit_without_tenants_warns() {
    let text = "rate_limits:\n  tenant: { requests: 9, window: 1 }\n";
    assert_eq!(warnings(&routed(text)), ["2: no request has a tenant, so this limit counts each client"]);
}

#[test]
fn networks_with_all_addresses_warn() {
    let text = "clients:\n  ip: { trusted_proxies: [0.0.0.0/0] }\n  exempt: { networks: ['::/0'] }\n\
                bans: { networks: 0.0.0.0/0 }\nrate_limits: { default: { requests: 1, window: 1 } }\n";
    assert_eq!(
        warnings(text),
        [
            "2: `0.0.0.0/0` trusts every address: each client can claim any address",
            "3: `::/0` exempts every client: no limit ever applies",
            "4: `0.0.0.0/0` bans every client: all requests are rejected",
        ]
    );
}

#[test]
fn allow_that_excludes_everyone_or_nobody_warns() {
    let limits = "rate_limits: { default: { requests: 1, window: 1 } }";
    let files = BTreeMap::from([("empty.txt".to_owned(), b"# nobody\n".to_vec())]);
    let with = |rest: &str| -> Vec<String> {
        let compiled = compile("policy.yaml", format!("{rest}\n{limits}\n").as_bytes(), &files).unwrap();
        compiled.warnings.iter().map(|warning| format!("{}: {}", warning.line, warning.what)).collect()
    };
    let nobody = "1: `allow` excludes every client: all requests are rejected";
    assert_eq!(with("allow: { file: empty.txt }"), [nobody]);
    assert_eq!(with("allow: { networks: 10.0.0.0/9 }\nbans: { networks: 10.0.0.0/8 }"), [nobody]);
    let all = "1: `0.0.0.0/0` allows every address of its family";
    assert_eq!(with("allow: { networks: [0.0.0.0/0, '2001:db8::/32'] }"), [all]);
    let exempt =
        "allow: { networks: 10.0.0.0/8 }\nclients: { exempt: { networks: [10.1.0.0/16, 192.0.2.0/24] } }";
    let outside = "2: `192.0.2.0/24` is exempt, but outside of `allow`: its requests are rejected";
    assert_eq!(with(exempt), [outside]);
    assert_eq!(with("allow: { networks: [10.0.0.0/8] }"), Vec::<String>::new());
}

#[test]
fn rule_without_matching_route_warns() {
    let text = "upstreams: { api: { servers: http://a } }\nroutes: [{ path: /api/**, upstream: api }]\n\
                rate_limits:\n  default: { requests: 9, window: 1 }\n  endpoints:\n\
                \x20   /api/{x}: { requests: 1, window: 1m }\n    /app/x: { requests: 1, window: 1m }\n\
                \x20 rules:\n    - { name: r, match: { path: [/b, /c] }, per: ip, requests: 1, window: 1m }\n";
    assert_eq!(
        warnings(text),
        [
            "7: `endpoint:/app/x` never applies: no route matches its path",
            "9: `r` never applies: no route matches its path",
        ]
    );
}

#[test]
fn route_without_limit_warns() {
    let text = "upstreams: { a: { servers: http://a } }\nroutes:\n  - { path: /api/**, upstream: a }\n  - { path: /b, upstream: a }\n\
                rate_limits:\n  endpoints:\n    /api/x: { requests: 1, window: 1m }\n";
    assert_eq!(warnings(text), ["4: the route `/b` has no limit"]);
}

#[test]
fn policy_without_limits_warns() {
    assert_eq!(warnings("listen: 0.0.0.0:80\n"), ["1: the policy has no limits"]);
}

#[test]
fn fixed_window_as_only_algorithm_warns() {
    let fixed = "rate_limits:\n  default: { requests: 9, window: 1m, algorithm: fixed_window }\n";
    let what = "2: all limits use `fixed_window`: up to twice the limit is admitted around a window boundary";
    assert_eq!(warnings(fixed), [what]);
    let with_other = format!("{fixed}  global: {{ requests: 50, window: 1s }}\n");
    assert_eq!(warnings(&with_other), Vec::<String>::new());
}

#[test]
fn redundant_limit_warns() {
    let text =
        "rate_limits:\n  global: { requests: 10, window: 1m }\n  default: { requests: 100, window: 1m }\n";
    assert_eq!(
        warnings(&routed(text)),
        ["3: `default` never rejects a request: `global` is always stricter"]
    );
    let text = "rate_limits:\n  default: { requests: 10, window: 1m }\n  endpoints:\n    /a: { requests: 50, window: 1m }\n\
                \x20   /b: { requests: 5, window: 1m }\n";
    assert_eq!(
        warnings(&routed(text)),
        ["4: `endpoint:/a` never rejects a request: `default` is always stricter"]
    );
    let text = "rate_limits:\n  rules:\n    - { name: a, per: ip, requests: 5, window: 1m }\n\
                \x20   - { name: b, per: ip, requests: 9, window: 1m }\n\
                \x20   - { name: c, per: fingerprint, requests: 9, window: 1m }\n";
    assert_eq!(warnings(&routed(text)), ["4: `b` never rejects a request: `a` is always stricter"]);
}

#[test]
fn policy_without_routes_lets_callers_name_rules_and_identities() {
    let text = "rate_limits:
  default: { requests: 10, window: 1m }
  tenant: { requests: 10, window: 1m }
  tiers: { gold: { requests: 20, window: 1m } }
  rules:
    - { name: tpm, requests: 1000, window: 1m }
    - { name: each_user, per: user, requests: 5, window: 1m }
    - { name: each_tenant, per: [tenant, user], requests: 5, window: 1m }
    - { name: jobs, per: user, concurrent: 2 }
";
    assert_eq!(warnings(text), [""; 0]);
    let problems = compile("policy.yaml", routed(text).as_bytes(), &NoFiles).unwrap_err();
    let refused = problems.iter().filter(|problem| problem.what.contains("cannot be used")).count();
    assert_eq!(refused, 4, "requests of a gateway have neither: {problems}");
}

#[test]
fn single_route_of_one_path_warns_and_hints_at_the_paths_below_it() {
    let text = "upstreams: { api: { servers: ['http://localhost:3000'] } }
routes: [{ path: /api, upstream: api }]
rate_limits: { default: { requests: 9, window: 1m }, endpoints: { /api/x: { requests: 1, window: 1m } } }
";
    let found = compile_valid(text).warnings;
    let found: Vec<_> = found
        .iter()
        .map(|warning| (warning.what.as_str(), warning.hint.as_deref().unwrap_or_default()))
        .collect();
    let hint = "a route `/api` does not cover `/api/x`; write `/api/**` for all paths below it";
    assert_eq!(
        found,
        [
            ("`/api` is the only path that is forwarded; all others get 404", hint),
            ("`endpoint:/api/x` never applies: no route matches its path", hint)
        ]
    );
    assert_eq!(warnings(&text.replace("path: /api,", "path: /api/**,")), [""; 0]);
}

#[test]
fn variable_of_the_environment_warns() {
    let text = routed("rate_limits: { default: { requests: 9, window: 1m } }\nlog: { to: '${LOG}/a.log' }");
    assert_eq!(warnings(&text), ["2: `${LOG}` is not expanded: a policy has no variables"]);
}

#[test]
fn endpoint_limit_with_unlimited_tier_is_not_redundant() {
    let text = "clients: { tiers: { default: free } }\nrate_limits:\n  tiers: { free: { requests: 1, window: 1m }, staff: unlimited }\n\
                \x20 endpoints: { /a: { requests: 50, window: 1m } }\n";
    assert_eq!(warnings(&routed(text)), Vec::<String>::new());
}
