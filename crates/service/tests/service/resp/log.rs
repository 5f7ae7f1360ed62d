//! The log lines of commands.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_policy::SampleRate;
use tidegate_telemetry::{LogReceiver, LogSampling};

use super::{Reply, RespClient, encode};
use crate::fixture::TestService;

const POLICY: &str = "rate_limits: { default: { requests: 2, window: 1h, algorithm: fixed_window } }";
const ALL: LogSampling = LogSampling { access: SampleRate::ALL, rejected: SampleRate::ALL };

/// The lines that were written before the replies arrived, without their times.
fn lines(log: &LogReceiver) -> Vec<Value> {
    let lines = std::iter::from_fn(|| log.recv_timeout(Duration::ZERO));
    let parse = |line: String| {
        let mut line: Value = serde_json::from_str(&line).unwrap();
        let fields = line.as_object_mut().unwrap();
        assert!(fields.remove("time").is_some() && fields.remove("total_ms").unwrap().is_number());
        if fields.contains_key("decision") {
            assert!(fields.remove("decision_ms").unwrap().is_number());
        }
        line
    };
    lines.map(parse).collect()
}

/// The line of a command, with further fields.
fn line(command: &str, further: &Value) -> Value {
    let mut line = json!({"event": "request", "protocol": "resp", "command": command, "peer": "127.0.0.1"});
    line.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
    line
}

fn throttled(client: &str, decision: &str, remaining: u64) -> Value {
    let rule = "CL.THROTTLE";
    let further =
        json!({"client": client, "decision": decision, "rule": rule, "limit": 2, "remaining": remaining});
    let mut line = line("CL.THROTTLE", &further);
    if decision == "rejected" {
        line["retry_after"] = 3_600.into();
    }
    line
}

#[test]
fn throttle_pipeline_has_a_line_for_each_command() {
    let (service, log) = TestService::start_logged(POLICY, ALL);
    let mut client = RespClient::connect(&service);
    client.send(encode("CL.THROTTLE user:bob 1 1 3600").repeat(3));
    (0..3).for_each(|_| drop(client.reply()));
    let expected = [("admitted", 1), ("admitted", 0), ("rejected", 0)];
    assert_eq!(lines(&log), expected.map(|(decision, remaining)| throttled("user:bob", decision, remaining)));
}

#[test]
fn throttle_key_that_may_be_a_secret_is_hashed_in_the_log() {
    let (service, log) = TestService::start_logged(POLICY, ALL);
    let mut client = RespClient::connect(&service);
    for key in ["sk_live_51H_very_secret", "api_key:sk_live_51H_very_secret"] {
        client.call(&format!("CL.THROTTLE {key} 1 1 3600"));
    }
    let expected = ["key:sk_l…#b59c1698", "api_key:sk_l…#b59c1698"];
    assert_eq!(lines(&log), expected.map(|client| throttled(client, "admitted", 1)));
}

#[test]
fn throttle_inline_in_a_transaction_or_invalid_is_logged() {
    let (service, log) = TestService::start_logged(POLICY, ALL);
    let mut client = RespClient::connect(&service);
    client.send("CL.THROTTLE user:inline 1 1 3600\r\n");
    client.reply();
    for command in ["MULTI", "CL.THROTTLE user:multi 1 1 3600", "EXEC"] {
        client.call(command);
    }
    assert!(matches!(client.call("CL.THROTTLE user:bad 1 x 3600"), Reply::Error(_)));
    let expected = [
        throttled("user:inline", "admitted", 1),
        throttled("user:multi", "admitted", 1),
        line("CL.THROTTLE", &json!({"cause": "bad_request"})),
    ];
    assert_eq!(lines(&log), expected);
}

#[test]
fn command_log_without_accesses_has_rejections_only() {
    let sampling = LogSampling { access: SampleRate::NONE, rejected: SampleRate::ALL };
    let (service, log) = TestService::start_logged(POLICY, sampling);
    let mut client = RespClient::connect(&service);
    client.send(encode("CL.THROTTLE user:bob 1 1 3600").repeat(3));
    client.send(encode("TIDEGATE.CHECK default user:bob").repeat(3));
    client.send(encode("TIDEGATE.RESET default user:bob"));
    (0..7).for_each(|_| drop(client.reply()));
    let lines = lines(&log);
    let found: Vec<_> = lines.iter().map(|line| (&line["command"], &line["decision"])).collect();
    let rejected = "rejected".into();
    assert_eq!(found, [(&"CL.THROTTLE".into(), &rejected), (&"TIDEGATE.CHECK".into(), &rejected)]);
}

#[test]
fn command_log_that_is_off_has_no_lines() {
    let (service, log) = TestService::start_logged(POLICY, LogSampling::default());
    let mut client = RespClient::connect(&service);
    client.call("CL.THROTTLE user:bob 0 1 3600");
    client.call("TIDEGATE.CHECK default user:bob");
    client.call("CL.THROTTLE user:bob 0 x 3600");
    assert_eq!(lines(&log), [] as [Value; 0]);
}

#[test]
fn rule_commands_have_lines_with_rule_client_and_decision() {
    let (service, log) = TestService::start_logged(POLICY, ALL);
    let mut client = RespClient::connect(&service);
    for _ in 0..3 {
        client.call("TIDEGATE.CHECK default user:bob");
    }
    for command in ["PEEK default user:bob", "REFUND default user:bob 1", "RESET default user:bob"] {
        client.call(&format!("TIDEGATE.{command}"));
    }
    let lines = lines(&log);
    let named = json!({"client": "user:bob", "rule": "default"});
    for (line, (decision, remaining)) in lines.iter().zip([("admitted", 1), ("admitted", 0), ("rejected", 0)])
    {
        assert_eq!((&line["command"], &line["decision"]), (&"TIDEGATE.CHECK".into(), &decision.into()));
        assert_eq!((&line["client"], &line["rule"]), (&named["client"], &named["rule"]));
        assert_eq!((&line["limit"], &line["remaining"]), (&2.into(), &remaining.into()), "{line}");
        assert_eq!(line.get("retry_after").is_some(), decision == "rejected", "{line}");
    }
    let others = ["TIDEGATE.PEEK", "TIDEGATE.REFUND", "TIDEGATE.RESET"];
    assert_eq!(lines[3..], others.map(|command| line(command, &named)));
}

#[test]
fn rule_command_that_fails_has_a_line_with_the_cause() {
    let (service, log) = TestService::start_logged(POLICY, ALL);
    let mut client = RespClient::connect(&service);
    client.call("TIDEGATE.CHECK other user:bob");
    client.call("TIDEGATE.RESET default bob");
    client.call("TIDEGATE.REFUND default user:bob x");
    let expected = [
        line("TIDEGATE.CHECK", &json!({"cause": "no_rule"})),
        line("TIDEGATE.RESET", &json!({"cause": "bad_request"})),
        line("TIDEGATE.REFUND", &json!({"cause": "bad_request"})),
    ];
    assert_eq!(lines(&log), expected);
}
