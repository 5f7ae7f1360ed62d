//! Few descriptors: whoever is let in is served.

use std::process::Command;

use tidegate_testkit::client::Connection;
use tidegate_testkit::process::Tidegate;
use tidegate_testkit::server::echo;

use crate::program::PATH;

/// Starts it where the shell has set a limit first.
fn limited(limit: &str, upstream: &str) -> Tidegate {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit} && exec \"$0\" serve \"$@\"")]);
    command.arg(PATH);
    command.args(["--listen", "127.0.0.1:0", "--cores", "1", "--limit", "1000000/s", "--upstream", upstream]);
    Tidegate::start(&mut command)
}

#[test]
fn no_more_are_let_in_than_can_be_served() {
    let upstream = format!("http://{}", echo());
    let server = limited("ulimit -n 120", &upstream);
    server.wait_for_log("the limit of 120 open files allows only 60 client connections");
    let mut inside = Vec::new();
    for _ in 0..100 {
        let mut client = Connection::open(&server.address).unwrap();
        // Who finds no room is let go, without an answer.
        if let Ok(answer) = client.get("") {
            assert_eq!(answer.status, 200, "{answer:?}");
            inside.push(client);
        }
    }
    assert_eq!(inside.len(), 60);
    for client in &mut inside {
        assert_eq!(client.get("").unwrap().status, 200, "they stay");
    }
}

#[test]
fn what_is_allowed_is_used() {
    let upstream = format!("http://{}", echo());
    let server = limited("ulimit -Sn 100", &upstream);
    let mut inside: Vec<_> = (0..200).map(|_| Connection::open(&server.address).unwrap()).collect();
    for client in &mut inside {
        assert_eq!(client.get("").unwrap().status, 200);
    }
}
