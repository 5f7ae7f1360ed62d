//! Spellings of paths and hosts that upstream servers treat as equal.

use tidegate_testkit::message::Response;
use tidegate_testkit::server::RecordingServer;

use crate::fixture::{ResourceLimits, TestGateway, hourly, policy_before};

/// Spellings that some upstream server reads as `/api/login`.
const SPELLINGS: [&str; 52] = [
    "/api/login",
    "/api/login/",
    "/api/login?next=/",
    "/api/login#top",
    "/API/LOGIN",
    "/Api/Login",
    "/api/logiN",
    "/api/lOgIn/",
    "/%41PI/login",
    "/api/%6cogin",
    "/api/%4C%4F%47IN",
    "/%61%70%69/%6C%6F%67%69%6E",
    "//api/login",
    "/api//login",
    "///api///login",
    "/./api/login",
    "/api/./login",
    "/api/login/.",
    "/x/../api/login",
    "/api/x/../login",
    "/../api/login",
    "/api/login/x/..",
    "/%2e/api/login",
    "/x/%2e%2E/api/login",
    "/api%2Flogin",
    "/api%2flogin",
    "/API%2FLogin",
    "%2Fapi/login",
    "/api/login%2F",
    "/x%2F..%2Fapi/login",
    "/x/..%2Fapi%2Flogin",
    "/api%2F%2e%2Flogin",
    "/api%5Clogin",
    "/api%5clogin",
    "/x%5C..%5Capi/login",
    "/api\\login",
    "/api/login%0A",
    "/api/login%0a/",
    "/api%0D/login",
    "/api/login%09",
    "/api/login%7F",
    "/api/login%00",
    "/api/login;x=1",
    "/api/login;",
    "/api;v=2/login",
    "/;a/api/login",
    "/api/LOGIN;jsessionid=A",
    "/api/login/;x",
    "/x/..;/api/login",
    "/x/..%3B/api/login",
    "/api/login%3Bx",
    "http://a.example/API/login",
];

fn with_http(upstream: &RecordingServer, http: &str) -> TestGateway {
    let more = format!(
        "http: {{ {http} }}\nrate_limits: {{ default: {{ {} }}, endpoints: {{ /api/login: {{ {} }} }} }}",
        hourly(10_000),
        hourly(1_000)
    );
    TestGateway::start(&policy_before(&[upstream], &more), ResourceLimits::default())
}

/// Sends every spelling and requires each to be counted or to get 400. Returns how many were counted.
async fn send_all_spellings(upstream: &RecordingServer, gateway: &TestGateway) -> u64 {
    let mut remaining = 1_000;
    for spelling in SPELLINGS {
        let before = upstream.requests().len();
        let response = gateway.get_raw(spelling).await;
        if response.status == 400 {
            assert_eq!(upstream.requests().len(), before, "{spelling}");
        } else {
            assert_eq!(response.status, 200, "{spelling}");
            assert_eq!(response.remaining(), remaining - 1, "{spelling} counts against /api/login");
            remaining -= 1;
        }
    }
    1_000 - remaining
}

#[tokio::test]
async fn endpoint_limit_counts_any_spelling_or_responds_400() {
    let upstream = RecordingServer::start().await;
    let gateway = with_http(&upstream, "");
    assert_eq!(send_all_spellings(&upstream, &gateway).await, 33);
}

#[tokio::test]
async fn endpoint_limit_with_encoded_slash_kept_or_decoded_counts_any_spelling() {
    let upstream = RecordingServer::start().await;
    let kept = with_http(&upstream, "encoded_slash: keep");
    assert_eq!(send_all_spellings(&upstream, &kept).await, 48);
    let decoded = with_http(&upstream, "encoded_slash: decode");
    assert_eq!(send_all_spellings(&upstream, &decoded).await, 43);
}

#[tokio::test]
async fn legitimate_path_reaches_the_upstream_unchanged() {
    let upstream = RecordingServer::start().await;
    let gateway = with_http(&upstream, "");
    for path in [
        "/users?q=a%2Fb&r=%00",
        "/users/?",
        "/caf%C3%A9/%E2%82%AC",
        "/time/12:30",
        "/@user/repo",
        "/c++/a+b",
        "/~user/",
        "/1,2,3",
        "/a=b&c=d",
        "/(x)/'y'/!z/$1/*",
        "/Users/JaneDoe;v=1.2/Photo-1_final.JPG",
        "/.well-known/acme-challenge/x..y",
        "/a%20b%3Fc%23d%25e",
        "/api/login/history",
        "/API/loginx",
    ] {
        let response = gateway.get_raw(path).await;
        assert_eq!((response.status, limit(&response)), (200, Some("10000")), "{path} has no endpoint");
        assert_eq!(upstream.last().target, path);
    }
}

#[tokio::test]
async fn encoded_slash_by_default_gets_400_that_names_the_key() {
    let upstream = RecordingServer::start().await;
    let gateway = with_http(&upstream, "");
    for (path, reason) in [
        (
            "/a%2fb",
            "`%2F` in the path is not allowed; set `http.encoded_slash: keep` or `decode` to allow it",
        ),
        (
            "/a%5Cb",
            "`%5C` in the path is not allowed; set `http.encoded_slash: keep` or `decode` to allow it",
        ),
        ("/a%0ab", "`%0A` in the path is not allowed; set `http.encoded_slash: keep` to allow it"),
        ("/a%7F", "`%7F` in the path is not allowed; set `http.encoded_slash: keep` to allow it"),
    ] {
        let response = gateway.get_raw(path).await;
        assert_eq!(response.status, 400, "{path}");
        assert!(response.text().contains(reason), "{path}: {}", response.text());
    }
    let decoding = with_http(&upstream, "encoded_slash: decode");
    let response = decoding.get("/a%01").await;
    assert_eq!(response.status, 400);
    assert!(response.text().contains("`http.encoded_slash: keep`"), "{}", response.text());
    assert!(upstream.requests().is_empty());
}

#[tokio::test]
async fn encoded_slash_is_forwarded_as_kept_or_decoded() {
    let upstream = RecordingServer::start().await;
    let (kept, decoded) =
        (with_http(&upstream, "encoded_slash: keep"), with_http(&upstream, "encoded_slash: decode"));
    for (sent, as_kept, as_decoded) in [
        ("/a%2Fb", "/a%2Fb", "/a/b"),
        ("/a%5cb?c=%2F", "/a%5Cb?c=%2F", "/a/b?c=%2F"),
        ("/a/..%2F..%2Fb", "/a/..%2F..%2Fb", "/b"),
    ] {
        assert_eq!(kept.get(sent).await.status, 200, "{sent}");
        assert_eq!(upstream.last().target, as_kept);
        assert_eq!(decoded.get(sent).await.status, 200, "{sent}");
        assert_eq!(upstream.last().target, as_decoded);
    }
    assert_eq!(kept.get("/a%0Ab").await.status, 200);
    assert_eq!(upstream.last().target, "/a%0Ab");
}

/// Two upstreams and a route to each, with `http` settings of their own.
async fn routed(files: &str, rest: &str) -> (RecordingServer, RecordingServer, TestGateway) {
    let (one, two) = (RecordingServer::start().await, RecordingServer::start().await);
    let policy = format!(
        "
upstreams:
  files: {{ servers: ['http://{}'] }}
  rest: {{ servers: ['http://{}'] }}
routes:
  - {{ path: /files/**, upstream: files, http: {{ {files} }} }}
  - {{ path: /**, upstream: rest, http: {{ {rest} }} }}
rate_limits:
  default: {{ {} }}
  endpoints: {{ /files/secret: {{ {} }}, /login: {{ {} }} }}
",
        one.address,
        two.address,
        hourly(10_000),
        hourly(100),
        hourly(200),
    );
    let gateway = TestGateway::start(&policy, ResourceLimits::default());
    (one, two, gateway)
}

fn limit(response: &Response) -> Option<&str> {
    response.header("x-ratelimit-limit")
}

#[tokio::test]
async fn encoded_slash_of_a_route_overrides_the_policy() {
    let (files, rest, gateway) = routed("encoded_slash: keep", "").await;
    assert_eq!(gateway.get_raw("/files/a%2Fb").await.status, 200);
    assert_eq!(files.last().target, "/files/a%2Fb");
    assert_eq!(gateway.get_raw("/a%2Fb").await.status, 400);
    // The limits of the reading that leaves the route apply too.
    let response = gateway.get_raw("/files/..%2Flogin").await;
    assert_eq!((response.status, limit(&response)), (200, Some("200")));
    assert_eq!((files.requests().len(), rest.requests().len()), (2, 0));
}

#[tokio::test]
async fn encoded_slash_decoded_into_a_route_that_does_not_decode_gets_400() {
    let (files, rest, gateway) = routed("", "encoded_slash: decode").await;
    let response = gateway.get_raw("/files%2Fsecret").await;
    assert_eq!(response.status, 400);
    assert!(response.text().contains("another route"), "{}", response.text());
    assert_eq!(gateway.get_raw("/a%2Fb").await.status, 200);
    assert_eq!(rest.last().target, "/a/b");
    assert!(files.requests().is_empty());

    let (files, _, gateway) = routed("encoded_slash: decode", "encoded_slash: decode").await;
    let response = gateway.get_raw("/files%2Fsecret").await;
    assert_eq!((response.status, limit(&response)), (200, Some("100")));
    assert_eq!(files.last().target, "/files/secret");
}

#[tokio::test]
async fn path_case_sensitive_counts_cases_separately_and_ignores_parameters() {
    let (_, _, gateway) = routed("path_case: sensitive", "").await;
    for (path, expected) in [
        ("/files/secret", "100"),
        ("/files/secret;x", "100"),
        ("/files/SECRET", "10000"),
        ("/files/SECRET;x", "10000"),
        ("/LOGIN", "200"),
    ] {
        assert_eq!(limit(&gateway.get_raw(path).await), Some(expected), "{path}");
    }
}

#[tokio::test]
async fn path_case_insensitive_limit_leaves_routes_and_forwarded_paths_case_sensitive() {
    let (files, rest, gateway) = routed("", "").await;
    let response = gateway.get_raw("/FILES/Secret").await;
    assert_eq!(limit(&response), Some("100"), "the limit does not depend on case");
    assert_eq!(rest.last().target, "/FILES/Secret");
    assert!(files.requests().is_empty());
}

#[tokio::test]
async fn host_spellings_have_the_same_route_and_conditions() {
    let (api, other) = (RecordingServer::start().await, RecordingServer::start().await);
    let policy = format!(
        "
upstreams:
  api: {{ servers: ['http://{}'] }}
  other: {{ servers: ['http://{}'] }}
routes:
  - {{ host: api.x, upstream: api }}
  - {{ host: '*.api.x', upstream: api }}
  - {{ host: '[2001:db8::1]', upstream: api }}
  - {{ upstream: other }}
rate_limits:
  default: {{ {} }}
  rules:
    - {{ name: api, match: {{ when: \"request.host == 'api.x' || request.host.endsWith('.api.x')\" }}, {} }}
    - {{ name: v6, match: {{ when: \"request.host == '[2001:db8::1]'\" }}, {} }}
",
        api.address,
        other.address,
        hourly(10_000),
        hourly(100),
        hourly(100),
    );
    let gateway = TestGateway::start(&policy, ResourceLimits::default());
    let send = async |host: &str| gateway.send_raw(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
    for host in [
        "api.x",
        "API.x",
        "Api.X:8080",
        "api.x.",
        "API.X.:80",
        "api.x:",
        "V1.api.x",
        "v1.API.x.",
        "[2001:db8::1]",
        "[2001:DB8::1]:80",
    ] {
        let response = send(host).await;
        assert_eq!((response.status, limit(&response)), (200, Some("100")), "{host}");
        assert_eq!(api.last().header("host"), Some(host), "the client's spelling is forwarded");
    }
    assert!(other.requests().is_empty());
    for host in
        ["api.x..", ".api.x", "api..x", "api.x:80:80", "a]b", "[::1", "[::1]x", "[x]", "a:b", "%61pi.x"]
    {
        assert_eq!(send(host).await.status, 400, "{host}");
    }
    assert!(other.requests().is_empty());
    let absolute = gateway.send_raw("GET http://API.X./ HTTP/1.1\r\nHost: other\r\n\r\n").await;
    assert_eq!((absolute.status, limit(&absolute)), (200, Some("100")));
}
