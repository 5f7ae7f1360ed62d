//! Real nginx servers as upstreams: killed, stopped, slowed, resetting and restarted under load, no idempotent request fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tidegate_testkit::client::RawClient;
use tidegate_testkit::process::Nginx;
use tidegate_testkit::wait::eventually;
use tokio::task::JoinSet;

use super::{GET, policy};
use crate::fixture::{ResourceLimits, TestGateway};

const CLIENTS: usize = 8;

const WORKS: &str = "return 200 ok;";
/// Closes connections without a response.
const RESETS: &str = "return 444;";
/// Serves one request in two seconds; further ones wait.
const SLOW: &str = "limit_req zone=slow burst=10000; try_files /none =200;";

fn start() -> Nginx {
    start_with(WORKS)
}

fn start_with(behaviour: &str) -> Nginx {
    let config = include_str!("nginx.conf").replace("BEHAVIOUR", behaviour);
    Nginx::start(&config, ([127, 0, 0, 1], 9).into())
}

fn gateway(servers: &[Nginx], settings: &str) -> TestGateway {
    let urls: Vec<_> = servers.iter().map(|server| format!("http://{}", server.address)).collect();
    let limit = "rate_limits: { default: { requests: 100000000, window: 1h } }";
    TestGateway::start(&policy(&urls, settings, limit), ResourceLimits::default())
}

/// Clients that send requests until they are stopped.
struct Load {
    clients: JoinSet<()>,
    is_over: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
}

impl Load {
    fn start(gateway: &TestGateway) -> Self {
        let (is_over, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (address, mut clients) = (gateway.address, JoinSet::new());
        for _ in 0..CLIENTS {
            let (is_over, served) = (Arc::clone(&is_over), Arc::clone(&served));
            clients.spawn(async move {
                let mut client = RawClient::connect(address).await;
                while !is_over.load(Ordering::SeqCst) {
                    client.send(GET.as_bytes()).await;
                    let response = client.response().await.expect("a response");
                    assert_eq!(response.status, 200, "{}", response.text());
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        Self { clients, is_over, served }
    }

    /// Waits for `count` more responses.
    async fn serve(&self, count: usize) {
        let until = self.served.load(Ordering::SeqCst) + count;
        eventually("requests are served", || self.served.load(Ordering::SeqCst) >= until).await;
    }

    async fn stop(self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.clients.join_all().await;
    }
}

#[tokio::test]
async fn nginx_killed_under_load_fails_no_idempotent_request() {
    let mut servers = vec![start(), start(), start()];
    let gateway = gateway(&servers, "");
    let load = Load::start(&gateway);
    load.serve(500).await;
    servers[0].signal("-KILL");
    load.serve(2_000).await;
    assert!(gateway.upstream().servers[0].ejected_for.is_some());
    load.stop().await;
    servers.clear();
}

#[tokio::test]
async fn nginx_stopped_under_load_fails_no_idempotent_request() {
    let servers = vec![start(), start(), start()];
    let settings =
        "timeouts: { request: 200ms }, retry: { on: [connect, reset, timeout] }, eject: { after: 1 }";
    let gateway = gateway(&servers, settings);
    let load = Load::start(&gateway);
    load.serve(500).await;
    servers[1].signal("-STOP");
    load.serve(2_000).await;
    assert!(gateway.upstream().servers[1].ejected_for.is_some());
    load.stop().await;
    servers[1].signal("-CONT");
}

#[tokio::test]
async fn nginx_that_resets_or_is_slow_fails_no_idempotent_request() {
    for behaviour in [RESETS, SLOW] {
        let servers = vec![start(), start_with(behaviour), start()];
        let settings =
            "timeouts: { request: 200ms }, retry: { on: [connect, reset, timeout] }, eject: { after: 1 }";
        let gateway = gateway(&servers, settings);
        let load = Load::start(&gateway);
        load.serve(1_000).await;
        assert!(gateway.upstream().servers[1].ejected_for.is_some(), "{behaviour}");
        load.stop().await;
    }
}

#[tokio::test]
async fn nginx_rolling_restart_under_load_fails_no_idempotent_request() {
    restart_each_in_turn(3).await;
}

#[tokio::test]
#[ignore = "long: cargo xtask scorecard upstreams"]
async fn long_nginx_rolling_restarts_under_load_fail_no_idempotent_request() {
    restart_each_in_turn(100).await;
}

async fn restart_each_in_turn(turns: usize) {
    let mut servers = vec![start(), start(), start()];
    let gateway = gateway(&servers, "");
    let load = Load::start(&gateway);
    for turn in 0..turns {
        load.serve(300).await;
        let old = servers.remove(0);
        let address = old.address;
        let restarted = tokio::task::spawn_blocking(move || {
            if turn % 2 == 1 {
                old.signal("-KILL");
                drop(old);
            } else {
                old.quit();
            }
            let config = include_str!("nginx.conf").replace("BEHAVIOUR", WORKS);
            Nginx::start_at(address, &config, ([127, 0, 0, 1], 9).into())
        });
        servers.push(restarted.await.expect("no panic"));
    }
    load.serve(1_000).await;
    load.stop().await;
}
