//! Forwarding headers: which client the limits count, and what the gateway forwards.

use tidegate_testkit::server::RecordingServer;

use crate::fixture::{ResourceLimits, TestGateway, hourly, policy_before};

const PEER: &str = "127.0.0.1";

/// A gateway that trusts 127.0.0.1 and 10.0.0.0/8 as proxies, or only a network that nothing uses.
fn gateway(upstream: &RecordingServer, trusts: bool, requests: u32) -> TestGateway {
    let proxies = if trusts { "[127.0.0.1/32, 10.0.0.0/8]" } else { "[192.0.2.0/24]" };
    let more = format!(
        "clients: {{ identify_by: [ip], ip: {{ trusted_proxies: {proxies} }} }}\n\
         rate_limits: {{ default: {{ {} }} }}",
        hourly(requests)
    );
    TestGateway::start(&policy_before(&[upstream], &more), ResourceLimits::default())
}

/// Headers that a client may send, and the client's address if the peer is trusted.
const FORMS: [(&str, &str); 15] = [
    ("", PEER),
    ("X-Forwarded-For: 1.1.1.1\r\n", "1.1.1.1"),
    ("x-forwarded-for:1.1.1.1\r\n", "1.1.1.1"),
    ("X-Forwarded-For: 9.9.9.9, 1.1.1.1\r\n", "1.1.1.1"),
    ("X-Forwarded-For: 9.9.9.9\r\nX-Forwarded-For: 1.1.1.1\r\n", "1.1.1.1"),
    ("X-Forwarded-For: 9.9.9.9, 1.1.1.1, 10.0.0.7\r\n", "1.1.1.1"),
    ("X-Forwarded-For: 1.1.1.1:4711\r\n", "1.1.1.1"),
    ("X-Forwarded-For: 1.1.1.1,\r\n", "1.1.1.1"),
    ("X-Forwarded-For: unknown\r\n", PEER),
    ("X-Forwarded-For: 1.1.1.1, junk\r\n", PEER),
    ("X-Forwarded-For: 10.0.0.1, 10.0.0.2\r\n", "10.0.0.1"),
    ("Forwarded: for=1.1.1.1\r\n", "1.1.1.1"),
    ("Forwarded: for=9.9.9.9, for=\"1.1.1.1:80\";proto=https\r\n", "1.1.1.1"),
    ("Forwarded: for=_hidden\r\n", PEER),
    ("X-Real-IP: 9.9.9.9\r\n", PEER),
];

fn request(headers: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a.example\r\n{headers}\r\n")
}

#[tokio::test]
async fn forwarding_headers_of_an_untrusted_peer_do_not_change_the_counted_client() {
    let upstream = RecordingServer::start().await;
    let gateway = gateway(&upstream, false, 100);
    for (turn, (headers, _)) in FORMS.iter().enumerate() {
        let remaining = gateway.send_raw(&request(headers)).await.remaining();
        assert_eq!(remaining, 99 - turn as u64, "{headers:?} was counted as another client");
    }
}

#[tokio::test]
async fn forwarding_headers_of_a_trusted_peer_name_the_rightmost_untrusted_address() {
    for (headers, client) in FORMS {
        let upstream = RecordingServer::start().await;
        let gateway = gateway(&upstream, true, 100);
        assert_eq!(gateway.send_raw(&request(headers)).await.remaining(), 99, "{headers:?}");
        // The same client, spelled plainly, finds one request used.
        let plain = if client == PEER { String::new() } else { format!("X-Forwarded-For: {client}\r\n") };
        assert_eq!(gateway.send_raw(&request(&plain)).await.remaining(), 98, "{headers:?} is {client}");
        let other = gateway.send_raw(&request("X-Forwarded-For: 8.8.8.8\r\n")).await;
        assert_eq!(other.remaining(), 99, "{headers:?} is not 8.8.8.8");
    }
}

#[tokio::test]
async fn forwarding_headers_of_an_untrusted_peer_are_replaced_by_its_address() {
    let upstream = RecordingServer::start().await;
    let gateway = gateway(&upstream, false, 100);
    let forged =
        "X-Forwarded-Host: evil\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Port: 1\r\nX-Request-Id: evil\r\n";
    for (headers, _) in FORMS {
        gateway.send_raw(&request(&format!("{headers}{forged}"))).await;
        let seen = upstream.last();
        let all = |name: &str| -> Vec<&str> {
            let named = seen.headers.iter().filter(|(header, _)| header == name);
            named.map(|(_, value)| value.as_str()).collect()
        };
        assert_eq!(all("x-forwarded-for"), [PEER], "{headers:?}");
        assert_eq!(all("forwarded"), ["for=127.0.0.1;proto=http"], "{headers:?}");
        assert_eq!(all("x-forwarded-proto"), ["http"], "{headers:?}");
        assert_eq!(all("x-forwarded-host"), ["a.example"], "{headers:?}");
        assert_eq!((all("x-real-ip"), all("x-forwarded-port")), (vec![], vec![]), "{headers:?}");
        assert!(all("x-request-id").iter().all(|id| *id != "evil" && id.len() == 32), "{headers:?}");
    }
}

/// Headers of a trusted proxy, and the forwarded `X-Forwarded-For`, `Forwarded` and `X-Forwarded-Proto`.
const REWRITTEN: [(&str, [&str; 3]); 8] = [
    ("", ["127.0.0.1", "for=127.0.0.1;proto=http", "http"]),
    (
        "X-Forwarded-For: 9.9.9.9\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Proto: https\r\n",
        ["1.1.1.1, 127.0.0.1", "for=1.1.1.1;proto=https, for=127.0.0.1;proto=http", "https"],
    ),
    (
        "X-Forwarded-For: 9.9.9.9, 2001:db8::7, 10.0.0.7\r\n",
        [
            "2001:db8::7, 10.0.0.7, 127.0.0.1",
            "for=\"[2001:db8::7]\", for=10.0.0.7, for=127.0.0.1;proto=http",
            "http",
        ],
    ),
    (
        "Forwarded: for=\"9.9.9.9, for=1.1.1.1;proto=https;host=b.example\r\n",
        ["1.1.1.1, 127.0.0.1", "for=1.1.1.1;proto=https;host=b.example, for=127.0.0.1;proto=http", "https"],
    ),
    (
        // The proxy writes one of the two, so the other may be the client's own.
        "Forwarded: for=1.1.1.1;proto=https;host=b.example\r\nX-Forwarded-For: 8.8.8.8, 1.1.1.1\r\n",
        ["1.1.1.1, 127.0.0.1", "for=1.1.1.1, for=127.0.0.1;proto=http", "http"],
    ),
    ("X-Forwarded-For: 1.1.1.1, junk\r\n", ["127.0.0.1", "for=127.0.0.1;proto=http", "http"]),
    ("Forwarded: for=_hidden\r\n", ["127.0.0.1", "for=127.0.0.1;proto=http", "http"]),
    (
        "X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Proto: https;for=9.9.9.9\r\n",
        ["1.1.1.1, 127.0.0.1", "for=1.1.1.1, for=127.0.0.1;proto=http", "https;for=9.9.9.9"],
    ),
];

#[tokio::test]
async fn forwarding_headers_of_a_trusted_peer_are_forwarded_from_the_client_on() {
    let upstream = RecordingServer::start().await;
    let gateway = gateway(&upstream, true, 100);
    for (headers, expected) in REWRITTEN {
        gateway.send_raw(&request(&format!("{headers}X-Real-IP: 9.9.9.9\r\nX-Request-Id: r1\r\n"))).await;
        let seen = upstream.last();
        let named = |name: &str| {
            let mut all = seen.headers.iter().filter(|(header, _)| header == name);
            let first = all.next().map(|(_, value)| value.as_str());
            assert_eq!(all.next(), None, "{name} is sent once");
            first
        };
        let all = ["x-forwarded-for", "forwarded", "x-forwarded-proto"].map(named);
        assert_eq!(all, expected.map(Some), "{headers:?}");
        let client = expected[0].split(", ").next();
        assert_eq!((named("x-real-ip"), named("x-request-id")), (client, Some("r1")), "{headers:?}");
    }
    gateway.send_raw(&request("X-Forwarded-For: 1.1.1.1\r\n")).await;
    assert_eq!(
        upstream.last().header("x-real-ip"),
        None,
        "a header that the client did not send is not added"
    );
}

#[tokio::test]
async fn hop_by_hop_headers_are_not_forwarded() {
    let upstream = RecordingServer::start().await;
    let gateway = gateway(&upstream, false, 100);
    let hop = "Connection: keep-alive, X-One\r\nConnection: X-Two\r\nX-One: 1\r\nX-Two: 2\r\nKeep-Alive: 5\r\n\
               Proxy-Connection: a\r\nProxy-Authorization: b\r\nTE: gzip\r\nUpgrade: h3\r\nX-Kept: yes\r\n";
    gateway.send_raw(&request(hop)).await;
    let seen = upstream.last();
    let removed = [
        "connection",
        "x-one",
        "x-two",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "te",
        "upgrade",
    ];
    for name in removed {
        assert_eq!(seen.header(name), None, "{name}");
    }
    assert_eq!((seen.method.as_str(), seen.header("x-kept")), ("GET", Some("yes")));
}

#[tokio::test]
async fn forwarding_headers_of_a_trusted_peer_that_name_two_clients_get_400() {
    let upstream = RecordingServer::start().await;
    let gateway = gateway(&upstream, true, 100);
    for headers in [
        "Forwarded: for=1.1.1.1;proto=https\r\nX-Forwarded-For: 9.9.9.9\r\n",
        "Forwarded: for=x\r\nX-Forwarded-For: 9.9.9.9\r\n",
        "Forwarded:\r\nX-Forwarded-For: 9.9.9.9\r\n",
        "Forwarded: for=127.0.0.1\r\nX-Forwarded-For: 9.9.9.9\r\n",
    ] {
        let response = gateway.send_raw(&request(headers)).await;
        assert_eq!(response.status, 400, "{headers:?}");
        assert!(
            response.text().contains("`X-Forwarded-For` and `Forwarded` name different clients"),
            "{headers:?}"
        );
    }
    assert_eq!(upstream.requests().len(), 0);
}
