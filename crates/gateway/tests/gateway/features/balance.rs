//! Several servers of one upstream.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Response;
use tidegate_testkit::server::{HttpServer, full};
use tidegate_testkit::wait::soon;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::fixture::{ResourceLimits, TestGateway};

const LIMIT: &str = "clients: { api_key: { verify: none } }\n\
                     rate_limits: { default: { requests: 1000, window: 1h } }\n";

#[tokio::test]
async fn round_robin_alternates_between_two_servers() {
    let (left, right) = (HttpServer::named("left").await, HttpServer::named("right").await);
    let gateway = TestGateway::before(&[left.url(), right.url()], LIMIT);
    let mut names = Vec::new();
    for _ in 0..6 {
        names.push(gateway.get("/").await.text().to_owned());
    }
    assert_ne!(names[0], names[1]);
    assert_eq!((&names[0], &names[1]), (&names[2], &names[3]));
    assert_eq!((&names[0], &names[1]), (&names[4], &names[5]));
}

#[tokio::test]
async fn unreachable_server_is_skipped() {
    let (left, right) = (HttpServer::named("left").await, HttpServer::named("right").await);
    let unreachable = UnreachableServer::new();
    let gateway = TestGateway::before(&[unreachable.url(), left.url(), right.url()], LIMIT);
    for _ in 0..9 {
        let response = gateway.get("/").await;
        assert_eq!(response.status, 200, "{response:?}");
    }
}

#[tokio::test]
async fn server_that_shuts_down_is_skipped_from_then_on() {
    let (left, right) = (HttpServer::named("left").await, HttpServer::named("right").await);
    let gateway = TestGateway::before(&[left.url(), right.url()], LIMIT);
    for _ in 0..4 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    left.close().await;
    for _ in 0..8 {
        let response = gateway.get("/").await;
        assert_eq!((response.status.as_u16(), response.text()), (200, "right"));
    }
}

#[tokio::test]
async fn server_removed_by_a_reload_has_its_connections_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let old = format!("http://{}", listener.local_addr().unwrap());
    let new = HttpServer::named("new").await;
    let gateway = TestGateway::before(&[old], LIMIT);
    let (response, mut old_connection) = tokio::join!(gateway.get("/"), async {
        let (mut stream, _) = soon(listener.accept()).await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(soon(stream.read_u8()).await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold").await.unwrap();
        stream
    });
    assert_eq!(response.text(), "old");
    gateway.replace(&[new.url()], LIMIT);
    assert_eq!(gateway.get("/").await.text(), "new");
    assert_eq!(soon(old_connection.read(&mut [0; 1])).await.unwrap(), 0);
}

#[tokio::test]
async fn all_servers_unreachable_gets_502() {
    let (unreachable, other_unreachable) = (UnreachableServer::new(), UnreachableServer::new());
    let gateway = TestGateway::before(&[unreachable.url(), other_unreachable.url()], LIMIT);
    let response = gateway.get("/").await;
    assert_eq!(response.status, 502);
    assert_eq!(response.json()["error"], "upstream_unreachable");
    assert_eq!(response.number("x-ratelimit-limit"), 1000, "failures carry limit headers, too");
}

/// A policy with these servers and balancing options.
fn balanced(servers: &[String], options: &str) -> String {
    format!(
        "upstreams: {{ api: {{ servers: [{}], {options} }} }}\nroutes: [{{ path: /**, upstream: api }}]\n{LIMIT}",
        servers.join(", ")
    )
}

#[tokio::test]
async fn least_loaded_busy_server_gets_no_requests_until_it_responds() {
    let (release, released) = watch::channel(false);
    let busy = HttpServer::start(move |_| {
        let mut released = released.clone();
        async move {
            released.wait_for(|released| *released).await.unwrap();
            Response::new(full("busy"))
        }
    })
    .await;
    let idle = HttpServer::named("idle").await;
    let policy = balanced(&[busy.url(), idle.url()], "balance: least_loaded");
    let gateway = Arc::new(TestGateway::start(&policy, ResourceLimits::default()));
    let send = || {
        let gateway = Arc::clone(&gateway);
        tokio::spawn(async move { gateway.get("/").await.text().to_owned() })
    };
    // Sends requests until one reaches the busy server and waits there.
    let waiting = loop {
        let mut request = send();
        tokio::select! {
            response = &mut request => assert_eq!(response.unwrap(), "idle"),
            () = soon(busy.first_request()) => break request,
        }
    };
    for _ in 0..50 {
        assert_eq!(soon(send()).await.unwrap(), "idle", "the idle server responds");
    }
    release.send_replace(true);
    assert_eq!(soon(waiting).await.unwrap(), "busy");
    let back = async { while send().await.unwrap() != "busy" {} };
    soon(back).await;
}

/// The server that responds to each of a hundred clients.
async fn servers_by_client(gateway: &TestGateway) -> BTreeMap<String, String> {
    let mut servers_by_client = BTreeMap::new();
    for client in 0..100 {
        let key = format!("client-{client}");
        let response = gateway.get_with("/", &[("x-api-key", &key)]).await;
        assert_eq!(response.status, 200, "{response:?}");
        servers_by_client.insert(key, response.text().to_owned());
    }
    servers_by_client
}

/// Asserts that exactly the clients of `removed` have moved, and not all to one server.
fn assert_only_moved(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>, removed: &str) {
    let mut new_servers = std::collections::BTreeSet::new();
    for (client, server) in before {
        if server == removed {
            assert_ne!(&after[client], removed);
            new_servers.insert(after[client].clone());
        } else {
            assert_eq!(&after[client], server, "{client} stays");
        }
    }
    assert!(new_servers.len() > 1, "the clients are spread over the other servers: {new_servers:?}");
}

#[tokio::test]
async fn sticky_clients_move_only_if_their_server_leaves() {
    let names = ["one", "two", "three", "four"];
    let mut servers = Vec::new();
    for name in names {
        servers.push(HttpServer::named(name).await);
    }
    let urls: Vec<_> = servers.iter().map(HttpServer::url).collect();
    let gateway = TestGateway::start(&balanced(&urls, "balance: sticky"), ResourceLimits::default());
    let before = servers_by_client(&gateway).await;
    assert_eq!(servers_by_client(&gateway).await, before, "each client reaches its server again");
    for name in names {
        assert!(before.values().filter(|server| *server == name).count() > 5, "{name} has enough clients");
    }
    // The second server becomes unreachable.
    servers.remove(1).close().await;
    let without = servers_by_client(&gateway).await;
    assert_only_moved(&before, &without, "two");
    // Its removal from the policy moves no further client.
    let left: Vec<_> = servers.iter().map(HttpServer::url).collect();
    gateway.replace_policy(&balanced(&left, "balance: sticky"));
    assert_eq!(servers_by_client(&gateway).await, without);
    // Once it is back, its clients return.
    gateway.replace_policy(&balanced(&urls, "balance: sticky"));
    let address = urls[1].trim_start_matches("http://").parse().unwrap();
    let _two = HttpServer::start_at(address, |_| async { Response::new(full("two")) }).await;
    assert_eq!(servers_by_client(&gateway).await, before);
}

/// Sends requests until `count` consecutive responses are from `server`.
async fn until_only_responses_from(gateway: &TestGateway, server: &str, count: usize) {
    let sending = async {
        let mut consecutive = 0;
        while consecutive < count {
            let response = gateway.get("/").await;
            assert_eq!(response.status, 200, "{response:?}");
            consecutive = if response.text() == server { consecutive + 1 } else { 0 };
        }
    };
    soon(sending).await;
}

async fn until_response_from(gateway: &TestGateway, server: &str) {
    let sending = async { while gateway.get("/").await.text() != server {} };
    soon(sending).await;
}

const HEALTH: &str = "health: { path: /healthz, every: 20ms }";

#[tokio::test]
async fn server_with_failing_health_checks_gets_no_requests_until_it_is_healthy() {
    let is_healthy = Arc::new(AtomicBool::new(true));
    let left = {
        let is_healthy = Arc::clone(&is_healthy);
        HttpServer::start(move |request| {
            let fails = request.uri().path() == "/healthz" && !is_healthy.load(Ordering::SeqCst);
            let response =
                Response::builder().status(if fails { 503 } else { 200 }).body(full("left")).unwrap();
            async { response }
        })
        .await
    };
    let right = HttpServer::named("right").await;
    for balance in ["round_robin", "least_loaded"] {
        let options = format!("balance: {balance}, {HEALTH}");
        let gateway =
            TestGateway::start(&balanced(&[left.url(), right.url()], &options), ResourceLimits::default());
        until_response_from(&gateway, "left").await;
        until_response_from(&gateway, "right").await;
        is_healthy.store(false, Ordering::SeqCst);
        // Requests to it would still succeed; only the health checks fail.
        until_only_responses_from(&gateway, "right", 20).await;
        is_healthy.store(true, Ordering::SeqCst);
        until_response_from(&gateway, "left").await;
    }
}

#[tokio::test]
async fn server_that_dies_gets_no_requests_until_it_is_back() {
    let (left, right) = (HttpServer::named("left").await, HttpServer::named("right").await);
    // Only the health check decides.
    let options = format!("{HEALTH}, eject: off");
    let (address, policy) = (left.address, balanced(&[left.url(), right.url()], &options));
    let gateway = TestGateway::start(&policy, ResourceLimits::default());
    until_response_from(&gateway, "left").await;
    left.close().await;
    until_only_responses_from(&gateway, "right", 20).await;
    let _left = HttpServer::start_at(address, |_| async { Response::new(full("left")) }).await;
    until_response_from(&gateway, "left").await;
    until_response_from(&gateway, "right").await;
}

#[tokio::test]
async fn all_servers_unhealthy_still_get_requests() {
    let unhealthy = HttpServer::start(|request| {
        let status = if request.uri().path() == "/healthz" { 503 } else { 200 };
        async move { Response::builder().status(status).body(full("served")).unwrap() }
    })
    .await;
    let (checks, mut checked) = watch::channel(0);
    let counts = HttpServer::start(move |request| {
        checks.send_modify(|count| *count += u32::from(request.uri().path() == "/healthz"));
        async { Response::builder().status(503).body(full("")).unwrap() }
    })
    .await;
    let gateway = TestGateway::start(&balanced(&[unhealthy.url()], HEALTH), ResourceLimits::default());
    let _other = TestGateway::start(&balanced(&[counts.url()], HEALTH), ResourceLimits::default());
    // By now the first server must be marked unhealthy, too.
    soon(checked.wait_for(|count| *count > 5)).await.unwrap();
    assert_eq!(gateway.get("/").await.text(), "served");
}

/// The address of a server that is not running: the port is reserved, and nothing listens.
struct UnreachableServer(socket2::Socket);

impl UnreachableServer {
    fn new() -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        Self(socket)
    }

    fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap().as_socket().unwrap())
    }
}
