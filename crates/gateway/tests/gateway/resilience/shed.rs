//! Load shedding by importance.

use std::sync::Arc;

use tidegate_core::TimeSpan;
use tidegate_store::{Clock, ManualClock};
use tidegate_testkit::server::{RecordingServer, Reply, ok};
use tidegate_testkit::wait::eventually;

use super::{GET, LIMIT, manual_clock, policy, status};
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

/// Responds after 50 ms by `clock`, and to `/missing` after 1 ms.
async fn timed(clock: &Arc<ManualClock>) -> (RecordingServer, TestGateway) {
    let passing = Arc::clone(clock);
    let server = RecordingServer::replying(move |request| {
        let (millis, reply) = match request.target.as_str() {
            "/missing" => (1, Reply::Keep(status("404 Not Found", ""))),
            _ => (50, ok("ok")),
        };
        passing.advance(TimeSpan::from_millis(millis));
        reply
    })
    .await;
    let text = policy(&[server.url()], "shed: adaptive", LIMIT);
    let gateway = TestGateway::start_at(Arc::clone(clock) as Arc<dyn Clock>, &text);
    (server, gateway)
}

fn shed_limit(gateway: &TestGateway) -> u64 {
    gateway.upstream().shed.expect("load shedding").limit
}

#[tokio::test]
async fn quick_client_errors_do_not_make_the_usual_latency_look_high() {
    let (_server, gateway) = timed(&manual_clock()).await;
    for _ in 0..200 {
        assert_eq!(gateway.get_raw("/missing").await.status, 404);
    }
    for _ in 0..100 {
        assert_eq!(gateway.get_raw("/").await.status, 200);
    }
    assert_eq!(shed_limit(&gateway), 20);
}

#[tokio::test]
async fn burst_of_cheap_requests_of_one_client_does_not_shrink_the_limit_of_others() {
    let clock = manual_clock();
    let passing = Arc::clone(&clock);
    let server = RecordingServer::replying(move |request| {
        let (micros, reply) = match request.target.as_str() {
            "/cheap" => (100, Reply::Keep(status("304 Not Modified", ""))),
            _ => (50_000, ok("ok")),
        };
        passing.advance(TimeSpan::from_micros(micros));
        reply
    })
    .await;
    let proxies = "clients: { ip: { trusted_proxies: [127.0.0.0/8] } }\n";
    let text = policy(&[server.url()], "shed: adaptive", &format!("{proxies}{LIMIT}"));
    let gateway = TestGateway::start_at(Arc::clone(&clock) as Arc<dyn Clock>, &text);
    let send = async |path: &str, client: u32, expected: u16| {
        let from = format!("X-Forwarded-For: 198.51.100.{client}");
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{from}\r\n\r\n");
        assert_eq!(gateway.send_raw(&request).await.status, expected);
    };
    for turn in 0..200 {
        send("/", turn % 5, 200).await;
        if turn == 60 {
            for _ in 0..30 {
                send("/cheap", 9, 304).await;
            }
        }
        assert_eq!(shed_limit(&gateway), 20, "after {turn}");
    }
}

#[tokio::test]
async fn time_that_clients_take_to_send_their_bodies_does_not_count_as_latency() {
    let clock = manual_clock();
    let (_server, gateway) = timed(&clock).await;
    for _ in 0..40 {
        assert_eq!(gateway.get_raw("/").await.status, 200);
    }
    for _ in 0..40 {
        let mut slow = gateway.client().await;
        slow.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na").await;
        eventually("it is sent", || gateway.upstream().servers[0].in_flight == 1).await;
        clock.advance(TimeSpan::from_secs(1));
        slow.send(b"b").await;
        assert_eq!(slow.response().await.map(|response| response.status), Some(200));
        eventually("it has ended", || gateway.upstream().servers[0].in_flight == 0).await;
    }
    assert_eq!(shed_limit(&gateway), 20);
}

#[tokio::test]
async fn requests_that_time_out_shrink_the_adaptive_limit() {
    let clock = manual_clock();
    let server = RecordingServer::replying(|request| match request.target.as_str() {
        "/hang" => Reply::Hang(Vec::new()),
        _ => ok("ok"),
    })
    .await;
    let settings = "shed: adaptive, timeouts: { request: 20ms }";
    let text = policy(&[server.url()], settings, LIMIT);
    let gateway = TestGateway::start_at(Arc::clone(&clock) as Arc<dyn Clock>, &text);
    for target in ["/", "/hang"] {
        for _ in 0..40 {
            gateway.get_raw(target).await;
            clock.advance(TimeSpan::from_millis(10));
        }
    }
    assert!(shed_limit(&gateway) < 20, "{}", shed_limit(&gateway));
}
