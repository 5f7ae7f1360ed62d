//! docs/for-api-users.md: the programs of the page get through a limit.

use std::io::{BufReader, Write};
use std::net::SocketAddr;
use std::process::Command;

use tidegate_testkit::client::{get, read_head};
use tidegate_testkit::folder::Folder;
use tidegate_testkit::process::Tidegate;
use tidegate_testkit::server::thread_per_connection;

use super::{blocks, read, shell};
use crate::program::command;

pub(super) const PAGE: &str = "docs/for-api-users.md";

/// A service that responds with the first line of the request.
fn service() -> SocketAddr {
    thread_per_connection(|stream| {
        let mut write = stream.try_clone()?;
        let mut read = BufReader::new(stream);
        loop {
            let head = read_head(&mut read)?;
            let line = head.lines().next().unwrap_or_default();
            write!(write, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{line}\n", line.len() + 1)?;
        }
    })
}

/// Two requests per second: of four requests, two have to wait.
fn gateway(folder: &Folder) -> Tidegate {
    folder.write(
        "policy.yaml",
        format!(
            "admin: off\nupstreams: {{ api: {{ servers: [http://{}] }} }}\nroutes: [{{ upstream: api }}]\n\
             rate_limits: {{ default: {{ requests: 2, window: 1s, algorithm: sliding_window_log }} }}\n",
            service()
        ),
    );
    let mut command = command();
    command.current_dir(folder.root()).args(["serve", "--listen", "127.0.0.1:0", "--config", "policy.yaml"]);
    Tidegate::start(&mut command)
}

/// The programs of the page in this language, with another address.
fn programs(language: &str, address: &str) -> Vec<String> {
    let programs = blocks(&read(PAGE)).into_iter().filter(|block| block.language == language);
    programs
        .map(|block| block.text.replace("https://api.example.com", &format!("http://{address}")))
        .collect()
}

#[test]
fn python_and_javascript_of_the_page_wait_as_long_as_the_api_says() {
    for (language, program, file) in [("python", "python3", "get.py"), ("js", "node", "get.mjs")] {
        let folder = Folder::new();
        let server = gateway(&folder);
        let [text] = &*programs(language, &server.address) else { panic!("one {language} program") };
        folder.write(file, text);
        let output = Command::new(program).arg(folder.path(file)).output().unwrap();
        assert!(output.status.success(), "{language}: {}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            lines.lines().filter(|line| line.contains("GET /items")).count(),
            4,
            "{language}: {lines}"
        );
    }
}

#[test]
fn curl_of_the_page_waits_and_limits_prints_the_table() {
    let folder = Folder::new();
    let server = gateway(&folder);
    let commands = programs("sh", &server.address);
    let [limits, curl] = &*commands else { panic!("two commands: {commands:?}") };
    let printed = |command: &str| {
        let output = shell(folder.root(), command);
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(printed(limits).contains("| default | all | client | 2 requests per 1s | 429 |"));
    for _ in 0..3 {
        assert!(printed(curl).contains("GET /items"));
    }
}

#[test]
fn responses_have_the_headers_that_the_page_explains() {
    let folder = Folder::new();
    let server = gateway(&folder);
    let page = read(PAGE);
    let responses = [get(&server.address, ""), get(&server.address, ""), get(&server.address, "")];
    let shown: Vec<_> = blocks(&page).into_iter().filter(|block| block.language == "http").collect();
    for (block, response) in shown.iter().zip([&responses[0], &responses[2]]) {
        let mut lines = block.text.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap();
        assert_eq!(response.status.to_string(), status);
        for name in lines.map_while(|line| line.split_once(": ")).map(|(name, _)| name) {
            assert!(response.header(name).is_some(), "{status} has no {name}");
        }
    }
    assert_eq!(shown.len(), 2);
}
