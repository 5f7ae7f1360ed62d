//! TLS towards upstreams: only who proves to be meant is spoken to.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::process::{Policy, Server};
use crate::wire::{Response as Answer, get};

/// Who vouches for servers.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A file that a machine would trust.
    fn file(&self, name: &str) -> Policy {
        Policy::new(name, &self.0.pem())
    }

    /// A server of whose certificate it says `params`, which speaks what of `protocols` it is offered.
    fn vouches(&self, params: &CertificateParams, protocols: &[&str]) -> SocketAddr {
        let key = KeyPair::generate().unwrap();
        let chain = vec![params.signed_by(&key, &self.0).unwrap().der().clone()];
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        serve(TlsAcceptor::from(Arc::new(config)))
    }
}

fn named(name: &str) -> CertificateParams {
    CertificateParams::new([name.to_owned()]).unwrap()
}

/// Answers in a thread of its own with the version of HTTP it was asked in, and by what host.
fn serve(tls: TlsAcceptor) -> SocketAddr {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        runtime.block_on(async {
            while let Ok((stream, _)) = listener.accept().await {
                let tls = tls.clone();
                tokio::spawn(async move {
                    // That the gateway does not come to terms is its business.
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let http = auto::Builder::new(TokioExecutor::new());
                    let _ = http.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
                });
            }
        });
    });
    address
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let host = request.headers().get("host").and_then(|host| host.to_str().ok());
    let host = host.or(request.uri().host()).unwrap_or_default();
    Ok(Response::new(Full::new(Bytes::from(format!("{:?} {host}", request.version())))))
}

/// Asks the server at `localhost` through a gateway that trusts `authority`.
fn ask(authority: &Policy, server: SocketAddr) -> Answer {
    let upstream = format!("https://localhost:{}", server.port());
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--upstream", &upstream]);
    command.env("SSL_CERT_FILE", authority.path());
    get(&Server::spawn(&mut command).address, "")
}

fn assert_untrusted(answer: &Answer, why: &str) {
    assert_eq!(answer.status(), "502", "{answer:?}");
    assert!(answer.body.contains("upstream_untrusted") && answer.body.contains(why), "{answer:?}");
}

#[test]
fn a_server_with_a_good_certificate_is_spoken_to_in_what_it_chooses() {
    let authority = Authority::new("known");
    let trusted = authority.file("good");
    let spoken: [(&[&str], &str); 4] = [
        (&["h2", "http/1.1"], "HTTP/2.0"),
        (&["h2"], "HTTP/2.0"),
        (&["http/1.1"], "HTTP/1.1"),
        // One that knows nothing of such choices.
        (&[], "HTTP/1.1"),
    ];
    for (protocols, version) in spoken {
        let answer = ask(&trusted, authority.vouches(&named("localhost"), protocols));
        assert_eq!(
            (answer.status(), answer.body.as_str()),
            ("200", &*format!("{version} test")),
            "{answer:?}"
        );
    }
}

#[test]
fn a_server_that_nobody_trusted_vouches_for_is_not_spoken_to() {
    let (authority, stranger) = (Authority::new("known"), Authority::new("stranger"));
    let answer = ask(&authority.file("stranger"), stranger.vouches(&named("localhost"), &["h2", "http/1.1"]));
    assert_untrusted(&answer, "nobody whom this machine trusts has issued it");
}

#[test]
fn a_server_with_another_name_is_not_spoken_to() {
    let authority = Authority::new("known");
    let answer = ask(&authority.file("name"), authority.vouches(&named("other.example"), &["http/1.1"]));
    assert_untrusted(&answer, "it is for another name");
}

#[test]
fn a_server_whose_certificate_has_expired_or_is_not_valid_yet_is_not_spoken_to() {
    let authority = Authority::new("known");
    let trusted = authority.file("time");
    let (mut old, mut early) = (named("localhost"), named("localhost"));
    (old.not_before, old.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1));
    early.not_before = date_time_ymd(4000, 1, 1);
    assert_untrusted(&ask(&trusted, authority.vouches(&old, &["http/1.1"])), "it has expired");
    assert_untrusted(&ask(&trusted, authority.vouches(&early, &["http/1.1"])), "it is not valid yet");
}

#[test]
fn a_server_that_does_not_speak_tls_cannot_be_reached() {
    let authority = Authority::new("known");
    let answer = ask(&authority.file("plain"), crate::wire::echo());
    assert_eq!(answer.status(), "502", "{answer:?}");
    assert!(answer.body.contains("upstream_unreachable"), "{answer:?}");
}
