//! A ban rejects its client however it asks.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Timestamp;
use tidegate_gateway::Gateway;
use tidegate_listener::Listener;
use tidegate_policy::{Ban, Bans, Subject};
use tidegate_telemetry::Protocol;
use tokio::sync::watch;

use super::client::{GrpcClient, descriptor, request};
use super::{OK, OVER_LIMIT};
use crate::fixture::TestService;
use crate::resp::{Reply, RespClient};

/// The upstream refuses connections: a request that the gateway admits gets 502.
const POLICY: &str = "
clients: { identify_by: [user, ip], user: { header: x-user }, ip: { trusted_proxies: [127.0.0.1] } }
upstreams: { none: { servers: ['http://127.0.0.1:1'] } }
routes: [{ path: /**, upstream: none }]
rate_limits:
  global: { requests: 1000000, window: 1m }
  default: { requests: 1000, window: 1m }
";

fn http(address: &str, method: &str, headers: &str, body: &str) -> (u16, String) {
    let path = if body.is_empty() { "/" } else { "/v1/check" };
    let response = tidegate_testkit::client::request(address, method, path, headers, body);
    (response.status, String::from_utf8_lossy(&response.body).into_owned())
}

/// Who is admitted, by the way of asking.
struct Answers<'s> {
    service: &'s TestService,
    gateway: String,
    grpc: GrpcClient,
}

impl Answers<'_> {
    /// The answers to a client at `address` with this user, if it has one.
    async fn ask(&mut self, address: &str, user: Option<&str>) -> Vec<(&'static str, bool)> {
        let client = user.map_or_else(|| format!("ip:{address}"), |user| format!("user:{user}"));
        let of_user = user.map_or_else(String::new, |user| format!("x-user: {user}\r\n"));
        let forwarded = format!("x-forwarded-for: {address}\r\n{of_user}");
        let (status, _) = http(&self.gateway, "GET", &forwarded, "");
        let mut answers = vec![("gateway", status != 403)];
        let http_address = self.service.address(Protocol::Http).to_string();
        let mut check = |name, body: String| {
            let (status, json) = http(&http_address, "POST", "content-type: application/json\r\n", &body);
            assert_eq!(status, 200, "{json}");
            let is_admitted = json.contains("\"admitted\":true");
            assert_eq!(json.contains("\"reason\":\"banned\""), !is_admitted, "{json}");
            answers.push((name, is_admitted));
        };
        let headers = user.map_or_else(String::new, |user| format!(r#","x-user":"{user}""#));
        let headers = format!(r#"{{"x-forwarded-for":"{address}"{headers}}}"#);
        let described = format!(r#"{{"method":"GET","path":"/","headers":{headers},"peer":"127.0.0.1"}}"#);
        check("HTTP, request", format!(r#"{{"request":{described}}}"#));
        for (name, rule) in [("HTTP, rule", "default"), ("HTTP, rule of all clients", "global")] {
            check(name, format!(r#"{{"rule":"{rule}","client":"{client}"}}"#));
        }
        let mut resp = RespClient::connect(self.service);
        for rule in ["default", "global"] {
            for command in ["TIDEGATE.CHECK", "TIDEGATE.PEEK"] {
                let Reply::Array(reply) = resp.call(&format!("{command} {rule} {client}")) else { panic!() };
                answers.push((command, reply[0] == Reply::Integer(1)));
            }
        }
        let rules = ["default", "global"].map(|rule| descriptor(&[("rule", rule), ("client", &client)]));
        for (name, descriptor) in ["gRPC, rule", "gRPC, rule of all clients"].into_iter().zip(rules) {
            let code = self.grpc.should_rate_limit(&request("tidegate", vec![descriptor])).await.overall_code;
            assert!([OK, OVER_LIMIT].contains(&code));
            answers.push((name, code == OK));
        }
        let mut entries = vec![("method", "GET"), ("path", "/"), ("remote_address", "127.0.0.1")];
        entries.push(("x-forwarded-for", address));
        entries.extend(user.map(|user| ("x-user", user)));
        let code = self.grpc.should_rate_limit(&request("tidegate", vec![descriptor(&entries)])).await;
        answers.push(("gRPC, request", code.overall_code == OK));
        answers
    }
}

#[tokio::test]
async fn ban_rejects_its_client_in_every_way_of_asking() {
    let service = TestService::start(POLICY);
    let listener = Listener::bind("127.0.0.1:0", 1).unwrap();
    let gateway = Gateway::builder(Arc::clone(&service.limiter)).build().unwrap();
    let (stop, stopping) = watch::channel(false);
    let threads = gateway.start(std::slice::from_ref(&listener), &stopping, Duration::from_secs(1)).unwrap();
    let grpc = GrpcClient::connect(service.address(Protocol::Grpc)).await;
    let mut answers = Answers { service: &service, gateway: listener.address().to_string(), grpc };
    let ban = |subject: &str| Ban {
        subject: Subject::parse(subject, 64).unwrap(),
        reason: String::new(),
        since: Timestamp::ZERO,
        until: None,
    };
    let bans = ["user:mallory", "ip:203.0.113.0/24", "ip:2001:db8::7/128"].map(ban);
    let banned = [("198.51.100.1", Some("mallory")), ("203.0.113.7", None), ("2001:db8::7", None)];
    let others = [("198.51.100.1", Some("alice")), ("198.51.100.7", None), ("2001:db8::8", None)];
    for (is_banned, expected) in [(false, true), (true, false)] {
        service.limiter.ban(Bans::new(if is_banned { bans.to_vec() } else { Vec::new() }));
        for (address, user) in banned {
            for (way, is_admitted) in answers.ask(address, user).await {
                assert_eq!(is_admitted, expected, "{way}: {address} {user:?}");
            }
        }
        for (address, user) in others {
            for (way, is_admitted) in answers.ask(address, user).await {
                assert!(is_admitted, "{way}: {address} {user:?}");
            }
        }
    }
    stop.send_replace(true);
    for thread in threads {
        thread.join().unwrap();
    }
}
