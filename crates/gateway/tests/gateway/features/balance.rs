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
async fn two_servers_take_turns() {
    let (left, right) = (HttpServer::named("left").await, HttpServer::named("right").await);
    let proxy = TestGateway::before(&[left.url(), right.url()], LIMIT);
    let mut seen = Vec::new();
    for _ in 0..6 {
        seen.push(proxy.get("/").await.text().to_owned());
    }
    assert_ne!(seen[0], seen[1]);
    assert_eq!((&seen[0], &seen[1]), (&seen[2], &seen[3]));
    assert_eq!((&seen[0], &seen[1]), (&seen[4], &seen[5]));
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_passed_over() {
    let (left, right) = (HttpServer::named("left").await, HttpServer::named("right").await);
    let nobody = Nobody::new();
    let proxy = TestGateway::before(&[nobody.url(), left.url(), right.url()], LIMIT);
    for _ in 0..9 {
        let answer = proxy.get("/").await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[tokio::test]
async fn a_server_that_goes_away_is_passed_over_from_then_on() {
    let (left, right) = (HttpServer::named("left").await, HttpServer::named("right").await);
    let proxy = TestGateway::before(&[left.url(), right.url()], LIMIT);
    for _ in 0..4 {
        assert_eq!(proxy.get("/").await.status, 200);
    }
    left.close().await;
    for _ in 0..8 {
        let answer = proxy.get("/").await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "right"));
    }
}

#[tokio::test]
async fn a_server_that_a_reload_left_out_loses_its_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let old = format!("http://{}", listener.local_addr().unwrap());
    let new = HttpServer::named("new").await;
    let proxy = TestGateway::before(&[old], LIMIT);
    let (answer, mut kept) = tokio::join!(proxy.get("/"), async {
        let (mut stream, _) = soon(listener.accept()).await.unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            asked.push(soon(stream.read_u8()).await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold").await.unwrap();
        stream
    });
    assert_eq!(answer.text(), "old");
    proxy.replace(&[new.url()], LIMIT);
    assert_eq!(proxy.get("/").await.text(), "new");
    assert_eq!(soon(kept.read(&mut [0; 1])).await.unwrap(), 0);
}

#[tokio::test]
async fn with_no_server_left_the_answer_is_502() {
    let (nobody, no_other) = (Nobody::new(), Nobody::new());
    let proxy = TestGateway::before(&[nobody.url(), no_other.url()], LIMIT);
    let answer = proxy.get("/").await;
    assert_eq!(answer.status, 502);
    assert_eq!(answer.json()["error"], "upstream_unreachable");
    assert_eq!(answer.number("x-ratelimit-limit"), 1000, "also failures tell the limit");
}

/// These servers, chosen among in this way.
fn balanced(servers: &[String], how: &str) -> String {
    format!(
        "upstreams: {{ api: {{ servers: [{}], {how} }} }}\nroutes: [{{ path: /**, upstream: api }}]\n{LIMIT}",
        servers.join(", ")
    )
}

#[tokio::test]
async fn a_busy_server_gets_less() {
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
    let proxy = Arc::new(TestGateway::start(&policy, ResourceLimits::default()));
    let ask = || {
        let proxy = Arc::clone(&proxy);
        tokio::spawn(async move { proxy.get("/").await.text().to_owned() })
    };
    // One of them meets the busy server before long; there it stays.
    let waiting = loop {
        let mut asked = ask();
        tokio::select! {
            answer = &mut asked => assert_eq!(answer.unwrap(), "idle"),
            () = soon(busy.first_request()) => break asked,
        }
    };
    for _ in 0..50 {
        assert_eq!(soon(ask()).await.unwrap(), "idle", "the other works");
    }
    release.send_replace(true);
    assert_eq!(soon(waiting).await.unwrap(), "busy");
    let back = async { while ask().await.unwrap() != "busy" {} };
    soon(back).await;
}

/// LogSampling server each of a hundred clients meets.
async fn met(proxy: &TestGateway) -> BTreeMap<String, String> {
    let mut met = BTreeMap::new();
    for client in 0..100 {
        let key = format!("client-{client}");
        let answer = proxy.get_with("/", &[("x-api-key", &key)]).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        met.insert(key, answer.text().to_owned());
    }
    met
}

/// That exactly the clients of `leaver` have moved, and not all to one.
fn assert_only_moved(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>, leaver: &str) {
    let mut taken_by = std::collections::BTreeSet::new();
    for (client, server) in before {
        if server == leaver {
            assert_ne!(&after[client], leaver);
            taken_by.insert(after[client].clone());
        } else {
            assert_eq!(&after[client], server, "{client} stays");
        }
    }
    assert!(taken_by.len() > 1, "they are spread over the others: {taken_by:?}");
}

#[tokio::test]
async fn clients_stick_and_only_those_of_a_leaving_server_move() {
    let names = ["one", "two", "three", "four"];
    let mut servers = Vec::new();
    for name in names {
        servers.push(HttpServer::named(name).await);
    }
    let urls: Vec<_> = servers.iter().map(HttpServer::url).collect();
    let proxy = TestGateway::start(&balanced(&urls, "balance: sticky"), ResourceLimits::default());
    let before = met(&proxy).await;
    assert_eq!(met(&proxy).await, before, "each comes back to its server");
    for name in names {
        assert!(before.values().filter(|server| *server == name).count() > 5, "{name} has its share");
    }
    // It cannot be reached any more.
    servers.remove(1).close().await;
    let without = met(&proxy).await;
    assert_only_moved(&before, &without, "two");
    // Nor is it in the policy: nobody moves again.
    let left: Vec<_> = servers.iter().map(HttpServer::url).collect();
    proxy.replace_policy(&balanced(&left, "balance: sticky"));
    assert_eq!(met(&proxy).await, without);
    // When it is back, so are its clients.
    proxy.replace_policy(&balanced(&urls, "balance: sticky"));
    let address = urls[1].trim_start_matches("http://").parse().unwrap();
    let _two = HttpServer::start_at(address, |_| async { Response::new(full("two")) }).await;
    assert_eq!(met(&proxy).await, before);
}

/// Asks until `count` answers on end were all from `server`.
async fn until_only(proxy: &TestGateway, server: &str, count: usize) {
    let asking = async {
        let mut on_end = 0;
        while on_end < count {
            let answer = proxy.get("/").await;
            assert_eq!(answer.status, 200, "{answer:?}");
            on_end = if answer.text() == server { on_end + 1 } else { 0 };
        }
    };
    soon(asking).await;
}

async fn until_seen(proxy: &TestGateway, server: &str) {
    let asking = async { while proxy.get("/").await.text() != server {} };
    soon(asking).await;
}

const HEALTH: &str = "health: { path: /healthz, every: 20ms }";

#[tokio::test]
async fn a_server_that_says_it_is_unwell_is_left_alone_until_it_is_well() {
    let is_well = Arc::new(AtomicBool::new(true));
    let left = {
        let is_well = Arc::clone(&is_well);
        HttpServer::start(move |request| {
            let fails = request.uri().path() == "/healthz" && !is_well.load(Ordering::SeqCst);
            let answer =
                Response::builder().status(if fails { 503 } else { 200 }).body(full("left")).unwrap();
            async { answer }
        })
        .await
    };
    let right = HttpServer::named("right").await;
    for balance in ["round_robin", "least_loaded"] {
        let how = format!("balance: {balance}, {HEALTH}");
        let proxy =
            TestGateway::start(&balanced(&[left.url(), right.url()], &how), ResourceLimits::default());
        until_seen(&proxy, "left").await;
        until_seen(&proxy, "right").await;
        is_well.store(false, Ordering::SeqCst);
        // It would still answer: whoever asks it is told so.
        until_only(&proxy, "right", 20).await;
        is_well.store(true, Ordering::SeqCst);
        until_seen(&proxy, "left").await;
    }
}

#[tokio::test]
async fn a_server_that_dies_is_left_and_found_again_when_it_is_back() {
    let (left, right) = (HttpServer::named("left").await, HttpServer::named("right").await);
    let (address, policy) = (left.address, balanced(&[left.url(), right.url()], HEALTH));
    let proxy = TestGateway::start(&policy, ResourceLimits::default());
    until_seen(&proxy, "left").await;
    left.close().await;
    until_only(&proxy, "right", 20).await;
    let _left = HttpServer::start_at(address, |_| async { Response::new(full("left")) }).await;
    until_seen(&proxy, "left").await;
    until_seen(&proxy, "right").await;
}

#[tokio::test]
async fn with_all_servers_unwell_they_are_asked_all_the_same() {
    let unwell = HttpServer::start(|request| {
        let status = if request.uri().path() == "/healthz" { 503 } else { 200 };
        async move { Response::builder().status(status).body(full("served")).unwrap() }
    })
    .await;
    let (asked, mut checked) = watch::channel(0);
    let counts = HttpServer::start(move |request| {
        asked.send_modify(|count| *count += u32::from(request.uri().path() == "/healthz"));
        async { Response::builder().status(503).body(full("")).unwrap() }
    })
    .await;
    let proxy = TestGateway::start(&balanced(&[unwell.url()], HEALTH), ResourceLimits::default());
    let _other = TestGateway::start(&balanced(&[counts.url()], HEALTH), ResourceLimits::default());
    // By now the first must have been found unwell, too.
    soon(checked.wait_for(|count| *count > 5)).await.unwrap();
    assert_eq!(proxy.get("/").await.text(), "served");
}

/// A server that is not there: its port is taken, and nobody listens.
struct Nobody(socket2::Socket);

impl Nobody {
    fn new() -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        Self(socket)
    }

    fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap().as_socket().unwrap())
    }
}
