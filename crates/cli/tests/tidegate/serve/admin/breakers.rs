//! Circuit breakers in status, metrics and commands.

use serde_json::json;
use tidegate_testkit::client::request;
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::PolicyFile;
use tidegate_testkit::server::echo;
use tidegate_testkit::wait::eventually_blocking;

use super::AdminGateway;

/// An upstream with a breaker of each server, and one without.
fn start(servers: &[String]) -> AdminGateway {
    AdminGateway::serve(PolicyFile::new(&format!(
        "upstreams:\n  api: {{ servers: [{}], breaker: {{ failures: 2, open_for: 1h }}, bulkhead: {{ concurrent: 5 }} }}\n  \
         plain: {{ servers: ['http://{}'] }}\n\
         routes: [{{ path: /plain, upstream: plain }}, {{ path: /**, upstream: api, bulkhead: {{ concurrent: 3 }} }}]\n\
         admin: {{ listen: '127.0.0.1:0' }}\nrate_limits: {{ default: {{ requests: 100, window: 1h }} }}\n",
        servers.iter().map(|server| format!("'http://{server}'")).collect::<Vec<_>>().join(", "),
        echo(),
    )))
}

fn get(gateway: &AdminGateway, path: &str) -> u16 {
    request(&gateway.server.address, "GET", path, "", "").status
}

#[test]
fn breaker_forced_open_rejects_and_reset_admits_again() {
    let gateway = start(&[echo().to_string()]);
    assert_eq!(get(&gateway, "/"), 200);
    let (done, printed, errors) = gateway.command(&["breaker", "open", "api"]);
    assert!(done && printed == "circuit breaker forced open: api\n", "{printed}{errors}");
    gateway.server.wait_for_log("breaker_forced_open");
    let rejected = request(&gateway.server.address, "GET", "/", "", "");
    assert_eq!((rejected.status, &rejected.json()["error"]), (503, &json!("breaker_open")), "{rejected:?}");
    assert!(rejected.head().to_ascii_lowercase().contains("retry-after: "), "{rejected:?}");
    assert_eq!(get(&gateway, "/plain"), 200, "other upstreams are not affected");
    let (_, printed, _) = gateway.command(&["status"]);
    assert!(printed.contains("breaker forced open"), "{printed}");
    let metrics = gateway.send("GET", "/metrics", "").text();
    assert!(metrics.lines().any(|line| line.contains("state=\"forced_open\"} 1")), "{metrics}");
    let (done, _, errors) = gateway.command(&["breaker", "reset", "api"]);
    assert!(done, "{errors}");
    assert_eq!(get(&gateway, "/"), 200);
}

#[test]
fn breaker_of_unreachable_server_opens_and_forced_closed_admits() {
    let dead = free_address();
    let gateway = start(&[dead.to_string()]);
    let statuses: Vec<_> = (0..4).map(|_| get(&gateway, "/")).collect();
    assert_eq!(statuses.last(), Some(&503), "{statuses:?}");
    let status = gateway.send("GET", "/v1/status", "").json();
    let server = &status["upstreams"][0]["servers"][0];
    assert_eq!(server["breaker"]["state"], "open", "{status}");
    assert!(server["breaker"]["open_for"].as_u64().unwrap() > 3_000, "{status}");
    assert_eq!(status["upstreams"][0]["bulkhead"]["limit"], 5);
    assert_eq!(status["routes"][0]["bulkhead"]["limit"], 3);
    let body = json!({ "upstream": "api", "server": dead.to_string(), "action": "close" }).to_string();
    assert_eq!(gateway.send("POST", "/v1/breakers", &body).status, 200);
    assert_eq!(get(&gateway, "/"), 502, "sent although it fails");
}

#[test]
fn breaker_command_to_unknown_target_is_rejected() {
    let gateway = start(&[echo().to_string()]);
    for (body, status, error) in [
        (json!({ "upstream": "nope", "action": "open" }), 404, "unknown_upstream"),
        (json!({ "upstream": "api", "server": "10.0.0.9:1", "action": "open" }), 404, "unknown_upstream"),
        (json!({ "upstream": "plain", "action": "open" }), 409, "no_breaker"),
        (json!({ "upstream": "api", "action": "explode" }), 400, "bad_request"),
        (json!({ "upstream": "api" }), 400, "bad_request"),
    ] {
        let rejected = gateway.send("POST", "/v1/breakers", &body.to_string());
        assert_eq!((rejected.status, &rejected.json()["error"]), (status, &json!(error)), "{rejected:?}");
    }
    let (done, _, errors) = gateway.command(&["breaker", "open", "plain"]);
    assert!(!done && errors.contains("no breaker") && errors.contains("`plain`"), "{errors}");
    assert_eq!(get(&gateway, "/"), 200);
}

#[test]
fn breaker_that_lets_a_probe_pass_is_half_open_in_the_log() {
    let dead = free_address();
    let gateway = AdminGateway::serve(PolicyFile::new(&format!(
        "upstreams: {{ api: {{ servers: ['http://{dead}'], breaker: {{ failures: 1, open_for: 100ms }} }} }}\n\
         routes: [{{ path: /**, upstream: api }}]\nadmin: {{ listen: '127.0.0.1:0' }}\n",
    )));
    assert_eq!(get(&gateway, "/"), 502);
    let line = gateway.server.wait_for_log("breaker_changed");
    assert!(line.contains("\"state\":\"open\""), "{line}");
    eventually_blocking("a probe", || get(&gateway, "/") == 502);
    for state in ["half_open", "open"] {
        let line = gateway.server.wait_for_log("breaker_changed");
        assert!(line.contains(&format!("\"state\":\"{state}\"")), "{line}");
        assert!(line.contains(&dead.to_string()), "{line}");
    }
}
