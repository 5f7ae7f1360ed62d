//! TLS towards clients of the real binary: which certificate is presented, and when it is replaced.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tidegate_core::Timestamp;
use tidegate_store::{Clock, SystemClock};

use crate::admin::{Gate, policy_text};
use crate::process::{DEADLINE, Policy, Server, tidegate};

const DAY: u64 = 86_400;

/// A self-signed certificate and its key.
struct Pair {
    der: CertificateDer<'static>,
    chain: String,
    key: String,
}

impl Pair {
    fn new() -> Self {
        Self::expiring(now() + 365 * DAY)
    }

    /// Expires at these Unix seconds.
    fn expiring(not_after: u64) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(not_after);
        let certificate = params.self_signed(&key).unwrap();
        Self { der: certificate.der().clone(), chain: certificate.pem(), key: key.serialize_pem() }
    }

    fn write(&self, policy: &Policy, chain: &str, key: &str) {
        std::fs::write(policy.beside(chain), &self.chain).unwrap();
        std::fs::write(policy.beside(key), &self.key).unwrap();
    }
}

fn now() -> u64 {
    SystemClock::new().now().since(Timestamp::ZERO).as_micros() / 1_000_000
}

/// A policy with this `listen`, and the files `a.pem`, `a.key`, `b.pem` and `b.key` beside it.
fn policy(name: &str, listen: &str) -> (Policy, Pair, Pair) {
    let policy = Policy::new(name, &policy_text(&format!("listen: {listen}\n")));
    let (a, b) = (Pair::new(), Pair::new());
    a.write(&policy, "a.pem", "a.key");
    b.write(&policy, "b.pem", "b.key");
    (policy, a, b)
}

const ONE: &str = "{ address: '127.0.0.1:0', tls: { cert: a.pem, key: a.key } }";

/// A connection over TLS to a server that may present any certificate of `trusted`.
struct Tls(StreamOwned<ClientConnection, TcpStream>);

impl Tls {
    fn open(address: &str, trusted: &[&Pair]) -> Self {
        let mut roots = RootCertStore::empty();
        for pair in trusted {
            roots.add(pair.der.clone()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        let tcp = TcpStream::connect(address).unwrap();
        tcp.set_read_timeout(Some(DEADLINE)).unwrap();
        Self(StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), tcp))
    }

    /// The status of a request.
    fn get(&mut self) -> String {
        self.0.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        String::from_utf8(head).unwrap().split(' ').nth(1).unwrap().to_owned()
    }

    /// The certificate that the server presented.
    fn presented(&self) -> &CertificateDer<'static> {
        &self.0.conn.peer_certificates().unwrap()[0]
    }
}

/// Asserts that a new connection gets this certificate.
fn assert_presents(address: &str, trusted: &[&Pair], expected: &Pair) {
    let mut client = Tls::open(address, trusted);
    assert_eq!(client.get(), "200");
    assert_eq!(client.presented(), &expected.der);
}

/// What `tidegate serve --listen` says before it fails.
fn rejected(policy: &Policy) -> String {
    // If it serves after all, it is ended.
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "10", env!("CARGO_BIN_EXE_tidegate"), "serve"]);
    let output = command.args(["--listen", "127.0.0.1:0", "--config", &policy.path()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn listen_option_with_one_certificate_in_the_policy_serves_tls() {
    let shared = "[{ address: '127.0.0.1:1', tls: { cert: a.pem, key: a.key } }, \
                  { address: '127.0.0.1:2', tls: { cert: a.pem, key: a.key } }]";
    let beside_plain = "['127.0.0.1:1', { address: '127.0.0.1:2', tls: { cert: a.pem, key: a.key } }]";
    for (name, listen) in [("one", ONE), ("shared", shared), ("beside-plain", beside_plain)] {
        let (policy, a, b) = policy(&format!("tls-{name}"), listen);
        let server = Server::start(&["--config", &policy.path()]);
        assert!(server.welcome.contains("listening on https://127.0.0.1:"), "{}", server.welcome);
        assert_presents(&server.address, &[&a, &b], &a);
    }
}

#[test]
fn listen_option_with_different_certificates_in_the_policy_is_rejected() {
    let (policy, ..) = policy(
        "tls-ambiguous",
        "[{ address: '127.0.0.1:1', tls: { cert: a.pem, key: a.key } }, \
          { address: '127.0.0.1:2', tls: { cert: b.pem, key: b.key } }]",
    );
    let said = rejected(&policy);
    assert!(said.contains("--listen") && said.contains("a.pem") && said.contains("b.pem"), "{said}");
}

#[test]
fn changed_certificate_files_are_presented_to_new_connections_only() {
    let (policy, a, b) = policy("tls-changed", ONE);
    let server = Server::start(&["--config", &policy.path()]);
    let mut open = Tls::open(&server.address, &[&a, &b]);
    assert_eq!(open.get(), "200");
    b.write(&policy, "a.pem", "a.key");
    // A reload between the two writes finds a pair that does not match.
    let said = server.hears("certificate of 127.0.0.1");
    assert!(said.contains("policy reloaded, 1 change"), "{said}");
    assert!(!said.contains("next start"), "{said}");
    assert_presents(&server.address, &[&a, &b], &b);
    assert_eq!(open.get(), "200", "the open connection stays");
}

#[test]
fn certificate_is_replaced_by_signal_and_by_admin_reload() {
    let (policy, a, b) = policy("tls-asked", ONE);
    let gate = Gate::serve(policy);
    let address = &gate.server.address;
    b.write(&gate.policy, "a.pem", "a.key");
    gate.server.signal("-HUP");
    gate.server.hears("policy reloaded");
    assert_presents(address, &[&a, &b], &b);
    a.write(&gate.policy, "a.pem", "a.key");
    let reloaded = gate.ask("POST", "/v1/reload", "");
    assert_eq!(reloaded.status, 200, "{reloaded:?}");
    assert_presents(address, &[&a, &b], &a);
}

#[test]
fn reload_with_a_key_of_another_certificate_is_rejected_and_changes_nothing() {
    let (policy, a, b) = policy("tls-mismatch", ONE);
    let gate = Gate::serve(policy);
    std::fs::write(gate.policy.beside("a.key"), &b.key).unwrap();
    let bad = gate.ask("POST", "/v1/reload", "");
    assert_eq!(bad.status, 422, "{bad:?}");
    assert!(bad.body.contains("a.key does not match a.pem"), "{bad:?}");
    assert_presents(&gate.server.address, &[&a, &b], &a);
    std::fs::write(gate.policy.beside("a.pem"), &b.chain).unwrap();
    gate.server.hears("policy reloaded");
    assert_presents(&gate.server.address, &[&a, &b], &b);
}

#[test]
fn changed_certificate_with_a_changed_address_is_said_to_take_a_restart() {
    let listen = |port: u16, name: &str| {
        let entry =
            format!("{{ address: '127.0.0.1:{port}', tls: {{ cert: {name}.pem, key: {name}.key }} }}");
        policy_text(&format!("listen: {entry}\n"))
    };
    let (policy, a, b) = policy("tls-restart", ONE);
    let mut command = crate::process::command();
    let server = Server::spawn(command.args(["serve", "--config", &policy.path()]));
    policy.write(&listen(1, "b"));
    server.hears("until the next start");
    assert_presents(&server.address, &[&a, &b], &a);
    // Back at the address that is listened at, the certificate applies.
    policy.write(&listen(0, "b"));
    let said = server.hears("certificate of 127.0.0.1");
    assert!(!said.contains("until the next start"), "{said}");
    assert_presents(&server.address, &[&a, &b], &b);
}

#[test]
fn start_with_a_key_of_another_certificate_is_rejected() {
    let (policy, _, b) = policy("tls-start-mismatch", ONE);
    std::fs::write(policy.beside("a.key"), &b.key).unwrap();
    let said = rejected(&policy);
    assert!(said.contains("a.key does not match a.pem"), "{said}");
}

#[test]
fn certificate_expiry_is_a_metric_and_a_warning_in_the_log() {
    let expires = now() + 13 * DAY;
    let (policy, ..) = policy("tls-expiry", ONE);
    Pair::expiring(expires).write(&policy, "a.pem", "a.key");
    let gate = Gate::serve(policy);
    let said = gate.server.hears("certificate_expiring");
    assert!(said.contains("expires in 12 days"), "{said}");
    let address = &gate.server.address;
    let expected = |expires: u64| {
        format!("tidegate_certificate_expiry_timestamp_seconds{{listener=\"{address}\"}} {expires}\n")
    };
    let metrics = gate.ask("GET", "/metrics", "").body;
    assert!(metrics.contains(&expected(expires)), "{metrics}");
    let past = now() - 2 * DAY;
    Pair::expiring(past).write(&gate.policy, "a.pem", "a.key");
    let said = gate.server.hears("certificate_expired");
    assert!(said.contains("expired 2 days ago"), "{said}");
    let metrics = gate.ask("GET", "/metrics", "").body;
    assert!(metrics.contains(&expected(past)), "{metrics}");
    let warnings = gate.ask("POST", "/v1/reload", "").body;
    assert!(warnings.contains("expired 2 days ago"), "{warnings}");
}

#[test]
fn check_finds_a_mismatch_and_warns_of_expiry() {
    let (policy, _, b) = policy("tls-check", ONE);
    let check = || {
        let output = tidegate(&["check", &policy.path()]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, said) = check();
    assert!(code == Some(0) && !said.contains("warning"), "{said}");
    for (expires, expected) in [
        (now() + 13 * DAY, "a.pem expires in 12 days"),
        (now() + DAY / 2, "a.pem expires in less than a day"),
        (now() - 3 * DAY, "a.pem expired 3 days ago"),
    ] {
        Pair::expiring(expires).write(&policy, "a.pem", "a.key");
        let (code, said) = check();
        assert!(code == Some(0) && said.contains("warning") && said.contains(expected), "{said}");
    }
    std::fs::write(policy.beside("a.key"), &b.key).unwrap();
    let (code, said) = check();
    assert!(code == Some(1) && said.contains("a.key does not match a.pem"), "{said}");
    std::fs::write(policy.beside("a.key"), &b.chain).unwrap();
    let (code, said) = check();
    assert!(code == Some(1) && said.contains("a.key holds no private key"), "{said}");
    std::fs::write(policy.beside("a.pem"), &b.key).unwrap();
    let (code, said) = check();
    assert!(code == Some(1) && said.contains("a.pem holds no certificate"), "{said}");
}
