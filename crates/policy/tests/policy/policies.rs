//! Valid policies, warnings, and arbitrary input.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tidegate_core::Algorithm;
use tidegate_policy::{ClientKind, CompiledPolicy, FileError, Files, NoFiles, Plan, Severity, compile};

/// The smallest form, as the documentation shows it.
pub(crate) const SMALLEST: &str = "\
rate_limits:
  default:   { requests: 100, window: 60, algorithm: sliding_window_counter }
  endpoints:
    /api/v1/search: { requests: 30, window: 60, algorithm: token_bucket, burst: 10 }
    /api/v1/upload: { requests: 10, window: 3600, algorithm: sliding_window_log }
  tiers:
    free:       { requests: 100, window: 3600 }
    premium:    { requests: 10000, window: 3600 }
    enterprise: { requests: 100000, window: 3600 }
";

struct Folder(PathBuf);

impl Files for Folder {
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        fs::read(self.0.join(name)).map(Cow::Owned).map_err(|_| FileError::Missing)
    }
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

pub(crate) fn compile_valid(text: &str) -> CompiledPolicy {
    compile("policy.yaml", text.as_bytes(), &NoFiles).unwrap_or_else(|problems| panic!("{problems}"))
}

fn plan(text: &str) -> Plan {
    compile_valid(text).plan
}

/// Returns line and text of each warning.
pub(crate) fn warnings(text: &str) -> Vec<String> {
    let warnings = compile_valid(text).warnings;
    assert!(warnings.iter().all(|warning| warning.severity == Severity::Warning && warning.line > 0));
    warnings.iter().map(|warning| format!("{}: {}", warning.line, warning.what)).collect()
}

/// The policy of a gateway with these limits.
pub(crate) fn routed(limits: &str) -> String {
    format!(
        "{limits}\nupstreams: {{ api: {{ servers: ['http://localhost:3000'] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n"
    )
}

#[test]
fn smallest_policy_compiles_with_defaults() {
    let plan = plan(SMALLEST);
    let limits = &plan.rate_limits;
    let names: Vec<_> = limits.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "default",
            "tier:free",
            "tier:premium",
            "tier:enterprise",
            "endpoint:/api/v1/search",
            "endpoint:/api/v1/upload"
        ]
    );
    assert_eq!(limits.endpoints[0].rule.describe(), "30 per 1m, token_bucket, burst 10");
    assert_eq!(limits.tiers[0].rule.as_ref().unwrap().algorithm(), Algorithm::SlidingCounter);
    assert_eq!(plan.clients.identify_by, [ClientKind::ApiKey, ClientKind::Ip]);
    assert_eq!(plan.store.max_memory, 64 << 20);
}

#[test]
fn leaky_bucket_burst_not_usable_within_max_wait_warns() {
    let leaky =
        |rest: &str| warnings(&format!("rate_limits:\n  default: {{ algorithm: leaky_bucket, {rest} }}\n"));
    let never = "2: no request ever waits: departures are 6m apart, but `max_wait` is 30s";
    assert_eq!(leaky("requests: 10, window: 1h"), [never]);
    let partly =
        "2: only 4 of the 20 requests of `burst` fit: the next would wait longer than `max_wait`, 30s";
    assert_eq!(leaky("requests: 6, window: 1m, burst: 20"), [partly]);
    let second = "2: no request ever waits: departures are 100ms apart, but `max_wait` is 50ms";
    assert_eq!(leaky("requests: 10, window: 1s, max_wait: 50ms"), [second]);
    for valid in [
        "requests: 10, window: 1h, max_wait: 1h",
        "requests: 10, window: 1h, burst: 1",
        "requests: 100, window: 1m",
        "requests: 6, window: 1m, burst: 4",
        "requests: 100, window: 10s, burst: 20",
    ] {
        assert!(leaky(valid).is_empty(), "{valid}: {:?}", leaky(valid));
    }
}

#[test]
fn example_policies_compile_without_warnings() {
    let mut count = 0;
    for entry in fs::read_dir(examples()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "yaml") {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let compiled = compile(&name, &fs::read(&path).unwrap(), &Folder(examples()));
            let compiled = compiled.unwrap_or_else(|problems| panic!("{problems}"));
            assert!(compiled.warnings.is_empty(), "{}", compiled.warnings);
            count += 1;
        }
    }
    assert_eq!(count, 11);
}

#[test]
fn yaml_anchors_and_aliases_are_expanded() {
    let plan = plan(
        "rate_limits:\n  default: &limit { requests: 100, window: 60 }\n  tenant: *limit\nclients: { tenant: { header: T } }",
    );
    assert_eq!(plan.rate_limits.tenant.unwrap().describe(), plan.rate_limits.default.unwrap().describe());
}

#[test]
fn networks_have_one_form_everywhere() {
    let text = "clients:
  ip: { ipv6_prefix: 56, trusted_proxies: ['::ffff:10.0.0.0/104', '2001:db8:1::7'] }
  exempt: { networks: ['::ffff:192.0.2.7', '2001:db8:2::7'] }
bans: { networks: ['::ffff:203.0.113.7', '203.0.113.7', '::ffff:198.51.7.0/120', '2001:db8:3::7', '2001:db8:4::7/128'] }
";
    let plan = plan(&format!("{text}{LIMIT}"));
    let texts = |networks: &[ipnet::IpNet]| networks.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(texts(&plan.clients.trusted_proxies), ["10.0.0.0/8", "2001:db8:1::7/128"]);
    assert_eq!(texts(&plan.clients.exempt.networks), ["192.0.2.7/32", "2001:db8:2::7/128"]);
    assert_eq!(
        texts(&plan.bans),
        ["198.51.7.0/24", "203.0.113.7/32", "2001:db8:3::/56", "2001:db8:4::7/128"],
        "a ban without a prefix length is one of the client, as by the command"
    );
}

#[test]
fn aliases_that_copy_much_text_are_rejected() {
    let text = format!("a: &a \"{}\\n\"\nlisten: [{}]\n", "x".repeat(100_000), "*a,".repeat(200));
    let problems = compile("aliases.yaml", text.as_bytes(), &NoFiles).unwrap_err();
    assert!(problems.to_string().contains("copy more than 16 MiB of text"), "{problems}");
}

#[test]
fn deep_and_wide_files_are_rejected() {
    let wide = format!("listen: [{}]", "a,".repeat(2_000_000));
    let problems = compile("wide.yaml", wide.as_bytes(), &NoFiles).unwrap_err();
    assert!(problems.to_string().contains("more than 1000000 values"), "{problems}");
    let deep = (0..100).fold(String::new(), |text, level| text + &" ".repeat(level) + "a:\n");
    let problems = compile("deep.yaml", deep.as_bytes(), &NoFiles).unwrap_err();
    assert!(problems.to_string().contains("at most 32 levels"), "{problems}");
    let open = "[".repeat(10_000_000);
    assert!(compile("open.yaml", open.as_bytes(), &NoFiles).is_err());
}

/// Returns `count` lines, each made from its number.
fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(line).collect::<Vec<_>>().join("\n")
}

/// With a quadratic comparison this test would take minutes.
#[test]
fn twenty_thousand_entries_compile_in_linear_time() {
    const MANY: usize = 20_000;
    let routes = lines(MANY, |n| format!("  - {{ path: /api/r{n}, upstream: a }}"));
    let endpoints = lines(MANY, |n| format!("    /api/e{n}: {{ requests: 1000000, window: 1 }}"));
    let tiers = lines(MANY, |n| format!("    t{n}: {{ requests: 1, window: {} }}", n + 1));
    let head = "upstreams: { a: { servers: http://a } }\nclients: { tiers: { default: t0 } }";
    let text =
        format!("{head}\nroutes:\n{routes}\nrate_limits:\n  endpoints:\n{endpoints}\n  tiers:\n{tiers}\n");
    assert_eq!(compile_valid(&text).warnings.count(), MANY);

    let upstreams = lines(MANY, |n| format!("  up{n}: {{ servers: http://a }}"));
    let missing = lines(MANY, |n| format!("  - {{ path: /r{n}, upstream: no{n} }}"));
    let listen = lines(MANY, |n| format!("  - h{n}:80"));
    let text = format!("listen:\n{listen}\nupstreams:\n{upstreams}\nroutes:\n{missing}\n");
    assert_eq!(compile("many.yaml", text.as_bytes(), &NoFiles).unwrap_err().count(), MANY);
}

/// Bytes that resemble policies.
fn policy_like_bytes() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(vec![
        "rate_limits:",
        "default:",
        "\n",
        "\n  ",
        "\n    ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        ": ",
        "- ",
        "requests: 5",
        "window: 1m",
        "&a ",
        "*a",
        "<<: ",
        "endpoints:",
        "/a/{b}/**",
        "rules:",
        "name: r",
        "per: ip",
        "clients:",
        "tiers:",
        "\"",
        "'",
        "|",
        ">",
        "!x ",
        "#",
        "\t",
        "\u{feff}",
        "é",
        "---",
        "...",
        "%YAML 1.2",
        "? ",
        "0",
        "-1",
        "99999999999999999999",
        "unlimited",
        "listen: ",
        "match: ",
        "when: ",
        "cost: ",
        "\0",
        "~",
    ]);
    let near = prop::collection::vec(words, 0..60).prop_map(|words| words.concat().into_bytes());
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..400),
        near,
        (any::<u8>(), any::<prop::sample::Index>()).prop_map(|(byte, at)| {
            let mut bytes = SMALLEST.as_bytes().to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes
        })
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn compile_of_any_bytes_returns_plan_or_problems(bytes in policy_like_bytes()) {
        match compile("any.yaml", &bytes, &NoFiles) {
            Ok(compiled) => prop_assert!(!compiled.warnings.has_errors()),
            Err(problems) => {
                prop_assert!(problems.has_errors());
                let shown = problems.to_string();
                prop_assert!(!shown.contains(char::from(27)), "{}", shown);
            }
        }
    }
}

#[test]
fn policy_with_only_shadow_limits_warns() {
    let shadow = "rate_limits:\n  default: { requests: 5, window: 1m, mode: shadow }";
    assert_eq!(warnings(shadow), ["2: every limit has `mode: shadow`: no request is ever rejected"]);
    let mixed = "\
upstreams: { api: { servers: ['http://a'] } }
routes: [{ path: /a, upstream: api }, { path: /b, upstream: api }]
rate_limits:
  endpoints:
    /a: { requests: 5, window: 1m, mode: shadow }
    /b: { requests: 5, window: 1m, mode: { canary: 1% } }";
    assert_eq!(warnings(mixed), ["2: the route `/a` has no limit"]);
}

#[test]
fn shadow_limit_never_makes_another_redundant() {
    let twins = |live: &str, tried: &str| {
        routed(&format!(
            "rate_limits:\n  rules:\n    - {{ name: live, requests: {live} }}\n    - {{ name: tried, requests: {tried} }}\n"
        ))
    };
    let tighter = "50, window: 1m, mode: shadow";
    assert_eq!(warnings(&twins("100, window: 1m", tighter)), [""; 0]);
    assert_eq!(warnings(&twins("100, window: 1m", "50, window: 1m, mode: { canary: 10% }")), [""; 0]);
    let looser = "200, window: 1m, mode: shadow";
    assert_eq!(
        warnings(&twins("100, window: 1m", looser)),
        ["4: `tried` never rejects a request: `live` is always stricter"]
    );
}

#[test]
fn http_key_absent_in_route_has_the_value_of_the_policy() {
    let policy = "
upstreams: { api: { servers: [http://a] } }
http: { encoded_slash: keep }
routes:
  - { path: /a/**, upstream: api, http: { path_case: sensitive } }
  - { path: /b/**, upstream: api, http: { encoded_slash: decode, underscore_headers: keep } }
  - { path: /c/**, upstream: api }
";
    let plan = compile("p.yaml", policy.as_bytes(), &NoFiles).unwrap().plan;
    let words: Vec<_> =
        plan.routes.iter().map(|route| route.http.settings().map(|(_, value)| value)).collect();
    assert_eq!(
        words,
        [["keep", "sensitive", "drop"], ["decode", "insensitive", "keep"], ["keep", "insensitive", "drop"]]
    );
    assert_eq!(plan.http.settings().map(|(_, value)| value), ["keep", "insensitive", "drop"]);
}

const LIMIT: &str = "rate_limits: { default: { requests: 1, window: 1m } }\n";

#[test]
fn api_key_in_explicit_identify_by_without_keys_file_warns() {
    let what = "`api_key` in `identify_by` is ignored: nothing verifies API keys";
    for identify_by in ["[api_key, ip]", "[ip, api_key]", "[user, api_key]"] {
        let text = format!(
            "clients:\n  user: {{ header: X-User }}\n  identify_by: {identify_by}\n  ip: {{ trusted_proxies: 10.0.0.1 }}\n{LIMIT}"
        );
        assert_eq!(warnings(&text), [format!("3: {what}")]);
    }
    assert_eq!(warnings(LIMIT), [""; 0], "the default identifies by API keys, too");
    assert_eq!(warnings(&format!("clients: {{ identify_by: ip }}\n{LIMIT}")), [""; 0]);
}

#[test]
fn identity_that_clients_choose_in_identify_by_warns_unless_each_address_is_limited() {
    for kind in ["cookie", "fingerprint"] {
        let clients = |by: &str| format!("clients:\n  cookie: {{ name: s }}\n  identify_by: {by}\n");
        let what = format!(
            "3: `{kind}` in `identify_by`: a client that sends a new {kind} with each request has no limit of its own"
        );
        for by in [format!("[{kind}, ip]"), kind.to_owned()] {
            assert_eq!(warnings(&format!("{}{LIMIT}", clients(&by))), [what.as_str()]);
        }
        let rule = |rest: &str| {
            let clients = clients(&format!("[{kind}, ip]"));
            format!(
                "{clients}rate_limits:\n  rules:\n    - {{ name: a, requests: 9, window: 1m, per: ip{rest} }}\n\
                 \x20   - {{ name: b, requests: 5, window: 1m }}\n"
            )
        };
        assert_eq!(warnings(&rule("")), [""; 0]);
        assert_eq!(warnings(&rule(", mode: shadow")), [what.as_str()]);
        assert_eq!(warnings(&rule(", match: { path: /a }")), [what.as_str()]);
        assert_eq!(warnings(&format!("{}{LIMIT}", clients(&format!("[ip, {kind}]")))), [""; 0]);
    }
}

#[test]
fn rule_that_counts_what_clients_choose_needs_a_limit_per_address() {
    let compiles = |rules: &str| {
        let text = format!("clients: {{ cookie: {{ name: s }} }}\nrate_limits:\n  rules:\n{rules}");
        compile("policy.yaml", text.as_bytes(), &NoFiles).is_ok()
    };
    for per in
        ["per: cookie", "per: fingerprint", "per: [ip, fingerprint]", "per_each: [cookie, fingerprint]"]
    {
        let rule = format!(
            "    - {{ name: r, {per}, match: {{ method: POST, path: /a }}, requests: 5, window: 1h }}\n"
        );
        assert!(!compiles(&rule), "{per}");
        for (cover, is_enough) in [
            ("per: ip", true),
            ("per_each: [ip, cookie]", true),
            ("per: ip, match: { path: /a }", true),
            ("per: ip, match: { method: POST, path: /a }", true),
            ("per: ip, match: { path: /b }", false),
            ("per: ip, match: { path: /a, header: { x: y } }", false),
            ("per: ip, mode: shadow", false),
            ("per: ip, charge: { after: { status: [401] } }", false),
            ("per: everybody", false),
            ("per: [ip, cookie]", false),
        ] {
            let rules = format!("{rule}    - {{ name: c, {cover}, requests: 50, window: 1h }}\n");
            assert_eq!(compiles(&rules), is_enough, "{per}, {cover}");
        }
    }
    assert!(compiles("    - { name: r, per_each: [ip, fingerprint], requests: 5, window: 1h }\n"));
    let concurrent = "    - { name: r, per: cookie, concurrent: 5 }\n";
    assert!(!compiles(&format!("{concurrent}    - {{ name: a, per: ip, requests: 5, window: 1h }}\n")));
    assert!(compiles(&format!("{concurrent}    - {{ name: a, per: ip, concurrent: 50 }}\n")));
    let by_address = "clients: { identify_by: ip }\nrate_limits: { default: { requests: 9, window: 1m }, rules: [{ name: r, per: fingerprint, requests: 5, window: 1h }] }";
    assert!(compile("policy.yaml", by_address.as_bytes(), &NoFiles).is_ok());
}

#[test]
fn api_keys_without_verification_warn() {
    let text = format!("clients:\n  identify_by: [api_key, ip]\n  api_key: {{ verify: none }}\n{LIMIT}");
    let what = "3: API keys are not verified: a client that sends a new key with each request has no limit";
    assert_eq!(warnings(&text), [what]);
    assert_eq!(warnings(&format!("clients: {{ api_key: {{ verify: keys_file }} }}\n{LIMIT}")), [""; 0]);
}

#[test]
fn header_of_user_or_tenant_without_trusted_proxies_warns() {
    let text = |ip: &str| {
        format!("clients:\n  user: {{ header: X-User }}\n  tenant: {{ header: X-Tenant }}\n{ip}{LIMIT}")
    };
    let never = |name| {
        format!(
            "the header `{name}` is always ignored: only a trusted proxy may send it, and `trusted_proxies` is empty"
        )
    };
    assert_eq!(warnings(&text("")), [format!("2: {}", never("x-user")), format!("3: {}", never("x-tenant"))]);
    assert_eq!(warnings(&text("  ip: { trusted_proxies: 10.0.0.1 }\n")), [""; 0]);
}

#[test]
fn rule_that_requires_a_client_header_warns() {
    let text = "clients: { user: { header: X-User }, ip: { trusted_proxies: 10.0.0.1 } }\n\
                rate_limits:\n  rules:\n\
                \x20   - { name: a, match: { path: /a, header: { X-Client: [web, app] } }, per: ip, requests: 2, window: 1d }\n\
                \x20   - { name: b, match: { header: { X-User: '*', X-Client: web } }, per: ip, concurrent: 2 }\n\
                \x20   - { name: c, match: { header: { X-User: ann } }, per: ip, requests: 3, window: 1d }\n\
                \x20   - { name: d, match: { when: \"!('x-client' in request.headers)\" }, per: ip, requests: 3, window: 1d }\n";
    assert_eq!(
        warnings(text),
        [
            "4: a client can bypass `a` by omitting the header `x-client`",
            "5: a client can bypass `b` by omitting the header `x-client`",
        ]
    );
    let hint = compile_valid(text).warnings.iter().next().and_then(|warning| warning.hint.clone());
    assert!(
        hint.unwrap().contains("when: \"!('x-client' in request.headers)\""),
        "the hint shows the replacement"
    );
}
