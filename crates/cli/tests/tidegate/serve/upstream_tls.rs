//! TLS towards upstreams: only upstreams with a trusted certificate get requests.

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

/// A folder with the file of trusted authorities.
fn trusting(authority: &Authority) -> Folder {
    let folder = Folder::new();
    folder.write(AUTHORITY, authority.pem());
    folder
}

/// A server whose certificate `authority` has signed.
fn signed_by(authority: &Authority, params: &CertificateParams, protocols: &[&str]) -> SocketAddr {
    tls_server(authority.server_config(params, protocols))
}

/// Sends a request to the server at `localhost` through a gateway that trusts the authorities in `trusted`.
fn get_through_gateway(trusted: &Folder, server: SocketAddr) -> Response {
    let upstream = format!("https://localhost:{}", server.port());
    let mut command = Command::new(PATH);
    command.args(["serve", "--listen", "127.0.0.1:0", "--upstream", &upstream]);
    command.env("SSL_CERT_FILE", trusted.path(AUTHORITY));
    get(&Tidegate::start(&mut command).address, "")
}

fn assert_untrusted(response: &Response, why: &str) {
    assert_eq!(response.status, 502, "{response:?}");
    assert!(response.text().contains("upstream_untrusted") && response.text().contains(why), "{response:?}");
}

#[test]
fn upstream_with_a_trusted_certificate_selects_the_protocol() {
    let authority = Authority::new("known");
    let trusted = trusting(&authority);
    let selected: [(&[&str], &str); 4] = [
        (&["h2", "http/1.1"], "HTTP/2.0"),
        (&["h2"], "HTTP/2.0"),
        (&["http/1.1"], "HTTP/1.1"),
        // An upstream without ALPN.
        (&[], "HTTP/1.1"),
    ];
    for (protocols, version) in selected {
        let response =
            get_through_gateway(&trusted, signed_by(&authority, &params_for("localhost"), protocols));
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, &*format!("{version} test")),
            "{response:?}"
        );
    }
}

#[test]
fn upstream_certificate_of_an_unknown_authority_gives_502() {
    let (authority, stranger) = (Authority::new("known"), Authority::new("stranger"));
    let response = get_through_gateway(
        &trusting(&authority),
        signed_by(&stranger, &params_for("localhost"), &["h2", "http/1.1"]),
    );
    assert_untrusted(&response, "unknown issuer");
}

#[test]
fn upstream_certificate_for_another_name_gives_502() {
    let authority = Authority::new("known");
    let response = get_through_gateway(
        &trusting(&authority),
        signed_by(&authority, &params_for("other.example"), &["http/1.1"]),
    );
    assert_untrusted(&response, "not valid for this host name");
}

#[test]
fn upstream_certificate_expired_or_not_yet_valid_gives_502() {
    let authority = Authority::new("known");
    let trusted = trusting(&authority);
    let (mut old, mut early) = (params_for("localhost"), params_for("localhost"));
    valid_between(&mut old, 2000, 2001);
    valid_between(&mut early, 4000, 4096);
    assert_untrusted(&get_through_gateway(&trusted, signed_by(&authority, &old, &["http/1.1"])), "expired");
    assert_untrusted(
        &get_through_gateway(&trusted, signed_by(&authority, &early, &["http/1.1"])),
        "not valid yet",
    );
}

#[test]
fn upstream_without_tls_gives_502() {
    let authority = Authority::new("known");
    let response = get_through_gateway(&trusting(&authority), echo());
    assert_eq!(response.status, 502, "{response:?}");
    assert!(response.text().contains("upstream_unreachable"), "{response:?}");
}
