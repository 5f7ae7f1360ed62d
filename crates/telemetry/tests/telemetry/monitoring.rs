//! Checks the alert rules and the dashboard in `contrib` with promtool. `cargo xtask tidy` checks that their metrics exist.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use tidegate_core::Timestamp;
use tidegate_policy::{NoFiles, compile};
use tidegate_store::ManualClock;
use tidegate_telemetry::{MetricsReader, Telemetry};

fn contrib() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib")
}

fn promtool(args: &[&str]) {
    let output = Command::new("promtool").args(args).current_dir(contrib().join("prometheus")).output();
    let output = output.expect("promtool is installed; run `cargo xtask setup`");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {args:?}\n{text}");
}

#[test]
fn alert_rules_are_valid_and_pass_their_tests() {
    promtool(&["check", "rules", "tidegate.rules.yml"]);
    promtool(&["test", "rules", "tidegate.rules.test.yml"]);
}

/// Every expression of the dashboard, with its variables replaced as Grafana does.
fn dashboard_expressions() -> Vec<String> {
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
    let expressions = dashboard_expressions();
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

#[test]
fn exposition_with_hostile_client_name_is_read_by_promtool() {
    let telemetry =
        Telemetry::metrics_only(2, Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000))));
    let plan = compile("p", b"rate_limits: { default: { requests: 1, window: 1 } }", &NoFiles).unwrap().plan;
    let slots = telemetry.metrics().apply(&plan);
    let handle = telemetry.metrics().handle(tidegate_telemetry::Protocol::Gateway);
    let hostile = "\"}\\\n\u{1b}[31m{a=\"b\"} 7";
    let key = [b"u", &u32::try_from(hostile.len()).unwrap().to_le_bytes()[..], hostile.as_bytes()].concat();
    let rule = plan.rate_limits.default.unwrap().id;
    for _ in 0..10 {
        handle.record_rejection(&slots, rule, &key, Timestamp::ZERO);
    }
    let text = telemetry.exposition(MetricsReader::OneShot, Timestamp::ZERO).into_text();
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut promtool.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    // Exit status 3: lint warnings about fixed names (milliseconds, no suffix). Exit status 1: the text is invalid.
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{stderr}\n{text}");
    assert!(!stderr.contains("error while linting"), "{stderr}");
}
