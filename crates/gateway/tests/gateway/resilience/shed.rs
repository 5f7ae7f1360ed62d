//! Load shedding by importance.

use tidegate_testkit::server::{RecordingServer, Reply, ok};
use tidegate_testkit::wait::eventually;

use super::{GET, LIMIT, policy};
use crate::fixture::{ResourceLimits, TestGateway};

fn request(path: &str, criticality: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Criticality: {criticality}\r\n\r\n")
}

#[tokio::test]
async fn overloaded_upstream_sheds_by_an_importance_that_only_proxies_may_claim() {
    for is_trusted in [true, false] {
        let server = RecordingServer::replying(|request| match request.target.as_str() {
            "/hang" => Reply::Hang(Vec::new()),
            _ => ok("ok"),
        })
        .await;
        let trusted = if is_trusted { "clients: { ip: { trusted_proxies: [127.0.0.0/8] } }\n" } else { "" };
        let text = policy(&[server.url()], "shed: adaptive", &format!("{trusted}{LIMIT}"));
        let gateway = TestGateway::start(&text, ResourceLimits::default());
        let mut waiting = Vec::new();
        for _ in 0..18 {
            let mut client = gateway.client().await;
            client.send(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await;
            waiting.push(client);
        }
        server.until("all have arrived", |counts| counts.requests == 18).await;
        let response = gateway.send_raw(GET).await;
        assert_eq!(
            (response.status, response.header("retry-after")),
            (503, Some("1")),
            "90 % of 20 are in flight"
        );
        assert!(response.text().contains("overloaded"), "{}", response.text());
        assert_eq!(gateway.send_raw(&request("/", "sheddable")).await.status, 503);
        let important = gateway.send_raw(&request("/", "critical_plus")).await;
        assert_eq!(important.status, if is_trusted { 200 } else { 503 });
        if is_trusted {
            assert_eq!(server.last().header("x-criticality"), Some("critical_plus"));
        }
        let shed = gateway.upstream().shed.expect("load shedding");
        assert_eq!((shed.limit, shed.in_flight), (20, 18));
        drop(waiting);
        eventually("all permits are released", || {
            gateway.upstream().shed.is_some_and(|shed| shed.in_flight == 0)
        })
        .await;
        let response = gateway.send_raw(&request("/", "sheddable")).await;
        assert_eq!(response.status, 200);
        assert_eq!(
            response.remaining(),
            1_000 - 18 - if is_trusted { 2 } else { 1 },
            "the others are refunded"
        );
        let forwarded = is_trusted.then_some("sheddable");
        assert_eq!(server.last().header("x-criticality"), forwarded);
    }
}
