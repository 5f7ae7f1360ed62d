//! Operators and the gateway that runs.

mod agreement;
mod bans;
mod crash;
mod crawl;
mod limits;
mod silent;
mod start;
mod whole;

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::process::{DEADLINE, Policy, Server, tidegate};
use crate::wire::{echo, length, read_head};

/// A gateway in front of a service, with an admin API on a free port.
pub(crate) struct Gate {
    pub(crate) server: Server,
    pub(crate) policy: Policy,
    /// Where operators ask.
    pub(crate) admin: String,
    pub(crate) token: String,
}

/// What a request was answered with.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(super) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Five requests an hour for each user, and for each address without one.
pub(crate) fn policy_text(rest: &str) -> String {
    format!(
        "upstreams: {{ api: {{ servers: ['http://{}'] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n\
         admin: {{ listen: '127.0.0.1:0' }}\n\
         clients: {{ identify_by: [user, ip], user: {{ header: X-User }}, ip: {{ trusted_proxies: 127.0.0.1 }} }}\n\
         rate_limits: {{ default: {{ requests: 5, window: 1h, algorithm: sliding_window_log }} }}\n{rest}",
        echo()
    )
}

impl Gate {
    pub(super) fn start(name: &str, rest: &str) -> Self {
        Self::serve(Policy::new(name, &policy_text(rest)))
    }

    pub(crate) fn serve(policy: Policy) -> Self {
        let server = Server::start(&["--config", &policy.path()]);
        let (admin, token) = admin_of(&server, &policy);
        Self { server, policy, admin, token }
    }

    /// The same gateway in a new process, after this one has ended.
    pub(super) fn again(self) -> Self {
        let Self { server, policy, .. } = self;
        drop(server);
        Self::serve(policy)
    }

    /// Asks with the token.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let token = format!("Authorization: Bearer {}\r\n", self.token);
        request(&self.admin, method, path, &token, body)
    }

    /// What a client gets.
    pub(super) fn get(&self, headers: &str) -> u16 {
        request(&self.server.address, "GET", "/", headers, "").status
    }

    /// `tidegate` with the policy.
    pub(super) fn command(&self, args: &[&str]) -> (bool, String, String) {
        let url = format!("http://{}", self.admin);
        let policy = self.policy.path();
        let output = tidegate(&[args, &["--config", &policy, "--admin", &url]].concat());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    }
}

fn admin_of(server: &Server, policy: &Policy) -> (String, String) {
    let line = server.welcome.lines().find(|line| line.starts_with("  admin ")).unwrap();
    let (_, rest) = line.split_once("http://").unwrap();
    let (admin, _) = rest.split_once(';').unwrap();
    let token = std::fs::read_to_string(policy.path().replace(".yaml", ".state/admin.token")).unwrap();
    (admin.to_owned(), token.trim().to_owned())
}

pub(super) fn request(address: &str, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    try_request(address, method, path, headers, body)
        .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

pub(super) fn try_request(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> std::io::Result<Answer> {
    let mut stream = BufReader::new(TcpStream::connect(address)?);
    stream.get_ref().set_read_timeout(Some(DEADLINE))?;
    let host = if headers.contains("Host:") { String::new() } else { format!("Host: {address}\r\n") };
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    stream.get_mut().write_all(request.as_bytes())?;
    let head = read_head(&mut stream)?;
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = Vec::new();
    stream.read_to_end(&mut body)?;
    if let Some(length) = length(&head).filter(|_| method != "HEAD")
        && length != body.len() as u64
    {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Answer { status, head, body: String::from_utf8_lossy(&body).into_owned() })
}
