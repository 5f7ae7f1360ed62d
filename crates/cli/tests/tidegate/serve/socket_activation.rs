//! Socket activation: listening sockets that a service manager passes.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use tidegate_testkit::client::{Connection, get};
use tidegate_testkit::process::Tidegate;
use tidegate_testkit::server::echo;

use crate::program::PATH;

/// Starts `tidegate serve` with `socket` as the first socket of a service manager.
fn command(socket: &TcpListener, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    // The shell becomes tidegate, so `$$` is the process that the socket is for.
    command.args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" serve \"$@\" 3<&0 0</dev/null"]);
    command.arg(PATH).args(args);
    command.stdin(Stdio::from(OwnedFd::from(socket.try_clone().unwrap())));
    command
}

#[test]
fn inherited_socket_accepts_connections_before_and_between_processes() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let upstream = format!("http://{}", echo());
    let args = ["--listen", &address, "--upstream", &upstream, "--limit", "1000/s", "--cores", "2"];
    // A connection before the start gets its response after it.
    let mut early = Connection::open(&address).unwrap();
    let mut server = Tidegate::start(&mut command(&socket, &args));
    assert_eq!(server.address, address);
    assert_eq!(early.get("").unwrap().status, 200);
    for _ in 0..20 {
        assert_eq!(get(&address, "").status, 200);
    }
    drop(early);
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
    let mut between =
        Connection::open(&address).expect("the socket accepts connections while no process runs");
    let next = Tidegate::start(&mut command(&socket, &args));
    assert_eq!(between.get("").unwrap().status, 200);
    drop(next);
}

#[test]
fn inherited_socket_without_a_listen_address_is_an_error() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let output = command(&socket, &["--listen", "127.0.0.1:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(&format!("LISTEN_FDS has a socket for {address}")), "{error}");
    assert!(error.contains(&format!("--listen {address}")), "{error}");
}

#[test]
fn inherited_sockets_for_another_process_are_ignored() {
    // A child inherits the environment of such a process, but not its sockets.
    let mut child = Command::new("sh");
    child.args(["-c", "LISTEN_PID=1 LISTEN_FDS=1 exec \"$0\" serve --listen 127.0.0.1:0"]);
    child.arg(PATH);
    let server = Tidegate::start(&mut child);
    assert_eq!(get(&server.address, "").status, 200);
}
