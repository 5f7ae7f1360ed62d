//! Names of headers that upstreams may take for others, and names that change what was counted.

use tidegate_testkit::server::RecordingServer;

use super::{over_both, over_http1, send_http2, with_keys};
use crate::fixture::{ResourceLimits, TestGateway, hourly, policy_before};

/// A gateway that trusts the proxy at this address.
fn behind(upstream: &RecordingServer, proxy: &str) -> TestGateway {
    let more = format!(
        "clients: {{ ip: {{ trusted_proxies: {proxy} }} }}\nrate_limits: {{ default: {{ {} }} }}",
        hourly(100)
    );
    TestGateway::start(&policy_before(&[upstream], &more), ResourceLimits::default())
}

#[tokio::test]
async fn header_names_with_unusual_characters_are_not_forwarded() {
    let upstream = RecordingServer::start().await;
    for gateway in [behind(&upstream, "192.0.2.1"), behind(&upstream, "127.0.0.1")] {
        let lines = [
            ("X_API_Key", "k"),
            ("x_forwarded_for", "1.1.1.1"),
            ("X-Kept", "yes"),
            ("_", "a"),
            ("x-original-a_b", "c"),
            ("X.API.Key", "k"),
            ("x.forwarded.for", "1.1.1.1"),
            ("x-user~id", "bob"),
        ];
        for response in over_both(&gateway, &lines).await {
            assert_eq!(response.status, 200);
            let seen = upstream.last();
            let unusual: Vec<_> =
                seen.headers.iter().filter(|(name, _)| name.contains(['_', '.', '~'])).collect();
            assert!(unusual.is_empty(), "{unusual:?}");
            assert_eq!(seen.header("x-kept"), Some("yes"));
        }
    }
}

#[tokio::test]
async fn header_names_with_underscores_are_forwarded_if_the_policy_or_the_route_keeps_them() {
    let upstream = RecordingServer::start().await;
    let gateway = |http: &str, of_route: &str| {
        let policy = format!(
            "upstreams: {{ app: {{ servers: [http://{}] }} }}\nhttp: {{ underscore_headers: {http} }}\n\
             routes: [{{ path: /, upstream: app{of_route} }}, {{ path: /other, upstream: app }}]\n\
             rate_limits: {{ default: {{ {} }} }}",
            upstream.address,
            hourly(100)
        );
        TestGateway::start(&policy, ResourceLimits::default())
    };
    for (http, of_route, expected) in [
        ("drop", "", None),
        ("keep", "", Some("a")),
        ("drop", ", http: { underscore_headers: keep }", Some("a")),
        ("keep", ", http: { underscore_headers: drop }", None),
    ] {
        let gateway = gateway(http, of_route);
        let sent = [("x_own", "a"), ("te", "trailers"), ("trailer", "x_sum")];
        assert_eq!(send_http2(&gateway, &sent, Some(&[("x_sum", "7")])).await.status, 200);
        let seen = upstream.last();
        assert_eq!(seen.header("x_own"), expected, "{http}{of_route}");
        assert_eq!(seen.trailers, expected.map_or("", |_| "x_sum: 7"), "{http}{of_route}");
    }
}

/// A rule for each way in which a policy can name a header.
const USES: &str = "
clients: { api_key: { header: api_key }, tiers: { file: keys.csv }, fingerprint: { headers: [x_device] } }
rate_limits:
  default: { requests: 100, window: 1h }
  tiers: { known: { requests: 100, window: 1h } }
  rules:
    - { name: match, match: { header: { x_match: a } }, requests: 100, window: 1h }
    - { name: index, match: { when: \"request.headers['X_Index'] == 'a'\" }, requests: 100, window: 1h }
    - { name: in, match: { when: \"'x_in' in request.headers\" }, requests: 100, window: 1h }
    - { name: field, match: { when: \"request.headers.x_field == 'a'\" }, requests: 100, window: 1h }
    - { name: cost, cost: { header: x_cost }, requests: 100, window: 1h }
";

#[tokio::test]
async fn header_names_with_underscores_that_the_policy_uses_are_read_and_forwarded() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_files(&policy_before(&[&upstream], USES), &super::KEYS);
    let always = [("api_key", "k"), ("x_device", "d"), ("x_other", "o")];
    for rule in ["match", "index", "in", "field"] {
        let name = format!("x_{rule}");
        let response = over_http1(&gateway, &[&always[..], &[(&name, "a")]].concat()).await;
        let applied = response.header("ratelimit-policy").unwrap_or_default();
        let expected = format!(
            r#""tier:known";q=100;w=3600, "{rule}";q=100;w=3600, "cost";q=100;qu="cost-units";w=3600"#
        );
        assert_eq!(applied, expected);
        let seen = upstream.last();
        assert_eq!((seen.header(&name), seen.header("x_other")), (Some("a"), None));
        assert_eq!((seen.header("api_key"), seen.header("x_device")), (Some("k"), Some("d")));
    }
    assert_eq!(over_http1(&gateway, &[("api_key", "other"), ("x_cost", "9")]).await.remaining(), 91);
}

#[tokio::test]
async fn connection_header_that_names_an_identity_or_forwarding_header_is_rejected() {
    let upstream = RecordingServer::start().await;
    let clients = ", user: { header: X-User }, tenant: { header: X-Tenant }, cookie: { name: session }, \
                   ip: { trusted_proxies: 127.0.0.1 }";
    let gateway = with_keys(&upstream, clients);
    for name in [
        "x-api-key",
        "x-user",
        "x-tenant",
        "cookie",
        "user-agent",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-prefix",
        "forwarded",
        "x-real-ip",
    ] {
        for connection in
            [name.to_owned(), format!("keep-alive , {}", name.to_uppercase()), format!("close,\t{name},")]
        {
            let (seen, lines) =
                (upstream.requests().len(), [("Connection", connection.as_str()), (name, "k")]);
            let response = over_http1(&gateway, &lines).await;
            assert_eq!(response.status, 400, "{connection}");
            assert!(response.text().contains(&format!("`{name}`")), "{}", response.text());
            assert_eq!(upstream.requests().len(), seen);
        }
    }
    for connection in ["keep-alive", "X-Own, close", "authorization", "te", ""] {
        assert_eq!(over_http1(&gateway, &[("Connection", connection)]).await.status, 200, "{connection}");
    }
}

#[tokio::test]
async fn headers_that_rewrite_the_url_are_forwarded_from_trusted_proxies_only() {
    let names = [
        "x-original-url",
        "x-rewrite-url",
        "x-original-host",
        "x-original-uri",
        "x-original-method",
        "x-forwarded-prefix",
        "x-forwarded-server",
        "x-forwarded-uri",
    ];
    let lines = names.map(|name| (name, "/admin"));
    let upstream = RecordingServer::start().await;
    let (untrusted, trusted) = (behind(&upstream, "192.0.2.1"), behind(&upstream, "127.0.0.1"));
    for response in over_both(&untrusted, &lines).await {
        assert_eq!(response.status, 200);
        let seen = upstream.last();
        for name in names {
            assert_eq!(seen.header(name), None, "{name}");
        }
    }
    for response in over_both(&trusted, &lines).await {
        assert_eq!(response.status, 200);
        let seen = upstream.last();
        for name in names {
            assert_eq!(seen.header(name), Some("/admin"), "{name}");
        }
    }
}

#[tokio::test]
async fn other_spellings_of_an_identity_header_with_underscores_are_not_forwarded() {
    let upstream = RecordingServer::start().await;
    let clients =
        ", api_key: { header: my_api_key }, user: { header: my_user }, ip: { trusted_proxies: 127.0.0.1 }";
    let gateway = with_keys(&upstream, clients);
    for name in ["my-api-key", "my_api-key", "my-user"] {
        for response in over_both(&gateway, &[(name, "k"), ("my_api_key", "k")]).await {
            assert_eq!(response.status, 200);
            let seen = upstream.last();
            assert_eq!((seen.header(name), seen.header("my_api_key")), (None, Some("k")), "{name}");
        }
    }
}

/// Names that no trailer may have.
const TRAILERS: [(&str, &str); 10] = [
    ("x-original-a_b", "a"),
    ("x_api_key", "k"),
    ("x_forwarded_for", "1.1.1.1"),
    ("x-api-key", "k"),
    ("x-user", "ann"),
    ("x-original-url", "/admin"),
    ("x-rewrite-url", "/admin"),
    ("x-forwarded-prefix", "/admin"),
    ("x-forwarded-for", "1.1.1.1"),
    ("x-sum", "7"),
];

#[tokio::test]
async fn trailers_with_names_of_identity_or_forwarding_headers_are_not_forwarded() {
    let upstream = RecordingServer::start().await;
    let clients = ", user: { header: X-User }, ip: { trusted_proxies: 127.0.0.1 }";
    let gateway = with_keys(&upstream, clients);
    let names = TRAILERS.map(|(name, _)| name).join(", ");
    let lines = [("te", "trailers"), ("trailer", names.as_str())];
    assert_eq!(send_http2(&gateway, &lines, Some(&TRAILERS)).await.status, 200);
    assert_eq!(upstream.last().trailers, "x-sum: 7");
    let lines = TRAILERS.map(|(name, value)| format!("{name}: \t{value} \r\n")).concat();
    let request = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: te\r\nTrailer: {names}\r\n\
         Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n{lines}\r\n"
    );
    assert_eq!(gateway.send_raw(&request).await.status, 200);
    assert_eq!(upstream.last().trailers, "x-sum: 7");
}
