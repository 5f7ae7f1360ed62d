//! `/v1/authorize`: the requests that proxies describe.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::body::Incoming;
use tidegate_telemetry::Protocol;
use tidegate_testkit::client::http2;
use tidegate_testkit::message::Response;
use tidegate_testkit::wait::{eventually, eventually_blocking};
use tokio::task::JoinHandle;

use crate::fixture::TestService;

const POLICY: &str = "
bans: { networks: [192.0.2.66/32] }
clients: { identify_by: [api_key, ip], api_key: { header: X-Api-Key, verify: none } }
rate_limits:
  default: { requests: 100, window: 1m, algorithm: fixed_window }
  endpoints:
    POST /login: { requests: 2, window: 1m, algorithm: fixed_window }
";

fn nginx(method: &str, uri: &str, address: &str) -> String {
    format!(
        "X-Original-Method: {method}\r\nX-Original-URI: {uri}\r\nX-Original-Host: api.example.org\r\nX-Real-IP: {address}\r\n"
    )
}

fn caddy(method: &str, uri: &str, addresses: &str) -> String {
    format!(
        "X-Forwarded-Method: {method}\r\nX-Forwarded-Uri: {uri}\r\nX-Forwarded-Host: api.example.org\r\n\
         X-Forwarded-Proto: https\r\nX-Forwarded-For: {addresses}\r\n"
    )
}

impl TestService {
    fn authorize(&self, headers: &str) -> Response {
        self.http("GET", "/v1/authorize", headers, "")
    }
}

#[test]
fn authorize_passes_and_rejects_with_the_limit_headers() {
    let service = TestService::start(POLICY);
    let login = nginx("POST", "/login", "192.0.2.7");
    for remaining in [1, 0] {
        let passed = service.authorize(&login);
        assert_eq!((passed.status, passed.remaining()), (200, remaining), "{passed:?}");
        assert!(passed.body.is_empty());
    }
    let rejected = service.authorize(&login);
    assert_eq!(rejected.status, 429, "{rejected:?}");
    assert_eq!(rejected.remaining(), 0);
    assert!(rejected.header("retry-after").is_some());
    assert_eq!(rejected.json()["error"], "rate_limit_exceeded", "the body of the gateway");
    assert_eq!(rejected.header("x-tidegate-body"), None);
    for (asked, request) in [("header", &*login), ("header", "X-Real-IP: 192.0.2.7\r\n"), ("no", &*login)] {
        let refused = service.authorize(&format!("{request}X-Tidegate-Body: {asked}\r\n"));
        let body = (asked == "header").then(|| refused.text().trim_end().to_owned());
        assert!(refused.status >= 400 && refused.header("x-tidegate-body") == body.as_deref(), "{refused:?}");
    }
    assert_eq!(service.authorize(&caddy("POST", "/login", "192.0.2.7")).status, 429, "the same client");
    assert_eq!(service.authorize(&caddy("POST", "/login", "192.0.2.8")).status, 200);
    assert_eq!(service.authorize(&nginx("GET", "/login", "192.0.2.7")).status, 200);
    assert_eq!(service.authorize(&nginx("GET", "/", "192.0.2.66")).status, 403);
}

/// Caddy and HAProxy pass such a header on, and many services read it as the key.
#[test]
fn authorize_key_in_a_header_with_underscores_is_rejected() {
    let request = |name: &str| format!("{}{name}: k\r\n", caddy("GET", "/", "192.0.2.7"));
    let service = TestService::start(POLICY);
    for name in ["X_Api_Key", "x-api_key"] {
        let rejected = service.authorize(&request(name));
        assert_eq!(rejected.status, 400, "{rejected:?}");
        assert!(rejected.json()["message"].as_str().is_some_and(|text| text.contains("`x-api-key`")));
    }
    for name in ["X-Api-Key", "X_Other"] {
        assert_eq!(service.authorize(&request(name)).status, 200, "{name}");
    }
    let kept = TestService::start(&format!("http: {{ underscore_headers: keep }}\n{POLICY}"));
    assert_eq!(kept.authorize(&request("X_Api_Key")).status, 200, "the operator allows it");
}

#[test]
fn authorize_no_spelling_of_a_path_avoids_a_limit() {
    let service = TestService::start(POLICY);
    let status = |uri: &str| service.authorize(&nginx("POST", uri, "192.0.2.7")).status;
    assert_eq!((status("/login"), status("/login?x=1")), (200, 200));
    for uri in ["//login", "/./login", "/a/../login", "/%6cogin", "/login/", "/login?x#y", "/login;a=b"] {
        let status = status(uri);
        assert!(matches!(status, 429 | 400), "{uri}: {status}");
    }
    for uri in ["http://api.example.org/login", "login", "/a/..;/login", "/%00", "/%zz", "/a%2flogin", "*"] {
        assert_eq!(status(uri), 400, "{uri}");
    }
}

#[test]
fn authorize_header_that_servers_confuse_with_an_identity_header_is_rejected() {
    let (drops, keeps) = (
        TestService::start(POLICY),
        TestService::start(&format!("http: {{ underscore_headers: keep }}{POLICY}")),
    );
    for name in ["X_Api_Key", "x_api-key", "X.Api.Key"] {
        for statements in [nginx("GET", "/", "192.0.2.7"), caddy("GET", "/", "192.0.2.7")] {
            let headers = format!("{statements}{name}: k\r\n");
            let rejected = drops.authorize(&headers);
            assert_eq!(rejected.status, 400, "{name}");
            assert!(rejected.text().contains(&name.to_lowercase()), "{rejected:?}");
            assert_eq!(keeps.authorize(&headers).status, 200, "{name}");
        }
    }
    let other = format!("{}X_Other: a\r\nX.Other: b\r\n", nginx("GET", "/", "192.0.2.7"));
    assert_eq!(drops.authorize(&other).status, 200, "it identifies nobody");
}

#[test]
fn authorize_ambiguous_statement_is_rejected() {
    let service = TestService::start(POLICY);
    let base = [nginx("GET", "/", "192.0.2.7"), caddy("GET", "/", "192.0.2.7")];
    let forged = [
        "X-Original-URI: /free\r\n",
        "X-Forwarded-Uri: /free\r\n",
        "X-Original-Method: OPTIONS\r\n",
        "X-Forwarded-Method: OPTIONS\r\n",
        "X-Original-Host: other.example.org\r\n",
        "X-Forwarded-Host: other.example.org\r\n",
        "X-Real-IP: 198.51.100.1\r\n",
        "X-Forwarded-For: 198.51.100.1, unknown\r\n",
    ];
    for headers in &base {
        for forged in forged {
            for both in [format!("{forged}{headers}"), format!("{headers}{forged}")] {
                let response = service.authorize(&both);
                // The client's line of X-Forwarded-For comes before the line of the proxy.
                let is_before = forged.starts_with("X-Forwarded-For") && both.starts_with(forged);
                let expected = if is_before && headers == &base[1] { 200 } else { 400 };
                assert_eq!(response.status, expected, "{both}: {response:?}");
            }
        }
    }
    assert_eq!(service.authorize("").status, 400);
    assert!(service.authorize("").text().contains("x-original-method"));
}

#[test]
fn authorize_addresses_that_a_client_adds_are_not_believed() {
    let service = TestService::start(POLICY);
    for forged in ["198.51.100.1, ", "198.51.100.2, ", "198.51.100.3, "] {
        service.authorize(&caddy("POST", "/login", &format!("{forged}192.0.2.7")));
    }
    let status = service.authorize(&caddy("POST", "/login", "198.51.100.4, 192.0.2.7")).status;
    assert_eq!(status, 429, "every request counts for the peer of the proxy");
}

#[test]
fn authorize_identity_headers_are_those_of_the_original_client() {
    let service = TestService::start(POLICY);
    let login = |headers: &str| {
        service.authorize(&format!("{}{headers}", nginx("POST", "/login", "192.0.2.7"))).status
    };
    assert_eq!((login("X-Api-Key: a\r\n"), login("X-Api-Key: a\r\n")), (200, 200));
    assert_eq!((login("X-Api-Key: a\r\n"), login("X-Api-Key: b\r\n")), (429, 200));
    assert_eq!(login("X-Api-Key: c\r\nX-Api-Key: d\r\n"), 400, "two keys");
    assert_eq!(login("X-Api-Key: c,d\r\n"), 400);
}

const IDENTITY: &str = "
clients: { identify_by: [user, ip], user: { header: X-User-Id }, ip: { trusted_proxies: [PROXIES] } }
rate_limits:
  default: { requests: 2, window: 1m, algorithm: fixed_window }
";

/// The remaining requests of a user whom a proxy names, at an address that it states.
fn remaining(service: &TestService, user: &str, address: &str) -> u64 {
    let response = service.authorize(&format!("{}X-User-Id: {user}\r\n", nginx("GET", "/", address)));
    assert!(matches!(response.status, 200 | 429), "{response:?}");
    response.remaining()
}

#[test]
fn authorize_user_header_counts_if_the_asking_proxy_is_trusted() {
    let service = TestService::start(&IDENTITY.replace("PROXIES", "127.0.0.1/32"));
    assert_eq!(remaining(&service, "bob", "192.0.2.7"), 1);
    assert_eq!(remaining(&service, "bob", "192.0.2.8"), 0, "the same user at another address");
    assert_eq!(remaining(&service, "eve", "192.0.2.8"), 1, "another user");
    // Without a user it is the stated address that counts, not that of the proxy.
    for (address, expected) in [("192.0.2.7", 1), ("192.0.2.7", 0), ("192.0.2.8", 1)] {
        let response = service.authorize(&nginx("GET", "/", address));
        assert_eq!(response.remaining(), expected, "{address}: {response:?}");
    }
    let peek = service.post_json("/v1/peek", r#"{"rule":"default","client":"ip:127.0.0.1","cost":0}"#, 200);
    assert_eq!(peek["remaining"], 2, "nothing counts for the proxy");
}

#[test]
fn authorize_user_header_is_ignored_if_the_asking_proxy_is_not_trusted() {
    let service = TestService::start(&IDENTITY.replace("PROXIES", "10.0.0.0/8"));
    assert_eq!(remaining(&service, "bob", "192.0.2.7"), 1);
    assert_eq!(remaining(&service, "eve", "192.0.2.7"), 0, "a user of choice is no new client");
    assert_eq!(remaining(&service, "bob", "192.0.2.8"), 1, "the stated address counts");
}

#[test]
fn authorize_addresses_before_the_stated_one_are_not_believed_if_only_the_proxy_is_trusted() {
    let service = TestService::start(&IDENTITY.replace("PROXIES", "127.0.0.1/32"));
    for (forged, expected) in [("198.51.100.1, ", 1), ("198.51.100.2, ", 0), ("127.0.0.1, ", 0)] {
        let response = service.authorize(&caddy("GET", "/", &format!("{forged}192.0.2.7")));
        assert_eq!(response.remaining(), expected, "{forged}: {response:?}");
    }
}

/// A request each hour, in order of arrival.
pub(super) const SLOW: &str = "rate_limits: { default: { requests: 1, window: 1h, algorithm: leaky_bucket, burst: 2000, max_wait: 2000h } }";

impl TestService {
    /// How long the next request of a client would wait, in hours.
    fn hours_to_wait(&self, address: &str) -> f64 {
        let request = format!(
            r#"{{"request":{{"method":"GET","host":"api.example.org","path":"/","peer":"{address}"}}}}"#
        );
        let wait = self.post_json("/v1/peek", &request, 200)["wait"].as_f64().expect("a number");
        wait / 3_600.0
    }

    fn begin_authorize(&self, address: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address(Protocol::Http)).expect("a connection");
        let head = format!("GET /v1/authorize HTTP/1.1\r\nHost: a\r\n{}\r\n", nginx("GET", "/", address));
        stream.write_all(head.as_bytes()).expect("a live connection");
        stream
    }
}

/// Requests of a client that arrive together, on one connection.
async fn begin_authorize_together(
    service: &TestService,
    address: &str,
    count: usize,
) -> Vec<JoinHandle<hyper::Result<http::Response<Incoming>>>> {
    let connection = http2(service.address(Protocol::Http)).await;
    let begin = |_| {
        let request = Request::get("http://a/v1/authorize")
            .header("x-original-method", "GET")
            .header("x-original-uri", "/")
            .header("x-original-host", "api.example.org")
            .header("x-real-ip", address)
            .body(Full::new(Bytes::new()))
            .unwrap();
        let mut connection = connection.clone();
        tokio::spawn(async move { connection.send_request(request).await })
    };
    (0..count).map(begin).collect()
}

#[test]
fn authorize_delays_as_a_leaky_bucket_says_and_refunds_if_the_client_leaves() {
    let service = TestService::start(SLOW);
    assert_eq!(service.authorize(&nginx("GET", "/", "192.0.2.7")).status, 200);
    let mut delayed = service.begin_authorize("192.0.2.7");
    let is_charged = || service.hours_to_wait("192.0.2.7") > 1.5;
    eventually_blocking("the second request is charged", is_charged);
    // The worker has a single thread: an answer without a delay would have been written before that of the peek.
    delayed.set_nonblocking(true).expect("a live socket");
    let read = delayed.read(&mut [0; 1]);
    assert_eq!(read.expect_err("no answer").kind(), ErrorKind::WouldBlock);
    drop(delayed);
    eventually_blocking("the charge is refunded", || !is_charged());
}

#[tokio::test]
async fn authorize_more_delayed_requests_of_a_client_than_the_maximum_are_rejected_and_refunded() {
    let service = TestService::start(SLOW);
    let address = "192.0.2.1";
    assert_eq!(service.authorize(&nginx("GET", "/", address)).status, 200);
    // 1,000 delayed requests of a client are the maximum.
    let mut delayed = Vec::new();
    for _ in 0..40 {
        delayed.extend(begin_authorize_together(&service, address, 25).await);
    }
    eventually("all are charged", || service.hours_to_wait(address) > 1000.5).await;
    let rejected = service.authorize(&nginx("GET", "/", address));
    assert_eq!(rejected.status, 503, "{rejected:?}");
    assert_eq!(rejected.json()["error"], "too_many_waiting");
    assert!(rejected.header("retry-after").is_some());
    eventually("it is refunded", || service.hours_to_wait(address) < 1001.5).await;
    for rejected in begin_authorize_together(&service, address, 20).await {
        assert_eq!(rejected.await.unwrap().unwrap().status(), 503);
    }
    eventually("all that arrived together are refunded", || service.hours_to_wait(address) < 1001.5).await;
    assert!(delayed.iter().all(|request| !request.is_finished()));
    assert_eq!(service.authorize(&nginx("GET", "/", "192.0.2.2")).status, 200, "another client");
}

/// Tokens without `exp`, signed with [`SECRET`].
const ANN: &str =
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4ifQ.e6DKsshciTsQeTEBx-EQsgYCQrefw7DpTVxue2PLJ8c";
const BOB: &str =
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJib2IifQ.yd1FD8zNBvWK1jcfWzC5cNICl5ivs8rUHBEb4yIO0NI";
const SECRET: &[u8] = b"a secret of more than sixteen bytes";

fn start_with_tokens(on_invalid: &str) -> TestService {
    let policy = format!(
        "clients: {{ identify_by: [user, ip], user: {{ jwt: {{ secret_file: jwt.secret }} }}, on_invalid: {on_invalid} }}\n\
         rate_limits: {{ default: {{ requests: 4, window: 1m, algorithm: fixed_window }} }}"
    );
    let files: BTreeMap<_, _> = [("jwt.secret".to_owned(), SECRET.to_vec())].into_iter().collect();
    TestService::start_with_files(&policy, &files)
}

#[test]
fn authorize_and_check_count_every_spelling_of_a_token() {
    let service = start_with_tokens("forward");
    let authorize = |value: &str| {
        service.authorize(&format!("{}Authorization: {value}\r\n", nginx("GET", "/", "192.0.2.7")))
    };
    for (left, spelling) in [(3, "Bearer TOKEN"), (2, "X TOKEN"), (1, "X y, Bearer TOKEN")] {
        let passed = authorize(&spelling.replace("TOKEN", ANN));
        assert_eq!((passed.status, passed.remaining()), (200, left), "{spelling}");
    }
    let check = |value: &str| {
        let headers = format!(r#"{{"authorization":"{value}"}}"#);
        let body =
            format!(r#"{{"request":{{"method":"GET","path":"/","headers":{headers},"peer":"192.0.2.9"}}}}"#);
        service.post("/v1/check", &body)
    };
    assert_eq!(check(&format!("1234567{ANN}=x")).json()["remaining"], 0);
    assert_eq!(authorize(&format!("Bearer {ANN}x")).status, 429);
    for two in [format!("{ANN}, {BOB}"), [ANN; 5].join(" ")] {
        assert_eq!((authorize(&two).status, check(&two).status), (400, 400), "{two}");
    }
}

#[test]
fn authorize_with_an_invalid_token_is_unauthorized_if_the_policy_says_so() {
    for on_invalid in ["reject", "remove"] {
        let service = start_with_tokens(on_invalid);
        let headers = format!("{}Authorization: Bearer {ANN}\r\n", nginx("GET", "/", "192.0.2.7"));
        let rejected = service.authorize(&headers);
        assert_eq!(rejected.status, 401, "{rejected:?}");
        assert_eq!(rejected.header("www-authenticate"), Some("Bearer error=\"invalid_token\""));
        assert_eq!(rejected.json()["error"], "unauthorized");
        assert_eq!(service.authorize(&nginx("GET", "/", "192.0.2.7")).remaining(), 3);
    }
}
