//! A gateway that stops or hands over returns its leased units to the others.

use std::path::Path;

use tidegate_testkit::client::request;
use tidegate_testkit::process::{PolicyFile, RedisServer};
use tidegate_testkit::server::echo;

use crate::program::{serve, serve_at};

const REQUESTS: usize = 300;

fn policy(redis: &str) -> PolicyFile {
    let policy = PolicyFile::new(&format!(
        "upstreams: {{ api: {{ servers: ['http://{}'] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n\
         store: {{ url: '{redis}', secret_file: store.secret, nodes: 2, coordination: lease, timeout: 1s }}\n\
         rate_limits: {{ default: {{ requests: {REQUESTS}, window: 24h, algorithm: fixed_window }} }}\n",
        echo()
    ));
    std::fs::write(policy.beside("store.secret"), "the secret of all nodes").unwrap();
    policy
}

/// How many of more requests than the limit are admitted.
fn admitted(address: &str) -> usize {
    let statuses = (0..REQUESTS + 5).map(|_| request(address, "GET", "/", "", "").status);
    statuses.filter(|status| *status == 200).count()
}

#[test]
fn gateway_that_stops_leaves_its_unspent_units_to_the_next() {
    let redis = RedisServer::start();
    for round in 1..=2 {
        let policy = policy(&redis.url());
        let mut gateway = serve(&["--config", &policy.path()]);
        assert_eq!(request(&gateway.address, "GET", "/", "", "").status, 200, "round {round}");
        gateway.signal("-TERM");
        assert_eq!(gateway.wait().code(), Some(0));
    }
    let policy = policy(&redis.url());
    let last = serve(&["--config", &policy.path()]);
    assert_eq!(admitted(&last.address), REQUESTS - 2);
}

#[test]
fn gateway_that_hands_over_leaves_its_unspent_units_to_its_successor() {
    let redis = RedisServer::start();
    let policy = policy(&redis.url());
    let socket =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("shared-stop-{}.socket", std::process::id()));
    let args = ["--config", &policy.path(), "--takeover", socket.to_str().unwrap()];
    let mut first = serve(&args);
    assert_eq!(request(&first.address, "GET", "/", "", "").status, 200);
    let second = serve_at(&first.address, &args);
    assert_eq!(first.wait().code(), Some(0), "the old process exits");
    assert_eq!(admitted(&second.address), REQUESTS - 1);
}

#[test]
fn gateway_with_leased_units_stops_while_redis_hangs() {
    let redis = RedisServer::start();
    let policy = policy(&redis.url());
    let mut gateway = serve(&["--config", &policy.path()]);
    assert_eq!(request(&gateway.address, "GET", "/", "", "").status, 200);
    redis.stop();
    gateway.signal("-TERM");
    assert_eq!(gateway.wait().code(), Some(0));
    redis.resume();
}
