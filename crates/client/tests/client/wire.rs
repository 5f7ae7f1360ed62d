//! HTTP over real sockets.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tidegate_client::{Client, ClientBuilder, ClientError, Jitter, SendBody};
use tidegate_testkit::certificate::{Authority, params_for};
use tidegate_testkit::server::{
    AcceptLoop, HttpServer, RecordingServer, Reply, breaks_off, full, ok, silent_http1, tls_server,
};
use tidegate_testkit::wait::soon;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

fn quick() -> ClientBuilder {
    Client::builder().backoff(Duration::from_millis(1), Duration::from_millis(5), Jitter::Full)
}

#[tokio::test]
async fn requests_of_one_client_share_a_connection_and_arrive_as_sent() {
    let server = RecordingServer::start().await;
    let client = quick().build().unwrap();
    let url = format!("{}/items?q=1", server.url());
    let text = soon(client.get(&url).header("x-a", "b").send()).await.unwrap().text();
    assert_eq!(soon(text).await.unwrap(), "ok");
    let response = soon(client.post(&url).json(&[1, 2]).send()).await.unwrap();
    assert_eq!(soon(response.bytes()).await.unwrap(), "ok");
    let requests = server.requests();
    assert_eq!((requests[0].method.as_str(), requests[0].target.as_str()), ("GET", "/items?q=1"));
    assert_eq!(requests[0].header("x-a"), Some("b"));
    assert_eq!(requests[0].header("host"), Some(server.address.to_string().as_str()));
    assert_eq!(requests[1].body, b"[1,2]");
    assert_eq!(requests[1].header("content-type"), Some("application/json"));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn idle_timeout_of_any_length_panics_nowhere() {
    let (panics, this_thread) = (Arc::new(AtomicUsize::new(0)), std::thread::current().id());
    let (count, other_hook) = (Arc::clone(&panics), std::panic::take_hook());
    // A panic of a background task has no other effect that could be seen here.
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() == this_thread {
            count.fetch_add(1, Ordering::SeqCst);
        }
        other_hook(info);
    }));
    let server = RecordingServer::start().await;
    let client = quick().idle_timeout(Duration::MAX).build().unwrap();
    for _ in 0..3 {
        let response = soon(client.get(server.url()).send()).await.unwrap();
        soon(response.bytes()).await.unwrap();
    }
    assert_eq!((server.connections(), panics.load(Ordering::SeqCst)), (1, 0));
}

#[tokio::test]
async fn json_of_a_response_is_decoded_or_an_error() {
    let server = RecordingServer::scripted(|number| ok(if number == 0 { "[1,2]" } else { "{" })).await;
    let client = quick().build().unwrap();
    let response = soon(client.get(server.url()).send()).await.unwrap();
    assert_eq!(soon(response.json::<Vec<u8>>()).await.unwrap(), [1, 2]);
    let response = soon(client.get(server.url()).send()).await.unwrap();
    let error = soon(response.json::<Vec<u8>>()).await.unwrap_err();
    assert!(matches!(error, ClientError::Json { .. }), "{error}");
}

#[tokio::test]
async fn tls_server_that_offers_http2_gets_it_and_untrusted_ones_are_an_error() {
    let authority = Authority::new("test");
    let config = authority.server_config(&params_for("localhost"), &["h2", "http/1.1"]);
    // It has a runtime of its own.
    let address = std::thread::spawn(move || tls_server(config)).join().unwrap();
    let url = format!("https://localhost:{}/", address.port());
    let mut roots = rustls::RootCertStore::empty();
    let pem = rustls::pki_types::pem::PemObject::from_pem_slice(authority.pem().as_bytes()).unwrap();
    roots.add(pem).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = quick().tls_config(tls).build().unwrap();
    let response = soon(client.get(&url).send()).await.unwrap();
    assert!(soon(response.text()).await.unwrap().starts_with("HTTP/2.0 localhost"));
    let client = quick().attempts(1).build().unwrap();
    let error = soon(client.get(&url).send()).await.unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("invalid peer certificate"), "the text names the root cause: {error}");
}

#[tokio::test]
async fn http2_without_tls_is_used_on_request() {
    let server =
        HttpServer::start(
            |request| async move { http::Response::new(full(format!("{:?}", request.version()))) },
        );
    let server = server.await;
    let client = quick().http2_only(true).build().unwrap();
    let response = soon(client.get(server.url()).send()).await.unwrap();
    assert_eq!(soon(response.text()).await.unwrap(), "HTTP/2.0");
}

/// A network in which the first connections die at once: they stay open, and nothing arrives.
async fn mortal_network(server: SocketAddr, mortal: usize) -> (AcceptLoop, watch::Sender<bool>) {
    let (kill, dead) = watch::channel(false);
    let network = AcceptLoop::start(move |number, mut stream| {
        let mut dead = dead.clone();
        async move {
            let mut server = tokio::net::TcpStream::connect(server).await.expect("a server");
            let death = async {
                if number >= mortal || dead.wait_for(|is_dead| *is_dead).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let is_dead = tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut stream, &mut server) => false,
                () = death => true,
            };
            if is_dead {
                std::future::pending::<()>().await;
            }
        }
    });
    (network.await, kill)
}

#[tokio::test]
async fn http2_connection_that_died_is_replaced_after_an_attempt_without_any_byte() {
    let server = HttpServer::start(|_| async { http::Response::new(full("ok")) }).await;
    let (network, kill) = mortal_network(server.address, 1).await;
    let client = quick().http2_only(true).timeout(Duration::from_millis(500)).build().unwrap();
    assert_eq!(soon(client.get(network.url()).send()).await.unwrap().attempts(), 1);
    kill.send_replace(true);
    let error = soon(client.post(network.url()).send()).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    assert_eq!(soon(client.get(network.url()).send()).await.unwrap().attempts(), 1);
}

#[tokio::test]
async fn attempt_after_a_timeout_does_not_use_another_dead_connection() {
    let together = Arc::new(tokio::sync::Barrier::new(6));
    let server = HttpServer::start(move |request| {
        let together = Arc::clone(&together);
        async move {
            if request.uri().path() == "/together" {
                together.wait().await;
            }
            http::Response::new(full("ok"))
        }
    });
    let server = server.await;
    let (network, kill) = mortal_network(server.address, 6).await;
    let client = quick().timeout(Duration::from_millis(500)).build().unwrap();
    let url = format!("{}/together", network.url());
    let first: Vec<_> =
        (0..6).map(|_| tokio::spawn(client.get(&url).timeout(Duration::from_secs(10)).send())).collect();
    for response in first {
        soon(soon(response).await.unwrap().unwrap().bytes()).await.unwrap();
    }
    kill.send_replace(true);
    let response = soon(client.get(network.url()).send()).await.unwrap();
    assert_eq!(response.attempts(), 2);
    assert_eq!(soon(response.text()).await.unwrap(), "ok");
}

#[tokio::test]
async fn informational_responses_without_end_are_an_error() {
    let hint = format!("HTTP/1.1 103 Early Hints\r\nLink: </{}>\r\n\r\n", "a".repeat(4_000));
    let server = AcceptLoop::start(move |_, mut stream| {
        let hint = hint.clone();
        async move {
            let _ = stream.read(&mut [0; 1_024]).await;
            while stream.write_all(hint.as_bytes()).await.is_ok() {}
        }
    })
    .await;
    let client = quick().attempts(1).timeout(Duration::from_secs(15)).build().unwrap();
    let error = soon(client.get(server.url()).send()).await.unwrap_err();
    assert!(matches!(error, ClientError::ConnectionLost { .. }), "{error}");
    let few = RecordingServer::scripted(|_| {
        let hints = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(5);
        Reply::Keep(format!("{hints}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").into_bytes())
    });
    let response = soon(client.get(few.await.url()).send()).await.unwrap();
    assert_eq!(soon(response.text()).await.unwrap(), "ok");
}

#[tokio::test]
async fn informational_responses_without_end_over_http2_are_an_error() {
    let server = AcceptLoop::start(|_, stream| async move {
        let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
        let Some(Ok((_, mut respond))) = connection.accept().await else { return };
        let flood = async {
            let hint = || http::Response::builder().status(103).header("link", "a".repeat(4_000));
            while respond.send_informational(hint().body(()).unwrap()).is_ok() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = flood => {}
            _ = connection.accept() => {}
        }
    })
    .await;
    let client = quick().attempts(1).timeout(Duration::from_secs(15)).http2_only(true).build().unwrap();
    let error = soon(client.get(server.url()).send()).await.unwrap_err();
    assert!(matches!(error, ClientError::ConnectionLost { .. }), "{error}");
}

#[tokio::test]
async fn long_bodies_are_not_taken_for_floods() {
    let server = HttpServer::start(|_| async { http::Response::new(full(vec![b'x'; 40 << 20])) }).await;
    for is_http2 in [false, true] {
        let client = quick().attempts(1).http2_only(is_http2).build().unwrap();
        let response = soon(client.get(server.url()).send()).await.unwrap();
        assert_eq!(soon(response.bytes()).await.unwrap().len(), 40 << 20);
    }
}

#[tokio::test]
async fn host_that_refuses_connections_is_a_connect_error_after_all_attempts() {
    let server = RecordingServer::unreachable();
    let client = quick().build().unwrap();
    let error = soon(client.get(server.url()).send()).await.unwrap_err();
    assert!(
        matches!(&error, ClientError::Connect { host, .. } if host.ends_with(&server.address.to_string()))
    );
    let text = error.to_string();
    assert_eq!(text.matches("refused").count(), 1, "the text names the root cause, once: {text}");
}

/// A server that breaks the first `broken` connections in the middle of a body, and then responds with the body.
async fn breaks_bodies(broken: usize, seen: Arc<AtomicUsize>) -> AcceptLoop {
    AcceptLoop::start(move |number, mut stream| {
        seen.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut request = Vec::new();
            let length =
                |bytes: &[u8]| bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|head| head + 4);
            while let Ok(1..) = stream.read_buf(&mut request).await {
                let Some(head) = length(&request) else { continue };
                if number < broken && request.len() > head + 1_000 {
                    stream.set_zero_linger().expect("a live socket");
                    return;
                }
                if request.len() >= head + BODY.len() {
                    let head_text = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", BODY.len());
                    stream.write_all(head_text.as_bytes()).await.expect("a client that reads");
                    stream.write_all(&request[head..]).await.expect("a client that reads");
                    return;
                }
            }
        }
    })
    .await
}

const BODY: &[u8] = &{
    let mut body = [0; 300_000];
    let (mut index, mut byte) = (0, 0_u8);
    while index < body.len() {
        body[index] = byte;
        (index, byte) = (index + 1, if byte == 250 { 0 } else { byte + 1 });
    }
    body
};

#[tokio::test]
async fn body_that_was_sent_in_part_is_sent_again_as_a_whole() {
    let connections = Arc::new(AtomicUsize::new(0));
    let server = breaks_bodies(2, Arc::clone(&connections)).await;
    let client = quick().build().unwrap();
    let response = soon(client.put(server.url()).body(BODY).send()).await.unwrap();
    assert_eq!((response.attempts(), connections.load(Ordering::SeqCst)), (3, 3));
    assert_eq!(soon(response.bytes()).await.unwrap(), BODY);
}

#[tokio::test]
async fn post_and_streams_that_were_sent_in_part_are_not_sent_again() {
    let connections = Arc::new(AtomicUsize::new(0));
    let server = breaks_bodies(usize::MAX, Arc::clone(&connections)).await;
    let client = quick().build().unwrap();
    let error = soon(client.post(server.url()).body(BODY).send()).await.unwrap_err();
    assert!(matches!(error, ClientError::ConnectionLost { .. }), "{error}");
    let stream = Full::new(Bytes::from_static(BODY));
    let error = soon(client.put(server.url()).stream(stream).send()).await.unwrap_err();
    assert!(matches!(error, ClientError::ConnectionLost { .. }), "{error}");
    assert_eq!(connections.load(Ordering::SeqCst), 2, "one connection for each request");
}

#[tokio::test]
async fn server_that_closes_before_a_response_is_connection_lost() {
    let server = breaks_off().await;
    let client = quick().attempts(2).build().unwrap();
    let error = soon(client.get(server.url()).send()).await.unwrap_err();
    assert!(matches!(error, ClientError::ConnectionLost { .. }), "{error}");
}

#[tokio::test]
async fn response_body_that_breaks_or_stalls_is_an_error() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc".to_vec();
    let server = RecordingServer::scripted(move |number| match number {
        0 => Reply::Close(head.clone()),
        _ => Reply::Hang(head.clone()),
    })
    .await;
    let client = quick().timeout(Duration::from_millis(100)).build().unwrap();
    let error = soon(soon(client.get(server.url()).send()).await.unwrap().bytes()).await.unwrap_err();
    assert!(matches!(error, ClientError::Body { .. }), "{error}");
    let error = soon(soon(client.get(server.url()).send()).await.unwrap().bytes()).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    let request = client.get(server.url()).timeout(Duration::from_secs(10));
    let response = soon(request.deadline(Duration::from_millis(100)).send()).await.unwrap();
    let error = soon(response.bytes()).await.unwrap_err();
    assert!(matches!(error, ClientError::DeadlineExceeded), "{error}");
}

#[tokio::test]
async fn attempt_without_response_times_out_and_a_dropped_request_closes_its_connection() {
    let server = silent_http1().await;
    let client = quick().attempts(1).build().unwrap();
    let request = client.get(server.url()).timeout(Duration::from_millis(50));
    let error = soon(request.send()).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    let server = RecordingServer::scripted(|_| Reply::Hang(Vec::new())).await;
    let request = tokio::spawn(client.get(server.url()).send());
    server.until("the request", |counts| counts.requests == 1).await;
    request.abort();
    server.until("the end of the connection", |counts| counts.open == 0).await;
}

#[tokio::test]
async fn request_body_that_fails_is_an_upload_error_and_is_not_retried() {
    let server = RecordingServer::start().await;
    let client = quick().build().unwrap();
    let request = http::Request::put(server.url()).body(SendBody::stream(BrokenUpload)).unwrap();
    let error = soon(client.request(request).send()).await.unwrap_err();
    assert!(matches!(error, ClientError::Upload { .. }), "{error}");
    assert_eq!(server.count(), 0);
}

#[tokio::test]
async fn request_body_that_fails_over_http2_is_an_upload_error_and_does_not_open_the_breaker() {
    let server = HttpServer::start(|request| async move {
        // The response waits for the whole request.
        let _ = request.into_body().collect().await;
        http::Response::new(full("ok"))
    });
    let server = server.await;
    let client = quick().http2_only(true).build().unwrap();
    for _ in 0..10 {
        let request = client.put(server.url()).stream(BrokenUpload);
        let error = soon(request.send()).await.unwrap_err();
        assert!(matches!(&error, ClientError::Upload { source } if source.to_string().contains("caller")));
    }
    assert_eq!(soon(client.get(server.url()).send()).await.unwrap().status(), 200);
}

#[tokio::test]
async fn request_that_no_connection_can_send_is_invalid_and_does_not_open_the_breaker() {
    let server = RecordingServer::start().await;
    let client = quick().build().unwrap();
    for _ in 0..10 {
        let mut request = http::Request::put(server.url()).body("x").unwrap();
        *request.version_mut() = http::Version::HTTP_09;
        let error = soon(client.request(request).send()).await.unwrap_err();
        assert!(matches!(error, ClientError::InvalidRequest { .. }), "{error}");
    }
    assert_eq!(soon(client.get(server.url()).send()).await.unwrap().status(), 200);
}

/// A request body that fails.
struct BrokenUpload;

impl Body for BrokenUpload {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(Some(Err("the caller's body failed")))
    }
}
