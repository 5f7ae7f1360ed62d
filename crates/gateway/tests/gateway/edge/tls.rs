//! TLS towards clients: ALPN selects the protocol, and failed handshakes close the connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use rustls::{ClientConfig, HandshakeKind, RootCertStore};
use tidegate_testkit::certificate::Certificate;
use tidegate_testkit::client::{connect_tls, http2_over, roots, tls_config};
use tidegate_testkit::server::{RecordingServer, Reply};
use tidegate_testkit::wait::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;

use crate::fixture::{
    CertificateResolver, ResourceLimits, TestGateway, hourly, policy_before, presentable, ticking,
};

/// A gateway with TLS, and the roots with which clients trust it.
struct Tls {
    gateway: TestGateway,
    roots: RootCertStore,
    certificate: Arc<CertificateResolver>,
}

impl Tls {
    fn before(upstream: &RecordingServer, bounds: ResourceLimits) -> Self {
        let made = Certificate::for_name("a.example");
        let limits = format!("rate_limits: {{ default: {{ {} }} }}", hourly(1_000));
        let (gateway, certificate) =
            TestGateway::start_tls(&made, &policy_before(&[upstream], &limits), bounds);
        Self { gateway, roots: roots(&[&made]), certificate }
    }

    /// A handshake that offers `protocols`.
    async fn connect(&self, protocols: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
        self.handshake(&self.client(protocols)).await
    }

    async fn handshake(&self, client: &Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.gateway.address).await?;
        connect_tls(stream, "a.example", client).await
    }

    /// The same for HTTP/1.1, by a client whose system reads little ahead.
    async fn connect_slowly(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4 << 10)?;
        let stream = socket.connect(self.gateway.address).await?;
        connect_tls(stream, "a.example", &self.client(&["http/1.1"])).await
    }

    /// A client that remembers sessions.
    fn client(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        tls_config(self.roots.clone(), protocols)
    }

    /// Asserts that a valid client gets a response over HTTP/1.1.
    async fn assert_responds(&self) {
        let kind = self.get_with(&self.client(&["http/1.1"])).await;
        assert_eq!(kind, Some(HandshakeKind::Full));
    }

    async fn get_with(&self, client: &Arc<ClientConfig>) -> Option<HandshakeKind> {
        let mut stream = self.handshake(client).await.expect("a handshake");
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
            .await
            .expect("TLS");
        let mut response = String::new();
        within("a response", stream.read_to_string(&mut response)).await.expect("an end with close_notify");
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        stream.get_ref().1.handshake_kind()
    }
}

#[tokio::test]
async fn tls_client_that_offers_h2_gets_http2() {
    let upstream = RecordingServer::start().await;
    let tls = Tls::before(&upstream, ResourceLimits::default());
    let stream = tls.connect(&["h2", "http/1.1"]).await.expect("a handshake");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (client, _connection) = http2_over(stream).await;
    let mut client = within("capacity", client.ready()).await.expect("capacity");
    let request = Request::get("https://a.example/").body(()).expect("a request");
    let (response, _): (_, h2::SendStream<Bytes>) = client.send_request(request, true).expect("a stream");
    assert_eq!(within("a response", response).await.expect("a response").status(), 200);
    let seen = upstream.last();
    assert_eq!((seen.header("x-forwarded-proto"), seen.header("host")), (Some("https"), Some("a.example")));
    assert_eq!(seen.header("forwarded"), Some("for=127.0.0.1;proto=https"));
}

#[tokio::test]
async fn tls_client_that_offers_http1_or_nothing_gets_http1() {
    let upstream = RecordingServer::start().await;
    let tls = Tls::before(&upstream, ResourceLimits::default());
    let offers: [(&[&str], Option<&[u8]>); 3] =
        [(&["http/1.1"], Some(b"http/1.1")), (&["h3", "http/1.1"], Some(b"http/1.1")), (&[], None)];
    for (offered, agreed) in offers {
        let mut stream = tls.connect(offered).await.expect("a handshake");
        assert_eq!(stream.get_ref().1.alpn_protocol(), agreed, "{offered:?}");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").await.expect("TLS");
        let mut start = [0; 15];
        within("a response", stream.read_exact(&mut start)).await.expect("a response");
        assert_eq!(&start, b"HTTP/1.1 200 OK");
    }
}

#[tokio::test]
async fn tls_client_that_offers_only_unknown_protocols_gets_an_alert() {
    let upstream = RecordingServer::start().await;
    let tls = Tls::before(&upstream, ResourceLimits::default());
    let error = tls.connect(&["spdy/1"]).await.expect_err("no protocol");
    assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");
    tls.assert_responds().await;
}

#[tokio::test]
async fn client_without_tls_gets_no_http_response() {
    let upstream = RecordingServer::start().await;
    let tls = Tls::before(&upstream, ResourceLimits::default());
    let garbage: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0; 100],
        // A record longer than the maximum, and one of an unknown version.
        b"\x16\x03\x01\xff\xff\x01\x00\xff\xfb",
        b"\x16\x02\x00\x00\x05\x01\x00\x00\x01\x00",
    ];
    for bytes in garbage {
        let mut client = tls.gateway.client().await;
        client.send(bytes).await;
        let received = client.rest().await;
        assert!(!received.starts_with(b"HTTP"), "{:?} to {bytes:?}", String::from_utf8_lossy(&received));
        // At most an alert.
        assert!(received.len() <= 7, "{received:?} to {bytes:?}");
    }
    eventually("the connections are closed", || tls.gateway.connections() == 0).await;
    tls.assert_responds().await;
    assert_eq!(upstream.requests().len(), 1);
}

#[tokio::test]
async fn tls_handshake_that_stalls_or_is_too_slow_times_out() {
    let upstream = RecordingServer::start().await;
    let bounds =
        ResourceLimits { handshake_timeout: Duration::from_millis(300), ..ResourceLimits::default() };
    let tls = Tls::before(&upstream, bounds);
    let mut silent = tls.gateway.client().await;
    assert_eq!(silent.rest().await, b"", "no bytes from the client");
    let mut stalls = tls.gateway.client().await;
    stalls.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").await;
    assert_eq!(stalls.rest().await, b"", "half a hello");
    let mut drips = tls.gateway.client().await;
    let dripping = async {
        drips.send(b"\x16\x03\x01\x02\x00").await;
        while drips.send(b"\x01").await {
            // The time between two bytes of a slow client; the gateway measures in real time.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("a slow client hello times out", dripping).await;
    eventually("the connections are closed", || tls.gateway.connections() == 0).await;
}

#[tokio::test]
async fn upgraded_connection_works_over_tls() {
    let switches = b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: words\r\n\r\nhello".to_vec();
    let upstream = RecordingServer::scripted(move |_| Reply::Hang(switches.clone())).await;
    let tls = Tls::before(&upstream, ResourceLimits::default());
    let mut stream = tls.connect(&["http/1.1"]).await.expect("a handshake");
    let request = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\nUpgrade: words\r\n\r\n";
    stream.write_all(request).await.expect("TLS");
    let mut received = Vec::new();
    while !received.ends_with(b"\r\n\r\nhello") {
        assert!(within("bytes from the upstream", stream.read_buf(&mut received)).await.expect("TLS") > 0);
    }
    assert!(received.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&received));
    stream.shutdown().await.expect("TLS");
    let mut rest = Vec::new();
    within("both sides end", stream.read_to_end(&mut rest)).await.expect("an end with close_notify");
}

#[tokio::test]
async fn tls_session_is_resumed_after_many_other_sessions() {
    let upstream = RecordingServer::start().await;
    let tls = Tls::before(&upstream, ResourceLimits::default());
    let client = tls.client(&["http/1.1"]);
    assert_eq!(tls.get_with(&client).await, Some(HandshakeKind::Full));
    for _ in 0..300 {
        tls.assert_responds().await;
    }
    assert_eq!(tls.get_with(&client).await, Some(HandshakeKind::Resumed));
}

#[tokio::test]
async fn replaced_certificate_is_presented_to_new_clients_and_sessions_are_still_resumed() {
    let upstream = RecordingServer::start().await;
    let mut tls = Tls::before(&upstream, ResourceLimits::default());
    let returning = tls.client(&["http/1.1"]);
    assert_eq!(tls.get_with(&returning).await, Some(HandshakeKind::Full));
    let mut open = tls.connect(&["http/1.1"]).await.expect("a handshake");
    let made = Certificate::for_name("a.example");
    assert!(tls.certificate.replace(presentable(&made)));

    assert_eq!(tls.get_with(&returning).await, Some(HandshakeKind::Resumed));
    let error = tls.connect(&["http/1.1"]).await.expect_err("the new certificate is not trusted yet");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
    tls.roots = roots(&[&made]);
    tls.assert_responds().await;

    let request = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    open.write_all(request).await.expect("the open connection stays");
    let mut response = String::new();
    within("a response", open.read_to_string(&mut response)).await.expect("an end with close_notify");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
}

/// Sizes around those of TLS records and of what TLS and the system keep unsent.
fn sizes() -> Vec<usize> {
    let mut sizes: Vec<usize> = (96..=320).step_by(8).map(|kilobytes| kilobytes << 10).collect();
    for edge in [16 << 10, 64 << 10, 128 << 10, 192 << 10, 256 << 10] {
        sizes.extend([edge - 300, edge - 1, edge, edge + 1, edge + 300]);
    }
    sizes
}

#[tokio::test]
async fn response_to_a_slow_reader_over_tls_is_complete() {
    let tick = Duration::from_millis(25);
    let sizes = sizes();
    let upstream = {
        let sizes = sizes.clone();
        RecordingServer::replying(move |request| {
            let path = request.target.as_str();
            let size: usize = path.trim_start_matches('/').parse().expect("a size");
            assert!(sizes.contains(&size));
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n");
            Reply::Keep([head.into_bytes(), vec![b'a'; size]].concat())
        })
        .await
    };
    let tls = Tls::before(&upstream, ResourceLimits { reader_bytes: 1, ..ticking(tick) });
    let mut reading = tokio::task::JoinSet::new();
    for size in sizes {
        let mut stream = tls.connect_slowly().await.expect("a handshake");
        reading.spawn(async move {
            let request = format!("GET /{size} HTTP/1.1\r\nHost: a.example\r\n\r\n");
            stream.write_all(request.as_bytes()).await.expect("TLS");
            // More than a record: TLS reads them whole.
            let (mut read, mut piece) = (Vec::new(), vec![0; 20 << 10]);
            // Long enough that an idle connection would be parked, short enough for the pace of a reader.
            for _ in 0..4 {
                // The rate of a reader is one of real time: the gateway measures it in threads of its own.
                tokio::time::sleep(tick * 4).await;
                match within("some of it", stream.read(&mut piece)).await {
                    Ok(bytes @ 1..) => read.extend_from_slice(&piece[..bytes]),
                    _ => break,
                }
            }
            let is_complete = |read: &[u8]| {
                let head = read.windows(4).position(|end| end == b"\r\n\r\n");
                head.is_some_and(|head| read.len() == head + 4 + size)
            };
            while !is_complete(&read)
                && matches!(within("the rest", stream.read_buf(&mut read)).await, Ok(1..))
            {}
            (size, is_complete(&read))
        });
    }
    let cut: Vec<_> = reading.join_all().await.into_iter().filter(|(_, is_complete)| !is_complete).collect();
    assert_eq!(cut, [], "these responses were cut off");
}
