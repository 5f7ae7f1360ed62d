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

#[test]
fn access_log_has_a_line_for_each_request_over_http_and_grpc_and_none_over_resp() {
    let lines = requests_after(|client| {
        for protocol in ServiceProtocol::ALL {
            let answers = [(); 3].map(|()| client.check(protocol, "default", &format!("user:{protocol:?}")));
            assert_eq!(answers, [Answer::Admitted, Answer::Admitted, Answer::Rejected]);
        }
    });
    let expected = [("/v1/check", "user:Http"), ("/tidegate/rule.client", "user:Grpc")];
    assert_eq!(lines.len(), 6, "{lines:?}");
    for (lines, (path, client)) in lines.chunks(3).zip(expected) {
        for (line, (decision, remaining)) in
            lines.iter().zip([("admitted", 1), ("admitted", 0), ("rejected", 0)])
        {
            assert_eq!((&line["path"], &line["client"]), (&path.into(), &client.into()), "{line}");
            assert_eq!((&line["rule"], &line["limit"]), (&"default".into(), &2.into()), "{line}");
            assert_eq!(
                (&line["decision"], &line["remaining"]),
                (&decision.into(), &remaining.into()),
                "{line}"
            );
            assert_eq!((&line["method"], &line["version"]), (&"POST".into(), &"2".into()), "{line}");
            assert_eq!(line["peer"], "127.0.0.1", "{line}");
            assert!(line["decision_ms"].is_number() && line["total_ms"].is_number(), "{line}");
        }
    }
    // A check over HTTP is answered with 200, whatever the decision; a call over gRPC is logged as the status of a proxy.
    let statuses: Vec<_> = lines.iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
}
