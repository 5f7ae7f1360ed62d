//! TLS towards upstreams: only who proves to be meant is spoken to.

use std::net::SocketAddr;
use std::process::Command;

use rcgen::CertificateParams;
use tidegate_testkit::certificate::{Authority, params_for, valid_between};
use tidegate_testkit::client::get;
use tidegate_testkit::folder::Folder;
use tidegate_testkit::message::Response;
use tidegate_testkit::process::Tidegate;
use tidegate_testkit::server::{echo, tls_server};

use crate::program::PATH;

const AUTHORITY: &str = "authority.pem";

/// A folder with a file of authorities that a machine trusts.
fn trusting(authority: &Authority) -> Folder {
    let folder = Folder::new();
    folder.write(AUTHORITY, authority.pem());
    folder
}

/// A server whose certificate `authority` has signed.
fn signed_by(authority: &Authority, params: &CertificateParams, protocols: &[&str]) -> SocketAddr {
    tls_server(authority.server_config(params, protocols))
}

/// Asks the server at `localhost` through a gateway that trusts `authority`.
fn ask(trusted: &Folder, server: SocketAddr) -> Response {
    let upstream = format!("https://localhost:{}", server.port());
    let mut command = Command::new(PATH);
    command.args(["serve", "--listen", "127.0.0.1:0", "--upstream", &upstream]);
    command.env("SSL_CERT_FILE", trusted.path(AUTHORITY));
    get(&Tidegate::start(&mut command).address, "")
}

fn assert_untrusted(answer: &Response, why: &str) {
    assert_eq!(answer.status, 502, "{answer:?}");
    assert!(answer.text().contains("upstream_untrusted") && answer.text().contains(why), "{answer:?}");
}

#[test]
fn a_server_with_a_good_certificate_is_spoken_to_in_what_it_chooses() {
    let authority = Authority::new("known");
    let trusted = trusting(&authority);
    let spoken: [(&[&str], &str); 4] = [
        (&["h2", "http/1.1"], "HTTP/2.0"),
        (&["h2"], "HTTP/2.0"),
        (&["http/1.1"], "HTTP/1.1"),
        // One that knows nothing of such choices.
        (&[], "HTTP/1.1"),
    ];
    for (protocols, version) in spoken {
        let answer = ask(&trusted, signed_by(&authority, &params_for("localhost"), protocols));
        assert_eq!((answer.status, answer.text().as_str()), (200, &*format!("{version} test")), "{answer:?}");
    }
}

#[test]
fn a_server_that_nobody_trusted_vouches_for_is_not_spoken_to() {
    let (authority, stranger) = (Authority::new("known"), Authority::new("stranger"));
    let answer =
        ask(&trusting(&authority), signed_by(&stranger, &params_for("localhost"), &["h2", "http/1.1"]));
    assert_untrusted(&answer, "nobody whom this machine trusts has issued it");
}

#[test]
fn a_server_with_another_name_is_not_spoken_to() {
    let authority = Authority::new("known");
    let answer =
        ask(&trusting(&authority), signed_by(&authority, &params_for("other.example"), &["http/1.1"]));
    assert_untrusted(&answer, "it is for another name");
}

#[test]
fn a_server_whose_certificate_has_expired_or_is_not_valid_yet_is_not_spoken_to() {
    let authority = Authority::new("known");
    let trusted = trusting(&authority);
    let (mut old, mut early) = (params_for("localhost"), params_for("localhost"));
    valid_between(&mut old, 2000, 2001);
    valid_between(&mut early, 4000, 4096);
    assert_untrusted(&ask(&trusted, signed_by(&authority, &old, &["http/1.1"])), "it has expired");
    assert_untrusted(&ask(&trusted, signed_by(&authority, &early, &["http/1.1"])), "it is not valid yet");
}

#[test]
fn a_server_that_does_not_speak_tls_cannot_be_reached() {
    let authority = Authority::new("known");
    let answer = ask(&trusting(&authority), echo());
    assert_eq!(answer.status, 502, "{answer:?}");
    assert!(answer.text().contains("upstream_unreachable"), "{answer:?}");
}
