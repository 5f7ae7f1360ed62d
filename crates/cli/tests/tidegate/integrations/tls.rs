//! The listeners of the decision service with TLS, and with certificates of clients.

use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tidegate_testkit::certificate::{Certificate, params_for};
use tidegate_testkit::process::{PolicyFile, Tidegate};

use super::protocols::{Answer, ServiceClient, ServiceProtocol, TlsFiles};
use crate::program::{PATH, command};

/// A service whose listeners use TLS, and the folder of its files.
struct TlsService {
    client: ServiceClient,
    policy: PolicyFile,
    _server: Tidegate,
}

impl TlsService {
    /// `client_ca` is written to `clients.pem`; without it clients need no certificate.
    fn start(client_ca: Option<&str>) -> Self {
        let (client, certificate) = (ServiceClient::new(), Certificate::for_name("localhost"));
        let required = if client_ca.is_some() { ", client_ca: clients.pem" } else { "" };
        let listener = |address: &str| {
            format!("{{ address: '{address}', tls: {{ cert: cert.pem, key: key.pem{required} }} }}")
        };
        let policy = PolicyFile::new(&format!(
            "admin: off\nservice:\n  grpc: {}\n  http: {}\n  resp: {}\n\
             rate_limits: {{ default: {{ requests: 3, window: 1h }} }}\n",
            listener(&client.grpc),
            listener(&client.http),
            listener(&client.resp),
        ));
        std::fs::write(policy.beside("cert.pem"), &certificate.chain).unwrap();
        std::fs::write(policy.beside("key.pem"), &certificate.key).unwrap();
        std::fs::write(policy.beside("clients.pem"), client_ca.unwrap_or_default()).unwrap();
        let server = Tidegate::start(command().args(["serve", "--config", &policy.path()]));
        Self { client, policy, _server: server }
    }

    /// The answers of all protocols to a client that trusts the service and has this certificate and key.
    fn check_all(&self, name: &str, certificate: Option<(&str, &str)>) -> [Answer; 3] {
        let write = |file: &str, text: &str| {
            let path = self.policy.beside(file);
            std::fs::write(&path, text).unwrap();
            path
        };
        let certificate =
            certificate.map(|(chain, key)| (write("client.pem", chain), write("client.key", key)));
        let tls = Some(TlsFiles { trusted: self.policy.beside("cert.pem"), certificate });
        let client = ServiceClient { tls, ..self.client.clone() };
        ServiceProtocol::ALL.map(|protocol| client.check(protocol, "default", name))
    }
}

/// An authority that issues certificates of clients.
fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate of `issuer` and its private key.
fn issue(issuer: &CertifiedIssuer<'static, KeyPair>) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = params_for("client").signed_by(&key, issuer).unwrap();
    (certificate.pem(), key.serialize_pem())
}

const ADMITTED: [Answer; 3] = [Answer::Admitted, Answer::Admitted, Answer::Admitted];
const REFUSED: [Answer; 3] = [Answer::Refused, Answer::Refused, Answer::Refused];

#[test]
fn tls_clients_of_all_protocols_share_a_limit_and_others_are_refused() {
    let service = TlsService::start(None);
    assert_eq!(service.check_all("user:bob", None), ADMITTED);
    let rejected = [Answer::Rejected, Answer::Rejected, Answer::Rejected];
    assert_eq!(service.check_all("user:bob", None), rejected);
    let plain = ServiceProtocol::ALL.map(|protocol| service.client.check(protocol, "default", "user:eve"));
    assert_eq!(plain, REFUSED, "a client without TLS");
    let stranger = Certificate::for_name("localhost");
    std::fs::write(service.policy.beside("cert.pem"), stranger.chain).unwrap();
    assert_eq!(service.check_all("user:eve", None), REFUSED, "a client that does not trust the service");
}

#[test]
fn client_certificates_of_the_authority_are_required_by_all_protocols() {
    let (ours, other) = (authority("ours"), authority("other"));
    let service = TlsService::start(Some(&ours.pem()));
    assert_eq!(service.check_all("user:bob", None), REFUSED, "no certificate");
    let (chain, key) = issue(&other);
    assert_eq!(service.check_all("user:bob", Some((&chain, &key))), REFUSED, "another authority");
    let (chain, key) = issue(&ours);
    // All three units are left: refused clients were charged nothing.
    assert_eq!(service.check_all("user:bob", Some((&chain, &key))), ADMITTED);
}

/// The errors of `tidegate serve`, which must fail.
fn startup_error(arguments: &[&str]) -> String {
    // If it starts after all, it is killed.
    let mut command = Command::new("timeout");
    let output = command.args(["--signal=KILL", "10", PATH, "serve"]).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn listener_without_authentication_on_another_address_than_loopback_fails_the_start() {
    let certificate = Certificate::for_name("localhost");
    for protocol in ["grpc", "http", "resp"] {
        let policy = PolicyFile::new(&format!(
            "admin: off\nservice: {{ {protocol}: {{ address: '0.0.0.0:0', tls: {{ cert: cert.pem, key: key.pem }} }} }}\n\
             rate_limits: {{ default: {{ requests: 3, window: 1h }} }}\n"
        ));
        std::fs::write(policy.beside("cert.pem"), &certificate.chain).unwrap();
        std::fs::write(policy.beside("key.pem"), &certificate.key).unwrap();
        let flag = format!("--{protocol}");
        for arguments in [["--config", &*policy.path()], [&*flag, "0.0.0.0:0"]] {
            let error = startup_error(&arguments);
            assert!(error.contains("`0.0.0.0:0` is not a loopback address"), "{error}");
            let (place, hint) = (format!("at: service.{protocol}"), "add `token_file: service.token`");
            assert!(error.contains(&place) && error.contains(hint), "{error}");
        }
    }
}
