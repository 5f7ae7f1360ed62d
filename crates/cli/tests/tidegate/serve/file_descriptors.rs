//! File descriptor limits: every accepted connection gets responses.

use std::process::Command;

use tidegate_testkit::client::Connection;
use tidegate_testkit::process::Tidegate;
use tidegate_testkit::server::echo;

use crate::program::PATH;

/// Starts the gateway from a shell that sets a limit first.
fn limited(limit: &str, upstream: &str) -> Tidegate {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit} && exec \"$0\" serve \"$@\"")]);
    command.arg(PATH);
    command.args(["--listen", "127.0.0.1:0", "--cores", "1", "--limit", "1000000/s", "--upstream", upstream]);
    Tidegate::start(&mut command)
}

#[test]
fn low_descriptor_limit_bounds_the_accepted_connections() {
    let upstream = format!("http://{}", echo());
    let server = limited("ulimit -n 120", &upstream);
    server.wait_for_log("the limit of 120 open files allows only 60 client connections");
    let mut accepted = Vec::new();
    for _ in 0..100 {
        let mut client = Connection::open(&server.address).unwrap();
        // A connection beyond the maximum is closed without a response.
        if let Ok(response) = client.get("") {
            assert_eq!(response.status, 200, "{response:?}");
            accepted.push(client);
        }
    }
    assert_eq!(accepted.len(), 60);
    for client in &mut accepted {
        assert_eq!(client.get("").unwrap().status, 200, "accepted connections stay open");
    }
}

#[test]
fn soft_descriptor_limit_is_raised_to_the_hard_limit() {
    let upstream = format!("http://{}", echo());
    let server = limited("ulimit -Sn 100", &upstream);
    let mut accepted: Vec<_> = (0..200).map(|_| Connection::open(&server.address).unwrap()).collect();
    for client in &mut accepted {
        assert_eq!(client.get("").unwrap().status, 200);
    }
}
