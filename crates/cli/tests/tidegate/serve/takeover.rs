//! Takeover: a new process replaces a running one.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use tidegate_testkit::client::Connection;
use tidegate_testkit::folder::Folder;
use tidegate_testkit::server::echo;
use tidegate_testkit::wait::eventually_blocking;

use crate::program::{run, serve, serve_at};

fn socket_path(name: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.socket", std::process::id()));
    path.to_str().unwrap().to_owned()
}

/// Sends requests over new connections until `stop`. Any failure is a lost request.
fn send_requests(address: &str, stop: &Arc<AtomicBool>, sent: &Arc<AtomicU64>) -> JoinHandle<()> {
    let (address, stop, sent) = (address.to_owned(), Arc::clone(stop), Arc::clone(sent));
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let mut connection = Connection::open(&address).unwrap();
            let response = connection.get("Connection: close\r\n").unwrap();
            assert_eq!(response.status, 200, "{response:?}");
            sent.fetch_add(1, Ordering::Relaxed);
        }
    })
}

fn wait_for_more_than(sent: &AtomicU64, count: u64) {
    eventually_blocking("more requests are answered", || sent.load(Ordering::Relaxed) > count);
}

#[test]
fn takeover_under_load_rejects_no_connection_and_loses_no_request() {
    let socket_path = socket_path("takeover");
    let upstream = format!("http://{}", echo());
    let args = ["--upstream", &upstream, "--limit", "1000000/s", "--takeover", &socket_path];
    let mut serving = serve(&args);
    let address = serving.address.clone();
    let (stop, sent) = (Arc::default(), Arc::default());
    let clients: Vec<_> = (0..4).map(|_| send_requests(&address, &stop, &sent)).collect();
    wait_for_more_than(&sent, 100);
    for _ in 0..3 {
        let next = serve_at(&address, &args);
        assert_eq!(serving.wait().code(), Some(0), "the old process exits");
        wait_for_more_than(&sent, sent.load(Ordering::Relaxed) + 100);
        serving = next;
    }
    stop.store(true, Ordering::Relaxed);
    for clients in clients {
        clients.join().unwrap();
    }
    serving.signal("-TERM");
    assert_eq!(serving.wait().code(), Some(0));
    assert!(!Path::new(&socket_path).exists(), "the takeover socket is removed");
}

#[test]
fn takeover_socket_that_is_another_file_or_in_no_folder_is_an_error() {
    let folder = Folder::new();
    folder.write("policy.yaml", "precious");
    let long = "x".repeat(200);
    for (name, expected) in [
        ("policy.yaml", "not a socket; choose another path"),
        ("none/a.socket", "its folder does not exist; create the folder"),
        (&*long, "the path is too long"),
    ] {
        let output = run(&["serve", "--listen", "127.0.0.1:0", "--takeover", &folder.text_path(name)]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && error.contains(expected), "{error}");
    }
    assert_eq!(std::fs::read_to_string(folder.path("policy.yaml")).unwrap(), "precious");
}

#[test]
fn takeover_without_a_predecessor_starts_and_a_foreign_socket_is_an_error() {
    let path = socket_path("stranger");
    // A process that was killed leaves its socket file behind.
    drop(UnixListener::bind(&path).unwrap());
    let mut server = serve(&["--takeover", &path]);
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));

    let foreign = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || drop(foreign.accept()));
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--takeover", &path]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("is not tidegate"), "{error}");
    std::fs::remove_file(path).unwrap();
}
