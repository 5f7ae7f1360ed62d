//! Actions in place of a rejection: what each protocol performs.

use std::sync::LazyLock;

use serde_json::{Value, json};
use tidegate_core::TimeSpan;
use tidegate_telemetry::Protocol;
use tidegate_testkit::client::request;
use tidegate_testkit::message::Response;
use tidegate_testkit::wait::eventually_blocking;

use crate::fixture::TestService;
use crate::resp::{Reply, RespClient};

/// One rule for each action. Each admits one request per hour.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let rule = |(name, action): (&str, &str)| {
        format!(
            "    - {{ name: {name}, match: {{ path: /{name} }}, per: [ip], requests: 1, window: 1h, algorithm: token_bucket, \
             on_exceed: {action} }}\n"
        )
    };
    let queued = "    - { name: queued, match: { path: /queued }, per: [ip], requests: 50, window: 1s, algorithm: token_bucket, \
                  burst: 1, on_exceed: { wait: 1m } }\n";
    let rules: String = [
        ("marked", "degrade"),
        ("cheaper", "{ degrade: { upstream: cheap } }"),
        ("soft", "{ slow: { from: 0%, max: 1ms } }"),
        ("stored", "{ cached: { for: 60s } }"),
        ("held", "{ wait: 10s }"),
        ("lent", "{ borrow: { units: 1 } }"),
    ]
    .map(rule)
    .concat();
    let rules = rules + queued;
    format!(
        "service: {{ http: 127.0.0.1:0 }}\nupstreams: {{ cheap: {{ servers: ['http://127.0.0.1:1'] }} }}\nrate_limits:\n  rules:\n{rules}"
    )
});

fn send(service: &TestService, path: &str, body: &Value) -> Value {
    let address = service.address(Protocol::Http).to_string();
    request(&address, "POST", path, "Content-Type: application/json\r\n", &body.to_string()).json()
}

impl TestService {
    fn check_path(&self, path: &str) -> Value {
        let request = json!({ "request": { "method": "GET", "path": path, "peer": "192.0.2.1" } });
        send(self, "/v1/check", &request)
    }

    fn authorize_path(&self, path: &str) -> Response {
        let headers = format!(
            "X-Original-Method: GET\r\nX-Original-URI: {path}\r\nX-Original-Host: a.example\r\nX-Real-IP: 192.0.2.1\r\n"
        );
        request(&self.address(Protocol::Http).to_string(), "GET", "/v1/authorize", &headers, "")
    }

    fn rls_rule(&self, rule: &str) -> Value {
        let entries = json!([{ "key": "rule", "value": rule }, { "key": "client", "value": "ip:192.0.2.1" }]);
        send(self, "/json", &json!({ "domain": "tidegate", "descriptors": [{ "entries": entries }] }))
    }
}

#[test]
fn check_names_the_action_with_its_parameters() {
    let service = TestService::start(&POLICY);
    let admitted = service.check_path("/marked");
    assert_eq!((&admitted["admitted"], admitted.get("action")), (&json!(true), None));
    let marked = service.check_path("/marked");
    assert_eq!((&marked["admitted"], &marked["action"]), (&json!(true), &json!({ "name": "degrade" })));
    service.check_path("/cheaper");
    let cheaper = service.check_path("/cheaper");
    let expected = json!({ "name": "degrade", "upstream": "cheap" });
    assert_eq!((&cheaper["admitted"], &cheaper["action"]), (&json!(true), &expected));
    let soft = service.check_path("/soft");
    assert_eq!((&soft["admitted"], &soft["wait"]), (&json!(true), &json!(0.001)));
    let refused = service.check_path("/soft");
    assert_eq!(refused["admitted"], json!(false));
    assert_eq!(refused["action"], json!({ "name": "slow", "max_delay": 0.001 }));
    service.check_path("/stored");
    let stored = service.check_path("/stored");
    assert_eq!((&stored["admitted"], &stored["reason"]), (&json!(false), &json!("rate_limit_exceeded")));
    assert_eq!(stored["action"], json!({ "name": "cached", "max_age": 60 }));
    service.check_path("/held");
    let held = service.check_path("/held");
    assert_eq!(
        (&held["admitted"], &held["action"]),
        (&json!(false), &json!({ "name": "wait", "max_wait": 10 }))
    );
    assert_eq!(held["wait"], held["retry_after"], "when its turn would come");
    assert!(held["wait"].as_f64().is_some_and(|wait| wait > 3_000.0));
    let lent = [(); 3].map(|()| service.check_path("/lent")["admitted"].clone());
    assert_eq!(lent, [json!(true), json!(true), json!(false)]);
}

#[test]
fn authorize_waits_for_the_turn_and_refuses_at_once_what_cannot_come_in_time() {
    let service = TestService::start(&POLICY);
    assert_eq!(service.authorize_path("/queued").status, 200);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| service.authorize_path("/queued").status);
        eventually_blocking("the request waits", || service.limiter.waits().len() == 1);
        service.clock.advance(TimeSpan::from_millis(20));
        assert_eq!(waiting.join().expect("a response"), 200);
    });
    let statuses = [(); 2].map(|()| service.authorize_path("/held").status);
    assert_eq!(statuses, [200, 429], "its turn is an hour away");
    let statuses = [(); 3].map(|()| service.authorize_path("/lent").status);
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn authorize_delays_and_marks_and_rejects_what_needs_another_upstream() {
    let service = TestService::start(&POLICY);
    for path in ["/marked", "/cheaper", "/soft", "/stored"] {
        let passed = service.authorize_path(path);
        assert_eq!((passed.status, passed.header("x-tidegate-degrade")), (200, None), "{path}");
    }
    let marked = service.authorize_path("/marked");
    assert_eq!((marked.status, marked.header("x-tidegate-degrade")), (200, Some("1")));
    for path in ["/cheaper", "/soft", "/stored"] {
        assert_eq!(service.authorize_path(path).status, 429, "{path}");
    }
}

#[test]
fn rls_marks_by_request_headers_and_names_what_it_does_not_perform() {
    let service = TestService::start(&POLICY);
    let header = json!([{ "key": "x-tidegate-degrade", "value": "1" }]);
    for (rule, code, headers, action) in [
        ("marked", "OK", &header, "degrade"),
        ("cheaper", "OVER_LIMIT", &Value::Null, "degrade"),
        ("soft", "OVER_LIMIT", &Value::Null, "slow"),
        ("stored", "OVER_LIMIT", &Value::Null, "cached"),
        ("held", "OVER_LIMIT", &Value::Null, "wait"),
    ] {
        let first = service.rls_rule(rule);
        assert_eq!(
            (&first["overallCode"], &first["dynamicMetadata"]),
            (&json!("OK"), &Value::Null),
            "{rule}"
        );
        let second = service.rls_rule(rule);
        assert_eq!(
            (&second["overallCode"], &second["requestHeadersToAdd"]),
            (&json!(code), headers),
            "{rule}"
        );
        assert_eq!(second["dynamicMetadata"], json!({ "action": action, "rule": rule }));
    }
}

#[test]
fn resp_reply_is_that_of_a_rejection() {
    let service = TestService::start(&POLICY);
    let mut client = RespClient::connect(&service);
    for rule in ["marked", "cheaper", "soft", "stored", "held"] {
        let mut first_number = || match client.call(&format!("TIDEGATE.CHECK {rule} ip:192.0.2.1")) {
            Reply::Array(items) => (items.first().cloned(), items.len()),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            [first_number(), first_number()].map(|(first, _)| first),
            [Some(Reply::Integer(1)), Some(Reply::Integer(0))]
        );
    }
}
