//! TLS towards clients: what is spoken is agreed on, and who does not come to terms is let go.

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

/// A gateway that speaks TLS, and who trusts it.
struct Tls {
    served: TestGateway,
    roots: RootCertStore,
    certificate: Arc<CertificateResolver>,
}

impl Tls {
    fn before(upstream: &RecordingServer, bounds: ResourceLimits) -> Self {
        let made = Certificate::for_name("a.example");
        let limits = format!("rate_limits: {{ default: {{ {} }} }}", hourly(1_000));
        let (served, certificate) =
            TestGateway::start_tls(&made, &policy_before(&[upstream], &limits), bounds);
        Self { served, roots: roots(&[&made]), certificate }
    }

    /// A handshake that offers `protocols`.
    async fn connect(&self, protocols: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
        self.greet(&self.client(protocols)).await
    }

    async fn greet(&self, client: &Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.served.address).await?;
        connect_tls(stream, "a.example", client).await
    }

    /// The same for HTTP/1.1, by somebody for whom the system reads ahead only a little.
    async fn connect_slowly(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4 << 10)?;
        let stream = socket.connect(self.served.address).await?;
        connect_tls(stream, "a.example", &self.client(&["http/1.1"])).await
    }

    /// Somebody who remembers sessions.
    fn client(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        tls_config(self.roots.clone(), protocols)
    }

    /// That somebody who behaves is served, over HTTP/1.1.
    async fn serves(&self) {
        let kind = self.serves_to(&self.client(&["http/1.1"])).await;
        assert_eq!(kind, Some(HandshakeKind::Full));
    }

    async fn serves_to(&self, client: &Arc<ClientConfig>) -> Option<HandshakeKind> {
        let mut stream = self.greet(client).await.expect("a handshake");
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
            .await
            .expect("TLS");
        let mut answer = String::new();
        within("an answer", stream.read_to_string(&mut answer)).await.expect("it is ended as TLS ends");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        stream.get_ref().1.handshake_kind()
    }
}

#[tokio::test]
async fn http2_is_spoken_with_those_who_offer_it() {
    let upstream = RecordingServer::start().await;
    let tls = Tls::before(&upstream, ResourceLimits::default());
    let stream = tls.connect(&["h2", "http/1.1"]).await.expect("a handshake");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (client, _connection) = http2_over(stream).await;
    let mut client = within("room", client.ready()).await.expect("room");
    let request = Request::get("https://a.example/").body(()).expect("a request");
    let (response, _): (_, h2::SendStream<Bytes>) = client.send_request(request, true).expect("a stream");
    assert_eq!(within("an answer", response).await.expect("an answer").status(), 200);
    let seen = upstream.last();
    assert_eq!((seen.header("x-forwarded-proto"), seen.header("host")), (Some("https"), Some("a.example")));
    assert_eq!(seen.header("forwarded"), Some("for=127.0.0.1;proto=https"));
}

#[tokio::test]
async fn http1_is_spoken_with_those_who_offer_that_or_nothing() {
    let upstream = RecordingServer::start().await;
    let tls = Tls::before(&upstream, ResourceLimits::default());
    let offers: [(&[&str], Option<&[u8]>); 3] =
        [(&["http/1.1"], Some(b"http/1.1")), (&["h3", "http/1.1"], Some(b"http/1.1")), (&[], None)];
    for (offered, agreed) in offers {
        let mut stream = tls.connect(offered).await.expect("a handshake");
        assert_eq!(stream.get_ref().1.alpn_protocol(), agreed, "{offered:?}");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").await.expect("TLS");
        let mut start = [0; 15];
        within("an answer", stream.read_exact(&mut start)).await.expect("an answer");
        assert_eq!(&start, b"HTTP/1.1 200 OK");
    }
}

#[tokio::test]
async fn who_offers_only_what_we_do_not_speak_is_told_so() {
    let upstream = RecordingServer::start().await;
    let tls = Tls::before(&upstream, ResourceLimits::default());
    let refused = tls.connect(&["spdy/1"]).await.expect_err("no protocol");
    assert!(refused.to_string().contains("NoApplicationProtocol"), "{refused}");
    tls.serves().await;
}

#[tokio::test]
async fn who_does_not_speak_tls_gets_no_answer_in_http() {
    let upstream = RecordingServer::start().await;
    let tls = Tls::before(&upstream, ResourceLimits::default());
    let garbage: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0; 100],
        // A record that claims to be longer than any, and one of a version that nobody speaks.
        b"\x16\x03\x01\xff\xff\x01\x00\xff\xfb",
        b"\x16\x02\x00\x00\x05\x01\x00\x00\x01\x00",
    ];
    for bytes in garbage {
        let mut client = tls.served.client().await;
        client.send(bytes).await;
        let said = client.rest().await;
        assert!(!said.starts_with(b"HTTP"), "{:?} to {bytes:?}", String::from_utf8_lossy(&said));
        // At most an alert, which is no secret.
        assert!(said.len() <= 7, "{said:?} to {bytes:?}");
    }
    eventually("they are gone", || tls.served.connections() == 0).await;
    tls.serves().await;
    assert_eq!(upstream.requests().len(), 1);
}

#[tokio::test]
async fn a_handshake_that_stalls_or_drips_is_ended() {
    let upstream = RecordingServer::start().await;
    let bounds =
        ResourceLimits { handshake_timeout: Duration::from_millis(300), ..ResourceLimits::default() };
    let tls = Tls::before(&upstream, bounds);
    let mut silent = tls.served.client().await;
    assert_eq!(silent.rest().await, b"", "not a word");
    let mut stalls = tls.served.client().await;
    stalls.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").await;
    assert_eq!(stalls.rest().await, b"", "half a hello");
    let mut drips = tls.served.client().await;
    let dripping = async {
        drips.send(b"\x16\x03\x01\x02\x00").await;
        while drips.send(b"\x01").await {
            // The time between two bytes of a slow client; the gateway measures in real time.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("a hello that drips is ended", dripping).await;
    eventually("they are gone", || tls.served.connections() == 0).await;
}

#[tokio::test]
async fn a_tunnel_goes_through_tls() {
    let switches = b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: words\r\n\r\nhello".to_vec();
    let upstream = RecordingServer::scripted(move |_| Reply::Hang(switches.clone())).await;
    let tls = Tls::before(&upstream, ResourceLimits::default());
    let mut stream = tls.connect(&["http/1.1"]).await.expect("a handshake");
    let ask = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\nUpgrade: words\r\n\r\n";
    stream.write_all(ask).await.expect("TLS");
    let mut said = Vec::new();
    while !said.ends_with(b"\r\n\r\nhello") {
        assert!(within("its words", stream.read_buf(&mut said)).await.expect("TLS") > 0);
    }
    assert!(said.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&said));
    stream.shutdown().await.expect("TLS");
    let mut rest = Vec::new();
    within("both sides end", stream.read_to_end(&mut rest)).await.expect("it is ended as TLS ends");
}

#[tokio::test]
async fn a_session_is_resumed_however_many_others_there_were_meanwhile() {
    let upstream = RecordingServer::start().await;
    let tls = Tls::before(&upstream, ResourceLimits::default());
    let client = tls.client(&["http/1.1"]);
    assert_eq!(tls.serves_to(&client).await, Some(HandshakeKind::Full));
    for _ in 0..300 {
        tls.serves().await;
    }
    assert_eq!(tls.serves_to(&client).await, Some(HandshakeKind::Resumed));
}

#[tokio::test]
async fn replaced_certificate_is_presented_in_new_handshakes_and_sessions_are_still_resumed() {
    let upstream = RecordingServer::start().await;
    let mut tls = Tls::before(&upstream, ResourceLimits::default());
    let returning = tls.client(&["http/1.1"]);
    assert_eq!(tls.serves_to(&returning).await, Some(HandshakeKind::Full));
    let mut open = tls.connect(&["http/1.1"]).await.expect("a handshake");
    let made = Certificate::for_name("a.example");
    assert!(tls.certificate.replace(presentable(&made)));

    assert_eq!(tls.serves_to(&returning).await, Some(HandshakeKind::Resumed));
    let untrusting = tls.connect(&["http/1.1"]).await.expect_err("the new certificate is not trusted yet");
    assert_eq!(untrusting.kind(), std::io::ErrorKind::InvalidData, "{untrusting}");
    tls.roots = roots(&[&made]);
    tls.serves().await;

    let request = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    open.write_all(request).await.expect("the open connection stays");
    let mut answer = String::new();
    within("an answer", open.read_to_string(&mut answer)).await.expect("it is ended as TLS ends");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
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
async fn end_of_a_response_reaches_a_slow_reader() {
    let look = Duration::from_millis(25);
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
    let tls = Tls::before(&upstream, ResourceLimits { reader_bytes: 1, ..ticking(look) });
    let mut reading = tokio::task::JoinSet::new();
    for size in sizes {
        let mut stream = tls.connect_slowly().await.expect("a handshake");
        reading.spawn(async move {
            let ask = format!("GET /{size} HTTP/1.1\r\nHost: a.example\r\n\r\n");
            stream.write_all(ask.as_bytes()).await.expect("TLS");
            // More than a record: TLS reads them whole.
            let (mut read, mut piece) = (Vec::new(), vec![0; 20 << 10]);
            // Long enough that an idle connection would be parked, short enough for the pace of a reader.
            for _ in 0..4 {
                // The rate of a reader is one of real time: the gateway measures it in threads of its own.
                tokio::time::sleep(look * 4).await;
                match within("some of it", stream.read(&mut piece)).await {
                    Ok(bytes @ 1..) => read.extend_from_slice(&piece[..bytes]),
                    _ => break,
                }
            }
            let whole = |read: &[u8]| {
                let head = read.windows(4).position(|end| end == b"\r\n\r\n");
                head.is_some_and(|head| read.len() == head + 4 + size)
            };
            while !whole(&read) && matches!(within("the rest", stream.read_buf(&mut read)).await, Ok(1..)) {}
            (size, whole(&read))
        });
    }
    let cut: Vec<_> = reading.join_all().await.into_iter().filter(|(_, is_whole)| !is_whole).collect();
    assert_eq!(cut, [], "these were cut off");
}
