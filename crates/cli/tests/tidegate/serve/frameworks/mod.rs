//! Real web frameworks behind the gateway: no spelling of a request evades a limit, and no valid one is broken.

mod identity;
mod paths;
mod tokens;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_testkit::client::{Connection, END_HEADERS, END_STREAM, FrameClient, HEADERS, literal};
use tidegate_testkit::message::Response;
use tidegate_testkit::process::{PolicyFile, Process, Tidegate};

use crate::program::serve;

/// The secret that signs tokens.
const TOKEN_SECRET: &str = "a secret that is long enough for HS256";

/// A framework with the server that its documentation recommends.
#[derive(Clone, Copy, Debug)]
enum Framework {
    Express,
    FastApi,
    Flask,
}

impl Framework {
    fn command(self) -> Command {
        let apps = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frameworks");
        let installed = installed();
        let python = |arguments: &[&str]| {
            let mut command = Command::new("python3");
            command.arg("-m").args(arguments).current_dir(&apps);
            command.env("PYTHONPATH", installed.join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
            command
        };
        let mut command = match self {
            Self::Express => {
                let mut command = Command::new("node");
                command.arg(apps.join("app.js"));
                command.env("NODE_PATH", installed.join("node/node_modules"));
                command
            }
            Self::FastApi => python(&["uvicorn", "--port", "0", "app_fastapi:app"]),
            // Underscores in names as other servers and older versions take them.
            Self::Flask => {
                python(&["gunicorn", "--bind", "127.0.0.1:0", "--header-map", "dangerous", "app_flask:app"])
            }
        };
        command.env("TOKEN_SECRET", TOKEN_SECRET);
        command
    }
}

/// The folder into which `cargo xtask setup` installs the frameworks.
fn installed() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let folder = target.join("frameworks");
    assert!(folder.is_dir(), "{} is missing; run `cargo xtask setup`", folder.display());
    folder
}

/// A running app, and a gateway with a policy in front of it.
struct App {
    process: Process,
    address: SocketAddr,
}

impl App {
    fn start(framework: Framework) -> Self {
        let process = Process::start(&mut framework.command(), "run `cargo xtask setup`");
        let port = match framework {
            Framework::Express => process.find_output(port),
            Framework::FastApi | Framework::Flask => process.find_error(port),
        };
        let port = port.unwrap_or_else(|| panic!("{framework:?} does not listen"));
        Self { process, address: ([127, 0, 0, 1], port).into() }
    }

    /// How often the login handler was called.
    fn calls(&self) -> u64 {
        get(&self.address.to_string(), "/calls", "").json()["calls"].as_u64().unwrap()
    }

    /// A gateway in front of it, with this policy beside upstreams and routes.
    fn behind(&self, policy: &PolicyFile, more: &str) -> Tidegate {
        let address = self.address;
        policy.write(&format!(
            "admin: off\nupstreams: {{ app: {{ servers: [http://{address}] }} }}\nroutes: [{{ upstream: app }}]\n{more}\n"
        ));
        serve(&["--config", &policy.path()])
    }
}

impl Drop for App {
    fn drop(&mut self) {
        // gunicorn ends its workers when it is asked to end, but not when it is killed.
        self.process.signal("-TERM");
        self.process.wait();
    }
}

/// The port in a line such as `Listening at: http://127.0.0.1:8000 (7)`.
fn port(line: &str) -> Option<u16> {
    let (_, rest) = line.split_once("http://127.0.0.1:")?;
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
}

/// A request over a connection of its own.
fn get(address: &str, target: &str, headers: &str) -> Response {
    let response =
        send(address, &format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{headers}\r\n"));
    response.unwrap_or_else(|| panic!("no response to {target} {headers}"))
}

/// Sends one request and reads its response, if there is one.
fn send(address: &str, request: &str) -> Option<Response> {
    Connection::open(address).unwrap().send(request.as_bytes()).ok()
}

/// The status (200, 400, or 0 for any other) and the body of a request over HTTP/2; `None` if the gateway resets it.
fn get_http2(address: &str, path: &str, fields: &[(&str, &str)]) -> Option<(u16, String)> {
    let mut head = b"\x82\x86".to_vec();
    for (name, value) in [(":path", path), (":authority", "a")].iter().chain(fields) {
        head.extend(literal(name, value, false));
    }
    let mut client = FrameClient::open(address);
    client.send(HEADERS, END_STREAM | END_HEADERS, 1, &head).ok()?;
    let (head, body) = client.response(1)?;
    let status = match head[0] {
        0x88 => 200,
        0x8c => 400,
        _ => 0,
    };
    Some((status, String::from_utf8_lossy(&body).into_owned()))
}
