//! TLS towards clients of the real binary: which certificate is presented, and when it is replaced.

use std::process::Command;

use tidegate_core::Timestamp;
use tidegate_store::{Clock, SystemClock};
use tidegate_testkit::certificate::Certificate;
use tidegate_testkit::client::{BlockingTls, roots, tls_config};
use tidegate_testkit::process::{PolicyFile, Tidegate};

use crate::program::{PATH, command, run, serve};
use crate::serve::admin::{AdminGateway, policy_text};

const DAY: u64 = 86_400;

/// A certificate for a year.
fn certificate() -> Certificate {
    expiring(now() + 365 * DAY)
}

/// A certificate that expires at these Unix seconds.
fn expiring(not_after: u64) -> Certificate {
    Certificate::expiring("localhost", not_after)
}

/// Writes both files of a certificate beside a policy.
fn write(certificate: &Certificate, policy: &PolicyFile, chain: &str, key: &str) {
    std::fs::write(policy.beside(chain), &certificate.chain).unwrap();
    std::fs::write(policy.beside(key), &certificate.key).unwrap();
}

fn now() -> u64 {
    SystemClock::new().now().since(Timestamp::ZERO).as_micros() / 1_000_000
}

/// A policy with this `listen`, and the files `a.pem`, `a.key`, `b.pem` and `b.key` beside it.
fn policy(listen: &str) -> (PolicyFile, Certificate, Certificate) {
    let policy = PolicyFile::new(&policy_text(&format!("listen: {listen}\n")));
    let (a, b) = (certificate(), certificate());
    write(&a, &policy, "a.pem", "a.key");
    write(&b, &policy, "b.pem", "b.key");
    (policy, a, b)
}

const ONE: &str = "{ address: '127.0.0.1:0', tls: { cert: a.pem, key: a.key } }";

/// A connection over TLS to a server that may present any certificate of `trusted`.
fn open_tls(address: &str, trusted: &[&Certificate]) -> BlockingTls {
    BlockingTls::open(address, "localhost", tls_config(roots(trusted), &["http/1.1"]))
}

/// Asserts that a new connection gets this certificate.
fn assert_presents(address: &str, trusted: &[&Certificate], expected: &Certificate) {
    let mut client = open_tls(address, trusted);
    assert_eq!(client.get(), 200);
    assert_eq!(client.presented(), &expected.der);
}

/// The errors of `tidegate serve --listen`, which must fail.
fn startup_error(policy: &PolicyFile) -> String {
    // If it starts after all, it is killed.
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "10", PATH, "serve"]);
    let output = command.args(["--listen", "127.0.0.1:0", "--config", &policy.path()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn listen_option_with_one_certificate_in_the_policy_uses_tls() {
    let shared = "[{ address: '127.0.0.1:1', tls: { cert: a.pem, key: a.key } }, \
                  { address: '127.0.0.1:2', tls: { cert: a.pem, key: a.key } }]";
    let beside_plain = "['127.0.0.1:1', { address: '127.0.0.1:2', tls: { cert: a.pem, key: a.key } }]";
    for listen in [ONE, shared, beside_plain] {
        let (policy, a, b) = policy(listen);
        let server = serve(&["--config", &policy.path()]);
        assert!(
            server.startup_output.contains("listening on https://127.0.0.1:"),
            "{}",
            server.startup_output
        );
        assert_presents(&server.address, &[&a, &b], &a);
    }
}

#[test]
fn listen_option_with_different_certificates_in_the_policy_is_rejected() {
    let (policy, ..) = policy(
        "[{ address: '127.0.0.1:1', tls: { cert: a.pem, key: a.key } }, \
          { address: '127.0.0.1:2', tls: { cert: b.pem, key: b.key } }]",
    );
    let printed = startup_error(&policy);
    assert!(
        printed.contains("--listen") && printed.contains("a.pem") && printed.contains("b.pem"),
        "{printed}"
    );
}

#[test]
fn changed_certificate_files_are_presented_to_new_connections_only() {
    let (policy, a, b) = policy(ONE);
    let server = serve(&["--config", &policy.path()]);
    let mut open = open_tls(&server.address, &[&a, &b]);
    assert_eq!(open.get(), 200);
    write(&b, &policy, "a.pem", "a.key");
    // A reload between the two writes finds a pair that does not match.
    let printed = server.wait_for_log("certificate of 127.0.0.1");
    assert!(printed.contains("policy reloaded, 1 change"), "{printed}");
    assert!(!printed.contains("take effect after a restart"), "{printed}");
    assert_presents(&server.address, &[&a, &b], &b);
    assert_eq!(open.get(), 200, "the open connection stays");
}

#[test]
fn changed_certificate_is_applied_by_sighup_and_by_admin_reload() {
    let (policy, a, b) = policy(ONE);
    let gateway = AdminGateway::serve(policy);
    let address = &gateway.server.address;
    write(&b, &gateway.policy, "a.pem", "a.key");
    gateway.server.signal("-HUP");
    gateway.server.wait_for_log("policy reloaded");
    assert_presents(address, &[&a, &b], &b);
    write(&a, &gateway.policy, "a.pem", "a.key");
    let reloaded = gateway.send("POST", "/v1/reload", "");
    assert_eq!(reloaded.status, 200, "{reloaded:?}");
    assert_presents(address, &[&a, &b], &a);
}

#[test]
fn reload_with_a_key_of_another_certificate_is_rejected_and_changes_nothing() {
    let (policy, a, b) = policy(ONE);
    let gateway = AdminGateway::serve(policy);
    std::fs::write(gateway.policy.beside("a.key"), &b.key).unwrap();
    let bad = gateway.send("POST", "/v1/reload", "");
    assert_eq!(bad.status, 422, "{bad:?}");
    assert!(bad.text().contains("a.key does not match a.pem"), "{bad:?}");
    assert_presents(&gateway.server.address, &[&a, &b], &a);
    std::fs::write(gateway.policy.beside("a.pem"), &b.chain).unwrap();
    gateway.server.wait_for_log("policy reloaded");
    assert_presents(&gateway.server.address, &[&a, &b], &b);
}

#[test]
fn changed_certificate_with_a_changed_address_requires_a_restart() {
    let listen = |port: u16, name: &str| {
        let entry =
            format!("{{ address: '127.0.0.1:{port}', tls: {{ cert: {name}.pem, key: {name}.key }} }}");
        policy_text(&format!("listen: {entry}\n"))
    };
    let (policy, a, b) = policy(ONE);
    let mut command = command();
    let server = Tidegate::start(command.args(["serve", "--config", &policy.path()]));
    policy.write(&listen(1, "b"));
    server.wait_for_log("take effect after a restart");
    assert_presents(&server.address, &[&a, &b], &a);
    // Back at the address that is listened at, the certificate applies.
    policy.write(&listen(0, "b"));
    let printed = server.wait_for_log("certificate of 127.0.0.1");
    assert!(!printed.contains("take effect after a restart"), "{printed}");
    assert_presents(&server.address, &[&a, &b], &b);
}

#[test]
fn start_with_a_key_of_another_certificate_is_rejected() {
    let (policy, _, b) = policy(ONE);
    std::fs::write(policy.beside("a.key"), &b.key).unwrap();
    let printed = startup_error(&policy);
    assert!(printed.contains("a.key does not match a.pem"), "{printed}");
}

#[test]
fn certificate_expiry_is_reported_in_metrics_and_log() {
    let expires = now() + 13 * DAY;
    let (policy, ..) = policy(ONE);
    write(&expiring(expires), &policy, "a.pem", "a.key");
    let gateway = AdminGateway::serve(policy);
    let printed = gateway.server.wait_for_log("certificate_expiring");
    assert!(printed.contains("expires in 12 days"), "{printed}");
    let address = &gateway.server.address;
    let expected = |expires: u64| {
        format!("tidegate_certificate_expiry_timestamp_seconds{{listener=\"{address}\"}} {expires}\n")
    };
    let metrics = gateway.send("GET", "/metrics", "").text();
    assert!(metrics.contains(&expected(expires)), "{metrics}");
    let past = now() - 2 * DAY;
    write(&expiring(past), &gateway.policy, "a.pem", "a.key");
    let printed = gateway.server.wait_for_log("certificate_expired");
    assert!(printed.contains("expired 2 days ago"), "{printed}");
    let metrics = gateway.send("GET", "/metrics", "").text();
    assert!(metrics.contains(&expected(past)), "{metrics}");
    let warnings = gateway.send("POST", "/v1/reload", "").text();
    assert!(warnings.contains("expired 2 days ago"), "{warnings}");
}

#[test]
fn check_rejects_a_mismatched_key_and_warns_of_expiry() {
    let (policy, _, b) = policy(ONE);
    let check = || {
        let output = run(&["check", &policy.path()]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, printed) = check();
    assert!(code == Some(0) && !printed.contains("warning"), "{printed}");
    for (expires, expected) in [
        (now() + 13 * DAY, "a.pem expires in 12 days"),
        (now() + DAY / 2, "a.pem expires in less than a day"),
        (now() - 3 * DAY, "a.pem expired 3 days ago"),
    ] {
        write(&expiring(expires), &policy, "a.pem", "a.key");
        let (code, printed) = check();
        assert!(code == Some(0) && printed.contains("warning") && printed.contains(expected), "{printed}");
    }
    std::fs::write(policy.beside("a.key"), &b.key).unwrap();
    let (code, printed) = check();
    assert!(code == Some(1) && printed.contains("a.key does not match a.pem"), "{printed}");
    std::fs::write(policy.beside("a.key"), &b.chain).unwrap();
    let (code, printed) = check();
    assert!(code == Some(1) && printed.contains("a.key contains no unencrypted private key"), "{printed}");
    std::fs::write(policy.beside("a.pem"), &b.key).unwrap();
    let (code, printed) = check();
    assert!(code == Some(1) && printed.contains("a.pem contains no certificate"), "{printed}");
}
