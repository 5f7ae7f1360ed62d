//! Bounds on the requests in flight to an upstream or on a route.

use tidegate_gateway::{BreakerCommand, BulkheadStatus};
use tidegate_testkit::server::{RecordingServer, Reply};
use tidegate_testkit::wait::{eventually, within};

use super::{GET, LIMIT, policy};
use crate::fixture::{ResourceLimits, TestGateway};

/// Never completes the response to `/hang`.
async fn hanging() -> RecordingServer {
    RecordingServer::replying(|request| match request.target.as_str() {
        "/hang" => Reply::Hang(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na".into()),
        _ => Reply::Keep(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".into()),
    })
    .await
}

const HANG: &[u8] = b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test]
async fn bulkhead_permit_is_held_until_the_response_body_ends() {
    let server = hanging().await;
    let text = policy(&[server.url()], "bulkhead: { concurrent: 1 }", LIMIT);
    let gateway = TestGateway::start(&text, ResourceLimits::default());
    let mut holder = gateway.client().await;
    holder.send(HANG).await;
    holder.first_bytes().await;
    let mut client = gateway.client().await;
    for _ in 0..5 {
        client.send(GET.as_bytes()).await;
        let response = client.response().await.expect("a response");
        assert_eq!((response.status, response.header("retry-after")), (503, Some("1")));
        assert!(response.text().contains("bulkhead_full"), "{}", response.text());
    }
    let status = gateway.bulkhead();
    assert_eq!((status.in_use, status.limit, status.rejected), (1, 1, 5));
    drop(holder);
    eventually("the permit is released", || gateway.bulkhead().in_use == 0).await;
    client.send(GET.as_bytes()).await;
    let response = client.response().await.expect("a response");
    assert_eq!((response.status, response.remaining()), (200, 998), "rejected requests are refunded");
}

#[tokio::test]
async fn bulkhead_queue_serves_a_waiting_request_when_another_ends() {
    let server = hanging().await;
    let text = policy(&[server.url()], "bulkhead: { concurrent: 1, queue: 1, wait: 10s }", LIMIT);
    let gateway = TestGateway::start(&text, ResourceLimits::default());
    let (mut holder, mut waiting) = (gateway.client().await, gateway.client().await);
    holder.send(HANG).await;
    holder.first_bytes().await;
    waiting.send(GET.as_bytes()).await;
    eventually("it waits", || gateway.bulkhead().waiting == 1).await;
    assert_eq!(gateway.send_raw(GET).await.status, 503, "the queue is full");
    drop(holder);
    assert_eq!(waiting.response().await.map(|response| response.status), Some(200));
    eventually("all is released", || gateway.bulkhead().in_use == 0).await;
}

#[tokio::test]
async fn bulkhead_wait_ends_with_503_and_with_the_client() {
    let server = hanging().await;
    let text = policy(&[server.url()], "bulkhead: { concurrent: 1, queue: 9, wait: 50ms }", LIMIT);
    let gateway = TestGateway::start(&text, ResourceLimits::default());
    let mut holder = gateway.client().await;
    holder.send(HANG).await;
    holder.first_bytes().await;
    assert_eq!(gateway.send_raw(GET).await.status, 503);
    let mut leaving = gateway.client().await;
    leaving.send(GET.as_bytes()).await;
    drop(leaving);
    eventually("its place is free", || gateway.bulkhead().waiting == 0).await;
}

#[tokio::test]
async fn bulkhead_of_a_route_leaves_other_routes_alone() {
    let server = hanging().await;
    let text = format!(
        "upstreams: {{ app: {{ servers: [{}] }} }}\n\
         routes: [{{ path: /hang, upstream: app, bulkhead: {{ concurrent: 1 }} }}, {{ upstream: app }}]\n{LIMIT}\n",
        server.url()
    );
    let gateway = TestGateway::start(&text, ResourceLimits::default());
    let mut holder = gateway.client().await;
    holder.send(HANG).await;
    holder.first_bytes().await;
    assert_eq!(gateway.get_raw("/hang").await.status, 503);
    assert_eq!(gateway.get_raw("/").await.status, 200);
    gateway.replace_policy(&text.replace("1000", "2000"));
    assert_eq!(gateway.get_raw("/hang").await.status, 503, "a reload keeps what is in use");
    let [(route, status)] = &gateway.route_bulkheads()[..] else { panic!("one bulkhead") };
    assert_eq!((route.as_str(), status.in_use, status.rejected), ("* /hang", 1, 2));
}

#[tokio::test]
async fn connections_of_an_upstream_are_bounded_and_idle_ones_make_room() {
    let (first, second) = (hanging().await, hanging().await);
    let settings = "bulkhead: { concurrent: 10, connections: 1, wait: 50ms }";
    let text = policy(&[first.url(), second.url()], settings, LIMIT);
    let gateway = TestGateway::start(&text, ResourceLimits::default());
    for _ in 0..6 {
        assert_eq!(
            gateway.send_raw(GET).await.status,
            200,
            "the idle connection to the other server is closed"
        );
    }
    let mut holder = gateway.client().await;
    holder.send(HANG).await;
    holder.first_bytes().await;
    let response = gateway.send_raw(GET).await;
    assert_eq!(response.status, 503);
    assert!(response.text().contains("bulkhead_full"), "{}", response.text());
    let connections: usize = gateway.upstream().servers.iter().map(|server| server.connections).sum();
    assert_eq!(connections, 1);
}

#[tokio::test]
async fn wait_for_a_connection_that_is_too_long_is_refunded_and_harms_no_server() {
    let server = hanging().await;
    let settings = "bulkhead: { concurrent: 10, connections: 1, wait: 200ms }, timeouts: { request: 50ms }, \
                    breaker: { failures: 1 }";
    let gateway = TestGateway::start(&policy(&[server.url()], settings, LIMIT), ResourceLimits::default());
    let mut holder = gateway.client().await;
    holder.send(HANG).await;
    holder.first_bytes().await;
    let mut client = gateway.client().await;
    for _ in 0..3 {
        client.send(GET.as_bytes()).await;
        let response = client.response().await.expect("a response");
        assert!(response.text().contains("bulkhead_full"), "{}", response.text());
    }
    drop(holder);
    eventually("the connection is closed", || gateway.upstream().servers[0].connections == 0).await;
    client.send(GET.as_bytes()).await;
    let response = client.response().await.expect("a response");
    assert_eq!((response.status, response.remaining()), (200, 998), "two requests were sent");
}

#[tokio::test]
async fn bulkhead_with_clients_that_leave_at_any_time_leaks_no_permit() {
    let server = hanging().await;
    let text = format!(
        "upstreams: {{ app: {{ servers: [{}], bulkhead: {{ concurrent: 2, queue: 3, wait: 1s }} }} }}\n\
         routes: [{{ upstream: app, bulkhead: {{ concurrent: 4, queue: 2, wait: 1s }} }}]\n{LIMIT}\n",
        server.url()
    );
    let gateway = TestGateway::start(&text, ResourceLimits::default());
    for turn in 0..200_usize {
        let mut clients = Vec::new();
        for n in 0..4 {
            let mut client = gateway.client().await;
            client.send(if (turn + n) % 3 == 0 { HANG } else { GET.as_bytes() }).await;
            clients.push(client);
        }
        for _ in 0..turn % 7 {
            tokio::task::yield_now().await;
        }
    }
    // The gateway accepts connections in their order, so it has seen all others once this one is served.
    within("a request is served", async { while gateway.send_raw(GET).await.status != 200 {} }).await;
    let is_free = |status: &BulkheadStatus| status.in_use == 0 && status.waiting == 0;
    eventually("all permits are released", || {
        gateway.connections() == 0
            && is_free(&gateway.bulkhead())
            && gateway.route_bulkheads().iter().all(|(_, status)| is_free(status))
    })
    .await;
    assert_eq!(gateway.send_raw(GET).await.status, 200);
}

#[tokio::test]
async fn connection_that_is_idle_in_one_worker_makes_room_for_another_worker() {
    let server = hanging().await;
    let settings = "bulkhead: { concurrent: 10, connections: 1, wait: 5s }";
    let gateway = TestGateway::with_workers(2, &policy(&[server.url()], settings, LIMIT));
    // The system spreads the connections over both workers.
    for _ in 0..60 {
        assert_eq!(gateway.send_raw(GET).await.status, 200);
    }
    assert!(server.connections() > 1, "both workers have used it");
}

#[tokio::test]
async fn request_to_the_fallback_upstream_holds_no_permit_of_the_first() {
    let (server, spare) = (hanging().await, hanging().await);
    let text = format!(
        "upstreams:\n  app: {{ servers: [{}], breaker: {{ failures: 1 }}, fallback: {{ upstream: spare }}, \
         bulkhead: {{ concurrent: 1 }}, shed: adaptive }}\n  \
         spare: {{ servers: [{}] }}\n\
         routes: [{{ upstream: app, bulkhead: {{ concurrent: 9 }} }}]\n{LIMIT}\n",
        server.url(),
        spare.url()
    );
    let gateway = TestGateway::start(&text, ResourceLimits::default());
    gateway.force_breaker("app", None, BreakerCommand::Open).expect("a breaker");
    let mut holder = gateway.client().await;
    holder.send(HANG).await;
    holder.first_bytes().await;
    let app = gateway.upstream();
    assert_eq!((app.name.as_str(), app.shed.expect("load shedding").in_flight), ("app", 0));
    assert_eq!(gateway.bulkhead().in_use, 0);
    assert_eq!(gateway.route_bulkheads()[0].1.in_use, 1, "the route is still busy");
    assert_eq!(gateway.send_raw(GET).await.status, 200);
}

#[tokio::test]
async fn request_that_needs_a_connection_slot_closes_one_idle_connection() {
    let servers = [hanging().await, hanging().await, hanging().await];
    let urls: Vec<_> = servers.iter().map(RecordingServer::url).collect();
    let settings = "bulkhead: { concurrent: 10, connections: 4, wait: 5s }";
    let gateway = TestGateway::start(&policy(&urls[..2], settings, LIMIT), ResourceLimits::default());
    let mut clients = Vec::new();
    for opened in 1..=4 {
        let mut client = gateway.client().await;
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na").await;
        let connections =
            || gateway.upstream().servers.iter().map(|server| server.connections).sum::<usize>();
        eventually("it has a connection", || connections() == opened).await;
        clients.push(client);
    }
    for client in &mut clients {
        client.send(b"b").await;
        assert_eq!(client.response().await.map(|response| response.status), Some(200));
    }
    gateway.replace_policy(&policy(&urls, settings, LIMIT));
    for _ in 0..9 {
        assert_eq!(gateway.send_raw(GET).await.status, 200);
    }
    let opened: Vec<_> = servers.iter().map(RecordingServer::connections).collect();
    assert_eq!(opened, [2, 2, 1], "the other idle connections are kept");
}
