//! Paths: the bytes that are matched are the bytes that the upstream gets.

use tidegate_testkit::server::RecordingServer;

use crate::fixture::{ResourceLimits, TestGateway, hourly, policy_before};

fn gateway(upstream: &RecordingServer, requests: u32) -> TestGateway {
    with_http(upstream, requests, "")
}

/// A limit on `/login`, and the settings of `http`.
fn with_http(upstream: &RecordingServer, requests: u32, http: &str) -> TestGateway {
    let more = format!(
        "http: {{ {http} }}\nrate_limits: {{ default: {{ {} }}, endpoints: {{ /login: {{ {} }} }} }}",
        hourly(10_000),
        hourly(requests)
    );
    TestGateway::start(&policy_before(&[upstream], &more), ResourceLimits::default())
}

#[tokio::test]
async fn path_spellings_all_count_against_the_endpoint_limit() {
    let spellings = [
        "/login",
        "//login",
        "///login",
        "/./login",
        "/login/",
        "/login?a=b",
        "/login?",
        "/%6cogin",
        "/%6C%6f%67%69%6E",
        "/x/../login",
        "/x/%2e%2e/login",
        "/%2E/login",
        "/../../login",
        "/x//../login",
        "http://a.example/login",
        "http://a.example//%6cogin?x",
    ];
    let upstream = RecordingServer::start().await;
    let gateway = gateway(&upstream, 1_000);
    for (turn, spelling) in spellings.iter().enumerate() {
        let response = gateway.get_raw(spelling).await;
        assert_eq!(response.remaining(), 999 - turn as u64, "{spelling} is counted with /login");
        let target = upstream.last().target;
        let path = target.split('?').next().map(|path| path.trim_end_matches('/'));
        assert_eq!(path, Some("/login"), "{spelling}");
    }
}

#[tokio::test]
async fn path_spellings_are_all_rejected_beyond_the_limit() {
    let upstream = RecordingServer::start().await;
    let gateway = gateway(&upstream, 1);
    assert_eq!(gateway.get_raw("/login").await.status, 200);
    for spelling in ["/login", "//login", "/%6cogin", "/./login", "/login/", "/a/../login"] {
        assert_eq!(gateway.get_raw(spelling).await.status, 429, "{spelling}");
    }
    assert_eq!(upstream.requests().len(), 1);
}

#[tokio::test]
async fn upstream_gets_the_normalised_path_that_was_matched() {
    let upstream = RecordingServer::start().await;
    let gateway = with_http(&upstream, 1_000, "encoded_slash: keep");
    let sent_and_seen = [
        ("/a/b", "/a/b"),
        ("/a%2fb", "/a%2Fb"),
        ("/a/%2e%2e/%2e%2e/etc/passwd", "/etc/passwd"),
        ("/static/..%2f..%2fetc", "/static/..%2F..%2Fetc"),
        ("/a%0d%0aX:%20b", "/a%0D%0AX:%20b"),
        ("/%e2%82%ac", "/%E2%82%AC"),
        ("/a;b=c", "/a;b=c"),
        ("/LOGIN", "/LOGIN"),
        ("/a?b=/../c&d=%2e", "/a?b=/../c&d=%2e"),
        ("/a/..", "/"),
    ];
    for (sent, seen) in sent_and_seen {
        assert_eq!(gateway.get_raw(sent).await.status, 200, "{sent}");
        assert_eq!(upstream.last().target, seen, "{sent}");
    }
}

#[tokio::test]
async fn ambiguous_path_gets_400_and_is_not_charged() {
    let upstream = RecordingServer::start().await;
    let gateway = gateway(&upstream, 1_000);
    let remaining = gateway.get_raw("/").await.remaining();
    for path in
        ["/%c0%ae%c0%ae/login", "/..;/login", "/.;x/login", "/%zz", "/%", "/a%00", "/%ff", "/%ed%a0%80"]
    {
        let response = gateway.get_raw(path).await;
        assert_eq!(response.status, 400, "{path}");
        assert!(response.text().contains("bad_path"), "{path}: {}", response.text());
    }
    assert_eq!(gateway.get_raw("/").await.remaining(), remaining - 1);
    assert_eq!(upstream.requests().len(), 2);
}
