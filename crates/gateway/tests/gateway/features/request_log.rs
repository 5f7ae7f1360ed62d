//! The request log: its fields, and the secrets that it omits.

use std::time::Duration;

use serde_json::Value;
use tidegate_gateway::BreakerCommand;
use tidegate_policy::SampleRate;
use tidegate_telemetry::{Log, LogReceiver, LogSampling, Telemetry};
use tidegate_testkit::server::HttpServer;
use tidegate_testkit::wait::soon;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{ResourceLimits, TestGateway, active};

const TWO: &str = "rate_limits: { default: { requests: 2, window: 1h, algorithm: sliding_window_log } }";

async fn logging_gateway(sampling: LogSampling, rest: &str) -> (TestGateway, HttpServer, LogReceiver) {
    let upstream = HttpServer::named("served").await;
    let clock = std::sync::Arc::new(tidegate_store::SystemClock::new());
    let (log, lines) = Log::into_channel(clock.clone());
    log.set_sampling(sampling);
    let telemetry = Telemetry::new(tidegate_telemetry::Metrics::new(1, tidegate_core::Timestamp::ZERO), log);
    let active = active(&[upstream.url()], rest, &[]);
    (TestGateway::with_telemetry(telemetry, active, ResourceLimits::default()), upstream, lines)
}

const ALL: LogSampling = LogSampling { access: SampleRate::ALL, rejected: SampleRate::ALL };

fn next(lines: &LogReceiver) -> Value {
    let line = lines.recv_timeout(Duration::from_secs(20)).expect("a log line");
    assert_eq!(line.matches('\n').count(), 1, "{line:?}");
    assert!(!line.trim_end().chars().any(char::is_control), "{line:?}");
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

#[tokio::test]
async fn log_line_has_client_decision_and_response_without_secrets() {
    let (gateway, upstream, lines) =
        logging_gateway(ALL, &format!("clients: {{ api_key: {{ verify: none }} }}\n{TWO}")).await;
    let key = [("x-api-key", "sk_live_51H_very_secret"), ("authorization", "Bearer hunter2hunter2")];
    for _ in 0..3 {
        gateway.get_with("/things/7?token=sesame", &key).await;
    }
    let passed = next(&lines);
    assert_eq!(passed["event"], "request");
    assert_eq!(
        (&passed["method"], &passed["path"], &passed["host"]),
        (&"GET".into(), &"/things/7".into(), &"test".into())
    );
    assert_eq!((&passed["client"], &passed["peer"]), (&"api_key:sk_l…#b59c1698".into(), &"127.0.0.1".into()));
    assert_eq!((&passed["decision"], &passed["rule"]), (&"admitted".into(), &"default".into()));
    assert_eq!((&passed["limit"], &passed["remaining"]), (&2.into(), &1.into()));
    assert_eq!(
        (&passed["upstream"], &passed["result"], &passed["tries"]),
        (&"api".into(), &"answered".into(), &1.into())
    );
    assert_eq!(passed["server"], upstream.url().replace("http://", ""));
    assert_eq!((&passed["status"], &passed["response_bytes"]), (&200.into(), &6.into()));
    assert_eq!(passed["id"].as_str().unwrap().len(), 32);
    assert!(passed["total_ms"].as_f64().unwrap() >= passed["decision_ms"].as_f64().unwrap());
    next(&lines);
    let refused = next(&lines);
    assert_eq!((&refused["decision"], &refused["status"]), (&"rejected".into(), &429.into()));
    assert_eq!((&refused["cause"], &refused["remaining"]), (&"rate_limit_exceeded".into(), &0.into()));
    assert!(refused["retry_after"].as_u64().unwrap() > 3_500);
    assert_eq!(refused["upstream"], Value::Null);
    let all = format!("{passed}{refused}");
    for secret in ["very_secret", "hunter2", "sesame"] {
        assert!(!all.contains(secret), "{all}");
    }
}

#[tokio::test]
async fn rejection_has_an_id_of_its_own_unless_a_trusted_proxy_sends_one() {
    let (gateway, _upstream, lines) = logging_gateway(ALL, TWO).await;
    for status in [200, 200, 429] {
        let response = gateway.get_with("/", &[("x-request-id", "invented")]).await;
        assert_eq!(response.status, status);
        let line = next(&lines);
        let id = line["id"].as_str().unwrap();
        assert!(id.len() == 32 && id.bytes().all(|digit| digit.is_ascii_hexdigit()), "{line}");
        let sent = response.header("x-request-id");
        assert_eq!(sent, (status == 429).then_some(id), "responses of the upstream are forwarded unchanged");
    }
}

#[tokio::test]
async fn request_that_an_open_breaker_refuses_is_logged_as_refunded() {
    let rest = "rate_limits: { default: { requests: 5, window: 1h } }";
    let (gateway, upstream, lines) = logging_gateway(ALL, rest).await;
    let policy = format!(
        "upstreams: {{ api: {{ servers: [{}], breaker: {{ failures: 1 }} }} }}\nroutes: [{{ upstream: api }}]\n{rest}",
        upstream.url()
    );
    gateway.replace_policy(&policy);
    gateway.force_breaker("api", None, BreakerCommand::Open).unwrap();
    assert_eq!(gateway.get("/").await.status, 503);
    let refused = next(&lines);
    assert_eq!((&refused["decision"], &refused["cause"]), (&"refunded".into(), &"breaker_open".into()));
    assert_eq!((&refused["rule"], &refused["remaining"]), (&"default".into(), &Value::Null), "{refused}");
    gateway.force_breaker("api", None, BreakerCommand::Reset).unwrap();
    assert_eq!(gateway.get("/").await.status, 200);
    let served = next(&lines);
    assert_eq!((&served["decision"], &served["remaining"]), (&"admitted".into(), &4.into()), "{served}");
}

#[tokio::test]
async fn log_line_of_a_hostile_request_is_one_json_object_without_the_api_key() {
    let policy = "http: { encoded_slash: keep }\n\
        clients: { identify_by: [user, ip], user: { header: X-User }, ip: { trusted_proxies: 127.0.0.1 } }";
    let (gateway, _upstream, lines) = logging_gateway(ALL, policy).await;
    let hostile = "a\"b\\c\u{9b}31m\u{202e}\t]}";
    let response = gateway
        .get_with(
            "/%0d%0a%1b[31m%22%27/sk_live_51H_very_secret",
            &[("x-user", hostile), ("x-api-key", "sk_live_51H_very_secret")],
        )
        .await;
    let line = next(&lines);
    assert_eq!(line["status"], response.status.as_u16());
    assert!(!line.to_string().contains("very_secret"), "{line}");
    assert!(line["client"].as_str().unwrap().starts_with("user:a\"b"), "{line}");
    let bad = gateway.get_with("/%", &[("x-user", "x\u{ff}\u{1f600}")]).await;
    assert_eq!(next(&lines)["status"], bad.status.as_u16());
}

#[tokio::test]
async fn log_sampling_of_rejected_requests_is_independent_of_admitted_ones() {
    let only_rejected = LogSampling { access: SampleRate::NONE, rejected: SampleRate::ALL };
    let (gateway, _upstream, lines) = logging_gateway(only_rejected, TWO).await;
    for _ in 0..3 {
        gateway.get("/").await;
    }
    assert_eq!(next(&lines)["decision"], "rejected");
    let never_rejected = LogSampling { access: SampleRate::ALL, rejected: SampleRate::NONE };
    let (gateway, upstream, lines) = logging_gateway(never_rejected, TWO).await;
    for _ in 0..3 {
        gateway.get("/").await;
    }
    gateway.replace(
        &[upstream.url()],
        "rate_limits: { default: { requests: 9, window: 1h, algorithm: sliding_window_log } }",
    );
    gateway.get("/").await;
    let decided: Vec<_> = (0..3).map(|_| next(&lines)["decision"].clone()).collect();
    assert_eq!(decided, ["admitted", "admitted", "admitted"]);
}

const NONE: LogSampling = LogSampling { access: SampleRate::NONE, rejected: SampleRate::NONE };

#[tokio::test]
async fn forwarding_headers_without_trusted_proxies_are_logged_once_for_each_policy() {
    for header in [("x-forwarded-for", "203.0.113.9"), ("forwarded", "for=203.0.113.9")] {
        let (gateway, upstream, lines) = logging_gateway(NONE, TWO).await;
        gateway.get("/").await;
        for _ in 0..3 {
            gateway.get_with("/", &[header]).await;
        }
        let line = next(&lines);
        assert_eq!(
            (&line["event"], &line["peer"]),
            (&"forwarding_headers_ignored".into(), &"127.0.0.1".into())
        );
        assert!(line["message"].as_str().unwrap().contains("trusted_proxies"), "{line}");
        gateway.replace(&[upstream.url()], "rate_limits: { default: { requests: 9, window: 1h } }");
        gateway.get_with("/", &[header]).await;
        assert_eq!(next(&lines)["event"], "forwarding_headers_ignored");
        // Nothing else was logged in between, and nothing is from here on.
        gateway.replace(&[upstream.url()], "rate_limits: { global: { requests: 9, window: 1h } }");
        gateway.get_with("/", &[header]).await;
        assert_eq!(next(&lines)["event"], "forwarding_headers_ignored");
    }
}

#[tokio::test]
async fn forwarding_headers_are_not_logged_if_a_proxy_is_trusted_or_no_address_is_counted() {
    let limits = "rate_limits: { default: { requests: 9, window: 1h } }";
    for clients in [
        "clients: { ip: { trusted_proxies: [127.0.0.1] } }",
        "clients: { ip: { trusted_proxies: [192.0.2.1] } }",
        "clients: { identify_by: cookie, cookie: { name: session } }",
    ] {
        let (gateway, upstream, lines) = logging_gateway(NONE, &format!("{clients}\n{limits}")).await;
        gateway.get_with("/", &[("x-forwarded-for", "203.0.113.9")]).await;
        // The next log line is caused by the next policy.
        gateway.replace(
            &[upstream.url()],
            &format!("clients: {{ identify_by: ip, ip: {{ ipv6_prefix: 48 }} }}\n{limits}"),
        );
        gateway.get_with("/", &[("x-forwarded-for", "203.0.113.8")]).await;
        assert_eq!(next(&lines)["event"], "forwarding_headers_ignored", "{clients}");
        assert!(lines.recv_timeout(Duration::ZERO).is_none(), "{clients}");
    }
}

#[tokio::test]
async fn unparsable_head_is_logged_with_its_cause() {
    let (gateway, _upstream, lines) = logging_gateway(ALL, TWO).await;
    let many = "X: a\r\n".repeat(101);
    for (head, status, cause) in [
        ("BAD \x1b[31mred\r\n\r\n".to_owned(), 400, "bad_request"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n"), 431, "head_too_large"),
    ] {
        let mut stream = tokio::net::TcpStream::connect(gateway.address).await.expect("a connection");
        stream.write_all(head.as_bytes()).await.expect("a head");
        let mut response = String::new();
        soon(stream.read_to_string(&mut response)).await.expect("a response");
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
        let line = next(&lines);
        assert_eq!((&line["event"], &line["status"]), (&"request".into(), &status.into()));
        assert_eq!((&line["cause"], &line["peer"]), (&cause.into(), &"127.0.0.1".into()), "{line}");
    }
}
