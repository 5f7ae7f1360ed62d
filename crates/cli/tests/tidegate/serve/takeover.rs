//! A new process in the place of an old one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use tidegate_testkit::client::Connection;
use tidegate_testkit::server::echo;
use tidegate_testkit::wait::eventually_blocking;

use crate::program::{run, serve, serve_at};

fn meeting(name: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.socket", std::process::id()));
    path.to_str().unwrap().to_owned()
}

/// Asks over new connections until told to stop. Whatever fails is a lost request.
fn ask(address: &str, stop: &Arc<AtomicBool>, asked: &Arc<AtomicU64>) -> JoinHandle<()> {
    let (address, stop, asked) = (address.to_owned(), Arc::clone(stop), Arc::clone(asked));
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let mut connection = Connection::open(&address).unwrap();
            let response = connection.get("Connection: close\r\n").unwrap();
            assert_eq!(response.status, 200, "{response:?}");
            asked.fetch_add(1, Ordering::Relaxed);
        }
    })
}

fn more_than(asked: &AtomicU64, count: u64) {
    eventually_blocking("more requests are answered", || asked.load(Ordering::Relaxed) > count);
}

#[test]
fn a_takeover_under_load_refuses_no_connection_and_loses_no_request() {
    let meeting = meeting("takeover");
    let upstream = format!("http://{}", echo());
    let args = ["--upstream", &upstream, "--limit", "1000000/s", "--takeover", &meeting];
    let mut serving = serve(&args);
    let address = serving.address.clone();
    let (stop, asked) = (Arc::default(), Arc::default());
    let asking: Vec<_> = (0..4).map(|_| ask(&address, &stop, &asked)).collect();
    more_than(&asked, 100);
    for _ in 0..3 {
        let next = serve_at(&address, &args);
        assert_eq!(serving.wait().code(), Some(0), "the old one ends by itself");
        more_than(&asked, asked.load(Ordering::Relaxed) + 100);
        serving = next;
    }
    stop.store(true, Ordering::Relaxed);
    for asking in asking {
        asking.join().unwrap();
    }
    serving.signal("-TERM");
    assert_eq!(serving.wait().code(), Some(0));
    assert!(!Path::new(&meeting).exists(), "nobody is waited for any more");
}

#[test]
fn without_a_predecessor_it_starts_as_usual_and_a_stranger_is_told() {
    let path = meeting("stranger");
    std::fs::write(&path, "left behind").unwrap();
    let mut server = serve(&["--takeover", &path]);
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));

    let stranger = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || drop(stranger.accept()));
    let refused = run(&["serve", "--listen", "127.0.0.1:0", "--takeover", &path]);
    assert_eq!(refused.status.code(), Some(1));
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("is not tidegate"), "{error}");
    std::fs::remove_file(path).unwrap();
}
