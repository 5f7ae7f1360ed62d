//! Tests of compilation and lookup.

use super::*;

fn compile(text: &str) -> Result<EnvoyLimits, Problems> {
    EnvoyLimits::compile(&[EnvoyFile { name: "config.yaml".to_owned(), bytes: text.as_bytes().to_vec() }])
}

fn compiled(text: &str) -> EnvoyLimits {
    compile(text).unwrap_or_else(|problems| panic!("{problems}"))
}

/// The label and the client of a descriptor.
fn find(limits: &EnvoyLimits, domain: &str, entries: &[(&str, &str)]) -> Option<(String, Vec<u8>)> {
    let mut client = Vec::new();
    let limit = limits.domain(domain)?.find(entries.iter().copied(), &mut client)?;
    Some((limit.label.clone(), client))
}

fn problem(text: &str) -> String {
    compile(text).expect_err("an invalid configuration").to_string()
}

const NESTED: &str = "
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: { unit: day, requests_per_unit: 5 }
  - key: to_number
    rate_limit: { unit: DAY, requests_per_unit: 100 }
";

#[test]
fn lookup_depth_must_equal_the_number_of_entries() {
    let limits = compiled(NESTED);
    let label = |entries: &[_]| find(&limits, "messaging", entries).map(|(label, _)| label);
    let nested = [("message_type", "marketing"), ("to_number", "1")];
    assert_eq!(label(&nested).as_deref(), Some("envoy:messaging/message_type=marketing/to_number"));
    assert_eq!(label(&[("to_number", "1")]).as_deref(), Some("envoy:messaging/to_number"));
    assert_eq!(label(&[("message_type", "marketing")]), None);
    assert_eq!(label(&[("to_number", "1"), ("to_number", "2")]), None);
    assert_eq!(label(&[]), None);
    assert_eq!(find(&limits, "other", &[("to_number", "1")]), None);
    assert_eq!(limits.iter().count(), 2);
}

#[test]
fn lookup_prefers_exact_values_then_wildcards_in_file_order_then_the_bare_key() {
    let limits = compiled(
        "
domain: d
descriptors:
  - { key: k, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: k, value: 'a*', rate_limit: { unit: second, requests_per_unit: 2 } }
  - { key: k, value: 'ab*', rate_limit: { unit: second, requests_per_unit: 3 } }
  - { key: k, value: abc, rate_limit: { unit: second, requests_per_unit: 4 } }
",
    );
    let requests = |value| {
        let limit = limits.domain("d").unwrap().find([("k", value)], &mut Vec::new()).unwrap();
        limit.rate.unwrap().requests_per_unit
    };
    assert_eq!([requests("abc"), requests("abd"), requests("ab*"), requests("x")], [4, 2, 3, 1]);
}

/// The files of the reference server are YAML 1.1.
#[test]
fn numbers_and_flags_have_the_forms_of_yaml_1_1() {
    let rate = |requests: &str| {
        let text = format!(
            "domain: d\ndescriptors: [{{ key: k, rate_limit: {{ unit: hour, requests_per_unit: {requests} }} }}]"
        );
        compile(&text).map(|limits| {
            let limit = limits.domain("d").unwrap().find([("k", "v")], &mut Vec::new()).unwrap();
            limit.rate.unwrap().requests_per_unit
        })
    };
    for (written, expected) in [
        ("0", 0),
        ("10", 10),
        ("010", 8),
        ("0o10", 8),
        ("0x1F", 31),
        ("0b101", 5),
        ("1_000", 1_000),
        ("08", 8),
    ] {
        assert_eq!(rate(written).unwrap(), expected, "{written}");
    }
    for written in ["0x", "0x+1", "0b2", "-010", "0xFFFFFFFFF", "ten"] {
        assert!(rate(written).is_err(), "{written}");
    }
    let is_shadow = |flag: &str| {
        let text = format!(
            "domain: d\ndescriptors: [{{ key: yes, shadow_mode: {flag}, rate_limit: {{ unit: hour, requests_per_unit: 1 }} }}]"
        );
        compile(&text).map(|limits| {
            // A text stays as it was written.
            limits.domain("d").unwrap().find([("yes", "v")], &mut Vec::new()).unwrap().is_shadow
        })
    };
    for (written, expected) in [
        ("yes", true),
        ("On", true),
        ("TRUE", true),
        ("y", true),
        ("no", false),
        ("off", false),
        ("False", false),
    ] {
        assert_eq!(is_shadow(written).unwrap(), expected, "{written}");
    }
    assert!(is_shadow("yEs").is_err());
}

#[test]
fn merge_keys_are_replaced_by_the_entries_of_their_mappings() {
    let limits = compiled(
        "
domain: d
descriptors:
  - { key: a, rate_limit: &a { unit: hour, requests_per_unit: 1, name: first } }
  - { key: b, rate_limit: &b { <<: *a, requests_per_unit: 2 } }
  - { key: c, rate_limit: { <<: [{ unit: day }, *b], name: third } }
",
    );
    let rate = |key| {
        let limit = limits.domain("d").unwrap().find([(key, "v")], &mut Vec::new()).unwrap();
        let rate = limit.rate.unwrap();
        (rate.requests_per_unit, rate.unit, limit.name.clone().unwrap())
    };
    assert_eq!(rate("b"), (2, RateUnit::Hour, "first".to_owned()));
    assert_eq!(rate("c"), (2, RateUnit::Day, "third".to_owned()));
    let with = |limit: &str| {
        problem(&format!(
            "domain: d\ndescriptors:\n  - {{ key: a, rate_limit: &a {{ unit: hour, requests_per_unit: 1 }} }}\n  \
             - {{ key: b, rate_limit: {limit} }}"
        ))
    };
    let late = with("{ unit: day, <<: *a }");
    assert!(late.contains("`<<` follows `unit`") && late.contains("before all other keys"), "{late}");
    assert!(with("{ <<: 1 }").contains("`<<` cannot merge"), "{}", with("{ <<: 1 }"));
    assert!(with("{ <<: [1] }").contains("`<<` cannot merge"));
}

#[test]
fn client_of_a_descriptor_differs_unless_all_values_are_equal() {
    let limits = compiled(
        "
domain: d
descriptors:
  - key: a
    descriptors:
      - { key: b, rate_limit: { unit: second, requests_per_unit: 1 } }
",
    );
    let client = |a, b| find(&limits, "d", &[("a", a), ("b", b)]).unwrap().1;
    assert_ne!(client("x", "yz"), client("xy", "z"));
    assert_ne!(client("", "x"), client("x", ""));
    assert_eq!(client("x", "y"), client("x", "y"));
}

#[test]
fn share_threshold_counts_all_values_of_a_wildcard_together() {
    let limits = compiled(
        "
domain: d
descriptors:
  - { key: f, value: 'files/*', share_threshold: true, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - { key: g, value: 'files/*', rate_limit: { unit: hour, requests_per_unit: 10 } }
",
    );
    let client = |key, value| find(&limits, "d", &[(key, value)]).unwrap().1;
    assert_eq!(client("f", "files/a"), client("f", "files/b"));
    assert_ne!(client("g", "files/a"), client("g", "files/b"));
}

#[test]
fn labels_of_different_paths_differ() {
    let limits = compiled(
        "
domain: d
descriptors:
  - { key: 'a=b', rate_limit: { unlimited: true } }
  - { key: a, value: b, rate_limit: { unlimited: true } }
  - { key: 'a/c', rate_limit: { unlimited: true } }
  - { key: a, descriptors: [{ key: c, rate_limit: { unlimited: true } }] }
",
    );
    let mut labels: Vec<_> = limits.iter().map(|limit| limit.label.as_str()).collect();
    labels.sort_unstable();
    assert_eq!(labels, ["envoy:d/a%2Fc", "envoy:d/a%3Db", "envoy:d/a/c", "envoy:d/a=b"]);
}

#[test]
fn rate_limit_extensions_set_algorithm_and_window() {
    let limits = compiled(
        "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: minute, unit_multiplier: 15, requests_per_unit: 10, algorithm: token_bucket }
  - { key: blocked, rate_limit: { unit: second, requests_per_unit: 0 } }
",
    );
    let rate = |key| limits.domain("d").unwrap().find([(key, "")], &mut Vec::new()).unwrap().rate.unwrap();
    assert_eq!(rate("k").window, TimeSpan::from_secs(900));
    let (limit, _) = rate("k").limit.unwrap();
    assert_eq!(limit.algorithm(), Algorithm::TokenBucket);
    assert!(rate("blocked").limit.is_none());
    assert_eq!(rate("k").to_string(), "10 per 15 minutes, token_bucket");
    assert_eq!(rate("blocked").to_string(), "0 per second");
}

#[test]
fn domains_and_paths_of_limits_are_named_as_in_the_files() {
    let limits = compiled(
        "
domain: a/b
descriptors:
  - { key: a, value: 'b/c', descriptors: [{ key: d, rate_limit: { unit: day, requests_per_unit: 1 } }] }
",
    );
    assert_eq!(limits.iter_domains().map(|(name, _)| name).collect::<Vec<_>>(), ["a/b"]);
    assert_eq!(limits.iter().map(DescriptorLimit::path).collect::<Vec<_>>(), ["a=b%2Fc/d"]);
}

#[test]
fn leaky_bucket_admits_a_hit_exactly_if_its_units_are_left() {
    use tidegate_core::{Cost, CounterState, Timestamp};
    let rate = decode::rate(Algorithm::LeakyBucket, 5, RateUnit::Minute, 1).unwrap();
    let (limit, _) = rate.limit.unwrap();
    let now = Timestamp::from_secs(1_700_000_000);
    for charged in 0..=5 {
        let mut state = CounterState::default();
        limit.charge(&mut state, now, Cost::new(charged));
        for hits in 0..=6 {
            let outcome = limit.evaluate(&state, now, Cost::new(hits));
            assert_eq!(outcome.verdict.is_pass(), charged + hits <= 5, "{hits} after {charged}");
            let left = if charged + hits <= 5 { 5 - charged - hits } else { 5 - charged };
            assert_eq!(outcome.remaining, left, "{hits} after {charged}");
        }
    }
}

#[test]
fn every_unit_holds_the_largest_number_of_requests() {
    for unit in RateUnit::ALL {
        assert!(EnvoyRate::fixed_window(u32::MAX, unit).is_ok(), "{unit:?}");
    }
}

#[test]
fn unknown_key_is_reported_with_line_path_and_suggestion() {
    let text = problem(
        "domain: d\ndescriptors:\n  - key: k\n    rate_limits: { unit: second, requests_per_unit: 1 }\n",
    );
    assert!(text.contains("unknown key `rate_limits`"), "{text}");
    assert!(text.contains("config.yaml:4:5"), "{text}");
    assert!(text.contains("descriptors[0].rate_limits"), "{text}");
    assert!(text.contains("did you mean `rate_limit`?"), "{text}");
}

#[test]
fn invalid_configuration_reports_every_problem() {
    for (text, expected) in [
        ("", "the file is empty"),
        ("descriptors: []", "missing `domain`"),
        ("domain: d\ndescriptors: [{ value: v }]", "missing `key`"),
        ("domain: d\ndescriptors: [{ key: k }, { key: k }]", "duplicate descriptor `k`"),
        ("domain: d\ndescriptors: [{ key: k, value: v }, { key: k, value: v }]", "with the value `v`"),
        (
            "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: minutes, requests_per_unit: 1 } }]",
            "did you mean `minute`?",
        ),
        ("domain: d\ndescriptors: [{ key: k, rate_limit: { requests_per_unit: 1 } }]", "missing `unit`"),
        ("domain: d\ndescriptors: [{ key: k, rate_limit: { unit: day } }]", "missing `requests_per_unit`"),
        ("domain: d\ndescriptors: [{ key: k, rate_limit: { unit: day, unlimited: true } }]", "has no unit"),
        (
            "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: -1 } }]",
            "negative",
        ),
        ("domain: d\ndescriptors: [{ key: k, value: v, share_threshold: true }]", "needs a value with `*`"),
        ("domain: d\ndescriptors: [{ key: k, shadow_mode: maybe }]", "unknown value of `shadow_mode`"),
        ("domain: d\ndescriptors: [{ key: k, quota_mode: 1 }]", "unknown value of `quota_mode`"),
        ("domain: d\ndescriptors: [{ key: k, metadata: [a] }]", "`metadata` is not a mapping"),
        (
            "domain: d\ndescriptors: [{ key: k, rate_limit: { name: n, unlimited: true, replaces: [{ name: n }] } }]",
            "cannot replace itself",
        ),
        ("domain: d\ndomain: e", "duplicate key `domain`"),
    ] {
        let found = problem(text);
        assert!(found.contains(expected), "{text}\n{found}");
    }
}

#[test]
fn two_files_with_one_domain_are_rejected() {
    let file = |name: &str, text: &str| EnvoyFile { name: name.to_owned(), bytes: text.as_bytes().to_vec() };
    let problems = EnvoyLimits::compile(&[file("a.yaml", "domain: d"), file("b.yaml", "domain: d")]);
    let text = problems.expect_err("a duplicate").to_string();
    assert!(text.contains("duplicate domain `d`") && text.contains("it is also in a.yaml"), "{text}");
    let limits = EnvoyLimits::compile(&[file("a.yaml", "domain: d"), file("b.yaml", "domain: e")]);
    assert_eq!(limits.map(|limits| limits.domains()).ok(), Some(2));
}
