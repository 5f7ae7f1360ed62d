//! Several gateways with one Redis: limits, bans, overrides, lock-outs and resets are shared.

use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use tidegate_core::TimeSpan;
use tidegate_store::{Clock, SystemClock};
use tidegate_testkit::client::{Connection, read_head, request};
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::{PolicyFile, RedisServer, Tidegate};
use tidegate_testkit::server::echo;
use tidegate_testkit::wait::eventually_blocking;

use super::admin::AdminGateway;
use crate::program::{run, serve};

/// Ten requests an hour for each API key and user; lock-out after three rejections at `/login`.
fn policy(redis: &str) -> PolicyFile {
    let policy = PolicyFile::new(&format!(
        "upstreams: {{ api: {{ servers: ['http://{}'] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n\
         admin: {{ listen: '127.0.0.1:0' }}\n\
         clients: {{ identify_by: [api_key, ip], api_key: {{ verify: none }} }}\n\
         store: {{ url: '{redis}', secret_file: store.secret, timeout: 1s }}\n\
         rate_limits:\n  default: {{ requests: 10, window: 1h, algorithm: token_bucket }}\n\
         \x20 endpoints:\n    /login: {{ requests: 1, window: 1h, penalty: {{ after: 3, for: 1h }}, algorithm: token_bucket }}\n",
        echo()
    ));
    std::fs::write(policy.beside("store.secret"), "the secret of all nodes").unwrap();
    policy
}

/// Two gateways with their own state folders.
fn two_gateways(redis: &str) -> [AdminGateway; 2] {
    [(); 2].map(|()| AdminGateway::serve(policy(redis)))
}

fn get(gateway: &AdminGateway, path: &str, key: &str) -> u16 {
    request(&gateway.server.address, "GET", path, &format!("X-API-Key: {key}\r\n"), "").status
}

fn redis_cli(redis: &RedisServer, args: &[&str]) -> String {
    let url = redis.url();
    let output = Command::new("redis-cli").args(["-u", &url, "--no-raw"]).args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn two_gateways_admit_one_limit_in_total() {
    let redis = RedisServer::start();
    let gateways = two_gateways(&redis.url());
    let statuses: Vec<_> = (0..20).map(|turn| get(&gateways[turn % 2], "/", "sk_live_shared")).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 10, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 10, "{statuses:?}");
}

/// A request in progress: the upstream has responded, and a byte of the body is missing.
struct OpenRequest {
    stream: BufReader<TcpStream>,
}

impl OpenRequest {
    fn start(gateway: &AdminGateway, key: &str) -> Self {
        let mut stream = Connection::open(&gateway.server.address).unwrap().into_stream();
        let head =
            format!("POST /export HTTP/1.1\r\nHost: test\r\nX-API-Key: {key}\r\nContent-Length: 1\r\n\r\n");
        stream.get_mut().write_all(head.as_bytes()).unwrap();
        let response = read_head(&mut stream).unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        Self { stream }
    }

    fn finish(mut self) {
        self.stream.get_mut().write_all(b"x").unwrap();
        self.stream.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn two_gateways_share_the_permits_of_a_concurrency_limit() {
    let redis = RedisServer::start();
    let gateways = [(); 2].map(|()| {
        let policy = policy(&redis.url());
        let rule =
            "  rules: [{ name: exports, match: { path: /export }, concurrent: 2, coordination: central }]\n";
        let text = std::fs::read_to_string(policy.path()).unwrap() + rule;
        std::fs::write(policy.path(), text).unwrap();
        AdminGateway::serve(policy)
    });
    let [one, two] = &gateways;
    let first = OpenRequest::start(one, "sk_live_shared");
    let second = OpenRequest::start(two, "sk_live_shared");
    for gateway in &gateways {
        assert_eq!(get(gateway, "/export", "sk_live_shared"), 429, "two are in progress");
        assert_eq!(get(gateway, "/export", "sk_live_other"), 200, "another client");
    }
    first.finish();
    eventually_blocking("the permit is available on the other gateway", || {
        get(two, "/export", "sk_live_shared") == 200
    });
    second.finish();
}

#[test]
fn ban_on_one_gateway_holds_on_the_other_and_after_redis_lost_it() {
    let redis = RedisServer::start();
    let [one, two] = two_gateways(&redis.url());
    let ban = r#"{"subject":"api_key:sk_live_banned","for":"1d"}"#;
    assert_eq!(one.send("POST", "/v1/bans", ban).status, 201);
    eventually_blocking("the ban holds on the other gateway", || get(&two, "/", "sk_live_banned") == 403);
    redis_cli(&redis, &["FLUSHALL"]);
    let three = AdminGateway::serve(policy(&redis.url()));
    eventually_blocking("a new gateway learns the ban", || get(&three, "/", "sk_live_banned") == 403);
    let two = two.restart();
    assert_eq!(get(&two, "/", "sk_live_banned"), 403, "the other gateway saved the ban");
    assert_eq!(two.send("DELETE", "/v1/bans", r#"{"subject":"api_key:sk_live_banned"}"#).status, 200);
    eventually_blocking("the removal reaches the first gateway", || get(&one, "/", "sk_live_banned") != 403);
}

#[test]
fn bans_and_overrides_changed_before_redis_returned_with_older_data_stay_changed() {
    /// Copies all keys of a database to another one.
    const COPY: &str = "redis.call('SELECT', ARGV[2]) redis.call('FLUSHDB') redis.call('SELECT', ARGV[1]) \
        for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('COPY', key, key, 'DB', ARGV[2]) end";
    let redis = RedisServer::start();
    let [one, two] = two_gateways(&redis.url());
    let narrow = r#"{"client":"api_key:sk_live_narrow","rule":"default","requests":3}"#;
    assert_eq!(one.send("POST", "/v1/overrides", narrow).status, 201);
    let statuses: Vec<_> = (0..4).map(|_| get(&one, "/", "sk_live_narrow")).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    redis_cli(&redis, &["EVAL", COPY, "0", "0", "1"]);
    let narrow = r#"{"client":"api_key:sk_live_narrow","rule":"default"}"#;
    assert_eq!(one.send("DELETE", "/v1/overrides", narrow).status, 200);
    let ban = r#"{"subject":"api_key:sk_live_banned","for":"1d"}"#;
    assert_eq!(two.send("POST", "/v1/bans", ban).status, 201);
    eventually_blocking("the ban holds on the other gateway", || get(&one, "/", "sk_live_banned") == 403);
    redis_cli(&redis, &["EVAL", COPY, "0", "1", "0"]);
    eventually_blocking("the override has ended", || get(&one, "/", "sk_live_narrow") == 200);
    let three = AdminGateway::serve(policy(&redis.url()));
    eventually_blocking("a new gateway learns the ban", || get(&three, "/", "sk_live_banned") == 403);
    let overrides = three.send("GET", "/v1/overrides", "").json();
    assert_eq!(overrides["overrides"].as_array().unwrap().len(), 0, "{overrides}");
}

#[test]
fn violations_on_two_gateways_lock_a_client_out_on_both() {
    let redis = RedisServer::start();
    let [one, two] = two_gateways(&redis.url());
    assert_eq!(get(&one, "/login", "sk_live_guess"), 200);
    assert_eq!(get(&one, "/login", "sk_live_guess"), 429);
    let locked_out = |gateway: &AdminGateway| {
        let bans = gateway.send("GET", "/v1/bans", "").json();
        !bans["bans"].as_array().unwrap().is_empty()
    };
    assert!(!locked_out(&one) && !locked_out(&two));
    // Each gateway rejects: the third violation in total locks out, wherever it happens.
    assert_eq!(get(&two, "/login", "sk_live_guess"), 429);
    eventually_blocking("three violations lock out on both", || {
        let _ = get(&one, "/login", "sk_live_guess");
        locked_out(&one) && locked_out(&two)
    });
    assert_eq!(one.send("DELETE", "/v1/bans", r#"{"subject":"api_key:sk_live_guess"}"#).status, 200);
    eventually_blocking("the lock-out is lifted on both", || !locked_out(&one) && !locked_out(&two));
}

#[test]
fn reset_on_one_gateway_ends_the_lock_out_on_both() {
    let redis = RedisServer::start();
    let [one, two] = two_gateways(&redis.url());
    let locked_out = |gateway: &AdminGateway| {
        let bans = gateway.send("GET", "/v1/bans", "").json();
        !bans["bans"].as_array().unwrap().is_empty()
    };
    eventually_blocking("the client is locked out on both", || {
        let _ = get(&one, "/login", "sk_live_guess");
        locked_out(&one) && locked_out(&two)
    });
    let reset = r#"{"client":"api_key:sk_live_guess","rule":"endpoint:/login"}"#;
    assert_eq!(two.send("POST", "/v1/reset", reset).status, 200);
    eventually_blocking("the lock-out has ended on both", || !locked_out(&one) && !locked_out(&two));
    assert_eq!(get(&one, "/login", "sk_live_guess"), 200, "its counter is reset too");
}

#[test]
fn reset_and_override_on_one_gateway_apply_on_the_other() {
    let redis = RedisServer::start();
    let [one, two] = two_gateways(&redis.url());
    let spend = |count: usize| {
        (0..count).map(|_| get(&two, "/", "sk_live_vip")).filter(|status| *status == 200).count()
    };
    assert_eq!(spend(12), 10);
    assert_eq!(one.send("POST", "/v1/reset", r#"{"client":"api_key:sk_live_vip"}"#).status, 200);
    eventually_blocking("the reset client is admitted", || get(&two, "/", "sk_live_vip") == 200);
    let more = r#"{"client":"api_key:sk_live_vip","rule":"default","requests":1000}"#;
    assert_eq!(one.send("POST", "/v1/overrides", more).status, 201);
    let count = || two.send("GET", "/v1/overrides", "").json()["overrides"].as_array().unwrap().len();
    eventually_blocking("the other gateway lists the override", || count() == 1);
    assert!(spend(50) >= 49, "the override applies on the other gateway");
}

#[test]
fn redis_contains_no_api_key_and_no_key_without_expiry() {
    let redis = RedisServer::start();
    let [one, two] = two_gateways(&redis.url());
    assert_eq!(get(&one, "/", "sk_live_first"), 200);
    assert_eq!(get(&two, "/login", "sk_live_second"), 200);
    let ban = r#"{"subject":"api_key:sk_live_third","reason":"sk_live_third leaked"}"#;
    assert_eq!(one.send("POST", "/v1/bans", ban).status, 201);
    let more = r#"{"client":"api_key:sk_live_fourth","rule":"default","requests":1000}"#;
    assert_eq!(one.send("POST", "/v1/overrides", more).status, 201);
    eventually_blocking("the ban is shared", || get(&two, "/", "sk_live_third") == 403);
    let keys = redis_cli(&redis, &["--scan"]);
    assert!(keys.contains("{shared}records"), "{keys}");
    for key in keys.lines().map(|line| line.trim_matches('"')) {
        let ttl = redis_cli(&redis, &["TTL", key]);
        assert!(!ttl.contains("-1"), "{key} never expires");
        let value = redis_cli(&redis, &["DUMP", key]);
        assert!(!key.contains("sk_live") && !value.contains("sk_live"), "{key}: {value}");
    }
}

#[test]
fn gateway_starts_and_serves_without_redis() {
    let server: Tidegate = serve(&["--config", &policy(&format!("redis://{}", free_address())).path()]);
    let line = server.wait_for_log("\"redis_unavailable\"");
    assert!(line.contains("\"event\":\"redis_unavailable\""), "{line}");
    server.wait_for_log("store_unavailable");
    assert_eq!(request(&server.address, "GET", "/", "X-API-Key: sk_live_any\r\n", "").status, 200);
}

#[test]
fn status_and_metrics_show_the_shared_store() {
    let redis = RedisServer::start();
    let [one, two] = two_gateways(&redis.url());
    assert_eq!(get(&one, "/", "sk_live_any"), 200);
    let status = || one.send("GET", "/v1/status", "").json()["store"].clone();
    eventually_blocking("both nodes are known", || status()["nodes"] == 2 && status()["mode"] == "normal");
    let (is_success, text, _) = two.command(&["status"]);
    assert!(is_success && text.contains("  store        redis://127.0.0.1:"), "{text}");
    let metrics = one.send("GET", "/metrics", "").text();
    for line in
        ["redis_connection_errors 0", "tidegate_store_mode{mode=\"normal\"} 1", "tidegate_store_nodes 2"]
    {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let replies = metrics.lines().find_map(|line| line.strip_prefix("tidegate_store_latency_seconds_count "));
    assert!(replies.unwrap().parse::<u64>().unwrap() > 0);
}

#[test]
fn error_replies_of_redis_are_logged_counted_and_shown() {
    let redis = RedisServer::start();
    let gateway = AdminGateway::serve(policy(&redis.url()));
    eventually_blocking("a connection", || {
        gateway.send("GET", "/v1/status", "").json()["store"]["available"] == true
    });
    redis_cli(&redis, &["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(get(&gateway, "/", "sk_live_any"), 200, "decided by its failure mode");
    let line = gateway.server.wait_for_log("\"redis_error_reply\"");
    assert!(line.contains("OOM") && line.contains("on_store_failure"), "{line}");
    let store = gateway.send("GET", "/v1/status", "").json()["store"].clone();
    assert!(store["error_replies"].as_u64().unwrap() > 0, "{store}");
    assert!(store["last_error"]["text"].as_str().unwrap().starts_with("OOM"), "{store}");
    let (_, text, _) = gateway.command(&["status"]);
    assert!(text.contains("Redis replied ") && text.contains("s ago: OOM"), "{text}");
    let metrics = gateway.send("GET", "/metrics", "").text();
    assert!(!metrics.contains("tidegate_store_error_replies_total 0\n"), "{metrics}");
    assert!(metrics.contains("redis_connection_errors 0"), "replies are not connection errors: {metrics}");
}

#[test]
fn store_of_the_command_line_replaces_that_of_the_policy() {
    let redis = RedisServer::start();
    let wrong = policy(&format!("redis://{}", free_address()));
    let server = serve(&["--config", &wrong.path(), "--store", &redis.url()]);
    assert_eq!(request(&server.address, "GET", "/", "X-API-Key: sk_live_any\r\n", "").status, 200);
    assert!(server.wait_for_log("store_available").contains(&redis.url()));
    let invalid = run(&["serve", "--store", "http://127.0.0.1"]);
    let text = String::from_utf8_lossy(&invalid.stderr);
    assert!(
        !invalid.status.success()
            && text.contains("--store: invalid store URL: ")
            && !text.contains("invalid --store"),
        "{text}"
    );
}

#[test]
fn reset_without_redis_fails_at_once_with_a_hint() {
    let gateway = AdminGateway::serve(policy(&format!("redis://{}", free_address())));
    let is_in_fallback = || gateway.send("GET", "/v1/status", "").json()["store"]["mode"] == "fallback";
    eventually_blocking("fallback without a request", is_in_fallback);
    let clock = SystemClock::new();
    let began = clock.now();
    let (is_success, _, error) = gateway.command(&["reset", "ip:192.0.2.1"]);
    assert!(!is_success && error.contains("the store is unavailable\n  hint: "), "{error}");
    // Ten seconds of retries would be too long.
    let elapsed = clock.now().since(began);
    assert!(elapsed < TimeSpan::from_secs(4), "{elapsed}");
}

#[test]
fn gateway_with_another_secret_is_reported() {
    let redis = RedisServer::start();
    let other = policy(&redis.url());
    std::fs::write(other.beside("store.secret"), "the secret of another fleet").unwrap();
    let [one, two] = [policy(&redis.url()), other].map(AdminGateway::serve);
    for gateway in [&one, &two] {
        let line = gateway.server.wait_for_log("store_secret_differs");
        assert!(line.contains("\"event\":\"store_secret_differs\""), "{line}");
        let (_, text, _) = gateway.command(&["status"]);
        assert!(text.contains(": 1 node; 1 node has another secret"), "{text}");
    }
}

#[test]
fn store_is_in_the_start_message_and_in_the_equivalent_policy() {
    let redis = RedisServer::start();
    let server = serve(&["--upstream", &format!("http://{}", echo()), "--store", &redis.url()]);
    for line in [format!("\nstore:\n  url: '{}'\n", redis.url()), format!("\n  store      {}\n", redis.url())]
    {
        assert!(server.startup_output.contains(&line), "{}", server.startup_output);
    }
    let server = serve(&["--upstream", &format!("http://{}", echo()), "--store", "memory"]);
    assert_eq!(request(&server.address, "GET", "/", "", "").status, 200);
}

#[test]
fn doctor_takes_the_store_of_a_policy() {
    let redis = RedisServer::start();
    let output = run(&["doctor", "--config", &policy(&redis.url()).path()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with(&redis.url()) && text.contains("responds"), "{text}");
    let output = run(&["doctor"]);
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("<URL>"));
}

#[test]
fn store_that_does_not_answer_is_never_logged_as_available() {
    let redis = RedisServer::start();
    let url = redis.url().replace("redis://", "rediss://");
    let server = serve(&["--config", &policy(&url).path()]);
    let first = server.wait_for_log("\"event\":\"store_");
    assert!(first.contains("\"event\":\"store_unavailable\""), "{first}");
}
