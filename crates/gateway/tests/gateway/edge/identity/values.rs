//! White space around values, values given twice, and values that are lists.

use tidegate_testkit::server::RecordingServer;

use super::{assert_rejected, over_both, over_http1, over_http2, send_http2, with_keys};
use crate::fixture::{ResourceLimits, TestGateway, hourly, policy_before};

#[tokio::test]
async fn api_key_with_white_space_around_it_is_one_client_over_both_protocols() {
    let upstream = RecordingServer::start().await;
    let gateway = with_keys(&upstream, "");
    let mut remaining = 100;
    for spaces in 0..=20 {
        let padding = " \t".repeat(spaces);
        let key = format!("{padding}k{padding}");
        for response in over_both(&gateway, &[("x-api-key", &key)]).await {
            remaining -= 1;
            assert_eq!((response.status, response.remaining()), (200, remaining), "{key:?}");
        }
    }
    assert_eq!(gateway.get_raw("/").await.remaining(), 99, "nothing was counted by address");
}

#[tokio::test]
async fn banned_api_key_with_white_space_around_it_is_rejected() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    gateway.ban("api_key:k");
    for key in ["k", "k ", " k", "\tk\t", "k \t "] {
        for response in over_both(&gateway, &[("x-api-key", key)]).await {
            assert_eq!(response.status, 403, "{key:?}");
        }
    }
    assert_eq!(over_http2(&gateway, &[("x-api-key", "k k")]).await.status, 200, "white space within a value");
}

#[tokio::test]
async fn trailer_values_over_http2_are_forwarded_without_white_space_around_them() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    let response = send_http2(
        &gateway,
        &[("te", "trailers"), ("trailer", "x-sum, x-other")],
        Some(&[("x-sum", " \t7 "), ("x-other", "a b")]),
    )
    .await;
    assert_eq!(response.status, 200);
    let seen = upstream.last();
    let mut lines: Vec<_> = seen.trailers.split("\r\n").collect();
    lines.sort_unstable();
    assert_eq!(lines, ["x-other: a b", "x-sum: 7"]);
}

#[tokio::test]
async fn identity_header_given_twice_is_rejected_and_named() {
    let upstream = RecordingServer::start().await;
    let clients =
        ", user: { header: X-User }, tenant: { header: X-Tenant }, ip: { trusted_proxies: 127.0.0.1 }";
    let gateway = with_keys(&upstream, clients);
    for header in ["x-api-key", "x-user", "x-tenant"] {
        assert_rejected(&gateway, &upstream, &[(header, "k"), (header, "k")], header).await;
        assert_rejected(&gateway, &upstream, &[(header, "k"), ("accept", "*/*"), (header, "")], header).await;
    }
}

#[tokio::test]
async fn token_header_given_twice_is_rejected_and_named() {
    let upstream = RecordingServer::start().await;
    let more = format!(
        "clients: {{ identify_by: [user, ip], user: {{ jwt: {{ secret_file: jwt.secret }} }} }}\n\
         rate_limits: {{ default: {{ {} }} }}",
        hourly(100)
    );
    let files = [("jwt.secret", "a secret of more than sixteen bytes")];
    let gateway = TestGateway::with_files(&policy_before(&[&upstream], &more), &files);
    let lines = [("authorization", "Bearer a.b.c"), ("authorization", "Bearer a.b.c")];
    assert_rejected(&gateway, &upstream, &lines, "authorization").await;
    assert_eq!(over_http1(&gateway, &lines[..1]).await.status, 200);
}

#[tokio::test]
async fn api_key_with_comma_is_rejected_and_named() {
    let upstream = RecordingServer::start().await;
    let gateway = with_keys(&upstream, ", api_key: { header: X-Key }");
    for key in ["k,other", "k, other", ",k", "k,"] {
        assert_rejected(&gateway, &upstream, &[("x-key", key)], "x-key").await;
    }
}

#[tokio::test]
async fn other_headers_given_twice_are_forwarded() {
    let upstream = RecordingServer::start().await;
    let gateway =
        with_keys(&upstream, ", identify_by: [api_key, cookie, fingerprint, ip], cookie: { name: session }");
    let twice = [
        ("accept-language", "de"),
        ("accept-language", "en"),
        ("x-other", "1"),
        ("x-other", "2"),
        ("authorization", "Basic YTpi"),
        ("authorization", "Basic YTpi"),
    ];
    for (response, expected) in over_both(&gateway, &twice).await.iter().zip([99, 98]) {
        assert_eq!((response.status, response.remaining()), (200, expected));
    }
    let all: Vec<_> = upstream.last().headers.into_iter().filter(|(name, _)| name == "x-other").collect();
    assert_eq!(all.len(), 2);
    let split = [("cookie", "a=1"), ("cookie", "session=s"), ("x-api-key", "k")];
    assert_eq!(over_http2(&gateway, &split).await.remaining(), 99, "the key counts");
    assert_eq!(upstream.last().header("cookie"), Some("a=1; session=s"));
    assert_eq!(over_http2(&gateway, &split[..2]).await.remaining(), 99, "the cookie counts");
    assert_eq!(over_http1(&gateway, &[("cookie", "session=s")]).await.remaining(), 98);
}
