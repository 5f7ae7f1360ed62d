//! Servers that do not respond: in the log, in the status and in the start message.

use std::io::{BufReader, Write};
use std::net::TcpListener;

use tidegate_testkit::client::{read_head, request};
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::PolicyFile;
use tidegate_testkit::server::echo;

use super::AdminGateway;

fn start(servers: &[String]) -> AdminGateway {
    let servers: Vec<_> = servers.iter().map(|server| format!("'http://{server}'")).collect();
    AdminGateway::serve(PolicyFile::new(&format!(
        "upstreams: {{ api: {{ servers: [{}] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n\
         admin: {{ listen: '127.0.0.1:0' }}\nrate_limits: {{ default: {{ requests: 100, window: 1h }} }}\n",
        servers.join(", "),
    )))
}

fn get(gateway: &AdminGateway) -> u16 {
    request(&gateway.server.address, "GET", "/", "", "").status
}

/// The start message says that no server can be reached.
fn is_warned(gateway: &AdminGateway) -> bool {
    gateway.server.startup_output.contains("can be reached")
}

#[test]
fn dead_upstream_is_in_the_start_message_the_log_and_the_status() {
    let dead = free_address().to_string();
    let gateway = start(std::slice::from_ref(&dead));
    let output = &gateway.server.startup_output;
    assert!(
        is_warned(&gateway) && output.contains(&dead) && output.contains("connection refused"),
        "{output}"
    );
    gateway.server.wait_for_log("upstream_unreachable");
    for _ in 0..15 {
        assert_eq!(get(&gateway), 502);
    }
    let line = gateway.server.wait_for_log("server_failing");
    assert!(line.contains(&dead) && line.contains("\"cause\":\"connection refused\""), "{line}");
    let status = gateway.send("GET", "/v1/status", "").json();
    let server = &status["upstreams"][0]["servers"][0];
    assert_eq!(server["healthy"], false, "{status}");
    assert_eq!(server["last_failure"]["failures"], 15, "{status}");
    let (_, printed, errors) = gateway.command(&["status"]);
    assert!(printed.contains(&format!("{dead}: failing")), "{printed}{errors}");
    assert!(printed.contains("15 failures since") && printed.contains("connection refused"), "{printed}");
    // The end is logged once nothing has failed for a while.
    let server = TcpListener::bind(&dead).unwrap();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        read_head(&mut BufReader::new(stream.try_clone().unwrap())).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    });
    assert_eq!(get(&gateway), 200);
    serving.join().unwrap();
    let (_, printed, _) = gateway.command(&["status"]);
    assert!(printed.contains(&format!("{dead}: healthy")) && printed.contains("last failure"), "{printed}");
    let line = gateway.server.wait_for_log("\"server_");
    assert!(line.contains("server_recovered") && line.contains("15 failures"), "one line for all: {line}");
}

#[test]
fn one_dead_server_of_two_is_named_and_its_upstream_is_not_unreachable() {
    let (dead, alive) = (free_address().to_string(), echo().to_string());
    let gateway = start(&[alive.clone(), dead.clone()]);
    assert!(!is_warned(&gateway), "{}", gateway.server.startup_output);
    let statuses: Vec<_> = (0..4).map(|_| get(&gateway)).collect();
    assert!(statuses.contains(&200), "{statuses:?}");
    let line = gateway.server.wait_for_log("server_failing");
    assert!(line.contains(&dead) && !line.contains(&alive), "{line}");
    let status = gateway.send("GET", "/v1/status", "").json();
    let servers = &status["upstreams"][0]["servers"];
    assert_eq!((&servers[0]["healthy"], &servers[1]["healthy"]), (&true.into(), &false.into()), "{status}");
    assert!(servers[0]["last_failure"].is_null(), "{status}");
}
