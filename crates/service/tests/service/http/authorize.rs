//! `/v1/authorize`: the requests that proxies describe.

use tidegate_testkit::message::Response;

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
    assert_eq!(service.authorize(&caddy("POST", "/login", "192.0.2.7")).status, 429, "the same client");
    assert_eq!(service.authorize(&caddy("POST", "/login", "192.0.2.8")).status, 200);
    assert_eq!(service.authorize(&nginx("GET", "/login", "192.0.2.7")).status, 200);
    assert_eq!(service.authorize(&nginx("GET", "/", "192.0.2.66")).status, 403);
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

#[test]
fn authorize_delays_as_a_leaky_bucket_says() {
    let policy = "rate_limits: { default: { requests: 50, window: 1s, algorithm: leaky_bucket, burst: 5, max_wait: 1s } }";
    let service = TestService::start(policy);
    let statuses: Vec<_> =
        (0..4).map(|_| service.authorize(&nginx("GET", "/", "192.0.2.7")).status).collect();
    assert_eq!(statuses, [200; 4]);
    let peek = r#"{"request":{"method":"GET","host":"api.example.org","path":"/","peer":"192.0.2.7"}}"#;
    let wait = service.post_json("/v1/peek", peek, 200)["wait"].as_f64().expect("a number");
    assert!(wait > 0.05, "{wait}");
}
