//! The access log of the decision service.

use serde_json::Value;
use tidegate_testkit::process::{PolicyFile, Tidegate};

use super::protocols::{Answer, ServiceClient, ServiceProtocol};
use crate::program::command;
use crate::serve::log::lines;

/// The lines about requests that a service has written when it has stopped.
fn requests_after(ask: impl FnOnce(&ServiceClient)) -> Vec<Value> {
    let client = ServiceClient::new();
    let policy = PolicyFile::new(&format!(
        "admin: off\n{}log: {{ access: all, rejected: all, to: access.log }}\n\
         rate_limits: {{ default: {{ requests: 2, window: 1h }} }}\n",
        client.policy_key()
    ));
    let mut server = Tidegate::start(command().args(["serve", "--config", &policy.path()]));
    ask(&client);
    server.signal("-TERM");
    assert!(server.wait().success());
    let mut lines = lines(&policy.beside("access.log"), 3);
    lines.retain(|line| line["event"] == "request");
    lines
}

/// The values of a line that depend on the decision.
fn assert_decision(line: &Value, (decision, remaining): (&str, u64)) {
    assert_eq!((&line["rule"], &line["limit"]), (&"default".into(), &2.into()), "{line}");
    assert_eq!((&line["decision"], &line["remaining"]), (&decision.into(), &remaining.into()), "{line}");
    assert_eq!(line["peer"], "127.0.0.1", "{line}");
    assert!(line["decision_ms"].is_number() && line["total_ms"].is_number(), "{line}");
}

#[test]
fn access_log_has_a_line_for_each_decision_over_each_protocol() {
    let lines = requests_after(|client| {
        for protocol in ServiceProtocol::ALL {
            let answers = [(); 3].map(|()| client.check(protocol, "default", &format!("user:{protocol:?}")));
            assert_eq!(answers, [Answer::Admitted, Answer::Admitted, Answer::Rejected]);
        }
    });
    assert_eq!(lines.len(), 9, "{lines:?}");
    let expected = [("http", "user:Http"), ("grpc", "user:Grpc"), ("resp", "user:Resp")];
    for (lines, (protocol, client)) in lines.chunks(3).zip(expected) {
        for (line, decision) in lines.iter().zip([("admitted", 1), ("admitted", 0), ("rejected", 0)]) {
            assert_eq!((&line["protocol"], &line["client"]), (&protocol.into(), &client.into()), "{line}");
            assert_decision(line, decision);
        }
    }
    for (lines, path) in lines.chunks(3).zip(["/v1/check", "/tidegate/rule.client"]) {
        for line in lines {
            assert_eq!((&line["method"], &line["version"]), (&"POST".into(), &"2".into()), "{line}");
            assert_eq!(line["path"], path, "{line}");
        }
    }
    // A check over HTTP is answered with 200, whatever the decision; a call over gRPC is logged as the status of a proxy. A
    // command has no status.
    let statuses: Vec<_> = lines.iter().filter_map(|line| line["status"].as_u64()).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    for line in &lines[6..] {
        assert_eq!((&line["command"], line.get("method")), (&"TIDEGATE.CHECK".into(), None), "{line}");
        assert_eq!((line.get("status"), line.get("cause")), (None, None), "{line}");
    }
}

#[test]
fn access_log_has_a_line_for_each_throttle_without_a_secret_key() {
    let lines = requests_after(|client| {
        let answers = [(); 2].map(|()| client.throttle("sk_live_51H_very_secret", 1));
        assert_eq!(answers, [Answer::Admitted, Answer::Rejected]);
    });
    let decisions: Vec<_> = lines.iter().map(|line| line["decision"].as_str().unwrap()).collect();
    assert_eq!(decisions, ["admitted", "rejected"]);
    for line in &lines {
        assert_eq!((&line["protocol"], &line["command"]), (&"resp".into(), &"CL.THROTTLE".into()), "{line}");
        assert_eq!((&line["rule"], &line["client"]), (&"CL.THROTTLE".into(), &"key:sk_l…#b59c1698".into()));
        assert_eq!((&line["limit"], &line["remaining"]), (&1.into(), &0.into()), "{line}");
        assert!(!line.to_string().contains("very_secret"), "{line}");
    }
}
