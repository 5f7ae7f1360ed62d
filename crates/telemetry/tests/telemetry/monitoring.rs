//! The alert rules and the dashboard that ship with the product, checked with promtool.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use tidegate_core::Timestamp;
use tidegate_policy::{NoFiles, compile};
use tidegate_store::ManualClock;
use tidegate_telemetry::{AttemptResult, MetricsReader, Telemetry};

/// Metrics that the rules and the dashboard use although nothing exports them yet. The operations manual has the same list.
const RESERVED: [&str; 3] =
    ["redis_connection_errors", "tidegate_breaker_state", "rate_limit_quota_used_ratio"];
/// Metrics that other crates export.
const ELSEWHERE: [&str; 8] = [
    "tidegate_certificate_expiry_timestamp_seconds",
    "tidegate_connections_open",
    "tidegate_upstream_healthy",
    "tidegate_upstream_in_flight",
    "tidegate_store_overflowed_total",
    "tidegate_store_table_bytes",
    "tidegate_store_pool_bytes",
    "up",
];

fn contrib() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib")
}

fn promtool(args: &[&str]) {
    let output = Command::new("promtool").args(args).current_dir(contrib().join("prometheus")).output();
    let output = output.expect("promtool is installed; run `cargo xtask setup`");
    let output_text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {args:?}\n{output_text}");
}

#[test]
fn alert_rules_are_valid_and_pass_their_tests() {
    promtool(&["check", "rules", "tidegate.rules.yml"]);
    promtool(&["test", "rules", "tidegate.rules.test.yml"]);
}

/// Every expression of the dashboard, with its variables filled in.
fn dashboard() -> Vec<String> {
    let text = std::fs::read_to_string(contrib().join("grafana/tidegate.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let fill = |text: &str| {
        text.replace("$__rate_interval", "5m").replace("$job", "tidegate").replace("$instance", ".*")
    };
    targets.map(|target| fill(target["expr"].as_str().unwrap())).collect()
}

#[test]
fn dashboard_expressions_are_valid_promql() {
    let expressions = dashboard();
    assert!(expressions.len() > 20);
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (number, expression) in expressions.iter().enumerate() {
        let expression = serde_json::to_string(expression).unwrap();
        writeln!(rules, "  - {{ record: \"panel:{number}\", expr: {expression} }}").unwrap();
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dashboard-{}.yml", std::process::id()));
    std::fs::write(&file, rules).unwrap();
    promtool(&["check", "rules", file.to_str().unwrap()]);
    std::fs::remove_file(file).unwrap();
}

/// Words of an expression that are names of metrics.
fn names(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let is_name = |word: &&str| {
        let prefixes = ["rate_limit_", "tidegate_", "redis_", "process_"];
        *word == "up" || prefixes.iter().any(|prefix| word.starts_with(prefix))
    };
    words.filter(is_name).map(|word| word.trim_end_matches("_bucket").to_owned()).collect()
}

#[test]
fn metrics_in_rules_and_dashboard_are_exported_or_reserved() {
    let clock = Arc::new(ManualClock::at(Timestamp::ZERO));
    let telemetry = Telemetry::counting(1, clock);
    let plan = compile("p", b"rate_limits: { default: { requests: 1, window: 1 } }", &NoFiles).unwrap().plan;
    telemetry.metrics().apply(&plan);
    telemetry.metrics().meter().tried(&telemetry.metrics().upstream("api"), AttemptResult::Broken, 0);
    let page = telemetry.page(MetricsReader::Person, Timestamp::ZERO).into_text();
    let exported: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let rules = std::fs::read_to_string(contrib().join("prometheus/tidegate.rules.yml")).unwrap();
    let rules = rules.lines().filter(|line| !line.trim_start().starts_with('#'));
    let used = rules.map(str::to_owned).chain(dashboard()).flat_map(|expression| names(&expression));
    for name in used {
        let is_known = exported.contains(name.as_str())
            || ELSEWHERE.contains(&name.as_str())
            || RESERVED.contains(&name.as_str());
        assert!(is_known, "nothing exports {name}");
    }
}

#[test]
fn exposition_with_hostile_labels_is_accepted_by_promtool() {
    let telemetry = Telemetry::counting(2, Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000))));
    let plan = compile("p", b"rate_limits: { default: { requests: 1, window: 1 } }", &NoFiles).unwrap().plan;
    let slots = telemetry.metrics().apply(&plan);
    let meter = telemetry.metrics().meter();
    let hostile = "\"}\\\n\u{1b}[31m{a=\"b\"} 7";
    let key = [b"u", &u32::try_from(hostile.len()).unwrap().to_le_bytes()[..], hostile.as_bytes()].concat();
    let rule = plan.rate_limits.default.unwrap().id;
    for _ in 0..10 {
        meter.refused(&slots, rule, &key, Timestamp::ZERO);
    }
    let page = telemetry.page(MetricsReader::Person, Timestamp::ZERO).into_text();
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut promtool.stdin.take().unwrap(), page.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    // Exit code 3 is lint about fixed names (milliseconds, no suffix); code 1 is a parse error.
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output_text}\n{page}");
    assert!(!output_text.contains("error while linting"), "{output_text}");
}
