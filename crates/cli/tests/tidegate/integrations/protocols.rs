//! Asks a decision service over its protocols, with curl and redis-cli.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use tidegate_testkit::port::free_address;

/// The seconds after which a client gives up. No test that succeeds waits this long.
const CLIENT_TIMEOUT: &str = "10";

/// The answer to a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Admitted,
    Rejected,
    /// There is no decision, because the store fails.
    StoreFailed,
    /// There is no connection, or it is closed without an answer.
    Refused,
}

/// A protocol of the decision service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServiceProtocol {
    Http,
    Grpc,
    Resp,
}

impl ServiceProtocol {
    pub(super) const ALL: [Self; 3] = [Self::Http, Self::Grpc, Self::Resp];
}

/// The files that a client of TLS uses.
#[derive(Clone, Debug)]
pub(super) struct TlsFiles {
    /// The certificates that it trusts.
    pub(super) trusted: String,
    /// Its certificate and private key.
    pub(super) certificate: Option<(String, String)>,
}

/// Where a decision service listens, and how clients connect.
#[derive(Clone, Debug)]
pub(super) struct ServiceClient {
    pub(super) grpc: String,
    pub(super) http: String,
    pub(super) resp: String,
    pub(super) tls: Option<TlsFiles>,
}

impl ServiceClient {
    /// Free addresses, without TLS.
    pub(super) fn new() -> Self {
        let [grpc, http, resp] = [(); 3].map(|()| free_address().to_string());
        Self { grpc, http, resp, tls: None }
    }

    /// The key `service` of a policy that listens at the addresses.
    pub(super) fn policy_key(&self) -> String {
        let Self { grpc, http, resp, .. } = self;
        format!("service: {{ grpc: '{grpc}', http: '{http}', resp: '{resp}' }}\n")
    }

    /// Asks whether `client` may spend a unit of `rule`.
    pub(super) fn check(&self, protocol: ServiceProtocol, rule: &str, client: &str) -> Answer {
        match protocol {
            ServiceProtocol::Http => self.check_over_http(rule, client),
            ServiceProtocol::Grpc => {
                let entries = [("rule", rule), ("client", client)];
                self.rate_limit("tidegate", &descriptor(&entries))
            }
            ServiceProtocol::Resp => self.command(&["TIDEGATE.CHECK", rule, client], '1'),
        }
    }

    fn check_over_http(&self, rule: &str, client: &str) -> Answer {
        let body = format!(r#"{{"rule":"{rule}","client":"{client}"}}"#);
        let headers = ["content-type: application/json"];
        let Some(response) = self.curl(&self.http, "/v1/check", &headers, body.as_bytes()) else {
            return Answer::Refused;
        };
        let text = String::from_utf8_lossy(&response.body);
        match response.status.as_str() {
            "200" if text.contains(r#""admitted":true"#) => Answer::Admitted,
            "200" if text.contains(r#""admitted":false"#) => Answer::Rejected,
            "503" => Answer::StoreFailed,
            status => panic!("{status} {text}"),
        }
    }

    /// Asks Envoy's rate limit service about one descriptor.
    pub(super) fn rate_limit(&self, domain: &str, descriptor: &[u8]) -> Answer {
        let call = grpc_message(&[field(1, domain.as_bytes()), field(2, descriptor)].concat());
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let headers = ["content-type: application/grpc", "te: trailers"];
        let Some(response) = self.curl(&self.grpc, path, &headers, &call) else { return Answer::Refused };
        // The prefix is followed by `overall_code`: OK is 1, OVER_LIMIT is 2. An error has no message.
        match (response.body.get(5..7), response.grpc_status.as_str()) {
            (Some([8, 1]), _) => Answer::Admitted,
            (Some([8, 2]), _) => Answer::Rejected,
            (None, "14") => Answer::StoreFailed,
            _ => panic!("{response:?}"),
        }
    }

    /// Asks with a limit that the command carries: `burst` at once, then one per hour.
    pub(super) fn throttle(&self, key: &str, burst: u32) -> Answer {
        self.command(&["CL.THROTTLE", key, &burst.saturating_sub(1).to_string(), "1", "3600"], '0')
    }

    /// The answer to a command whose reply begins with `admitted` if the request is.
    fn command(&self, words: &[&str], admitted: char) -> Answer {
        let output = self.redis_cli(words);
        let reply = String::from_utf8_lossy(&output.stdout);
        match reply.chars().next() {
            None => Answer::Refused,
            Some(first) if first == admitted => Answer::Admitted,
            Some('0' | '1') => Answer::Rejected,
            Some(_) if reply.starts_with("STOREFAILED ") => Answer::StoreFailed,
            Some(_) => panic!("{words:?}: {reply}"),
        }
    }

    /// Runs redis-cli with a command.
    pub(super) fn redis_cli(&self, words: &[&str]) -> Output {
        let (_, port) = self.resp.rsplit_once(':').unwrap();
        let mut command = Command::new("timeout");
        command.args([CLIENT_TIMEOUT, "redis-cli", "-p", port]);
        if let Some(TlsFiles { trusted, certificate }) = &self.tls {
            command.args(["--tls", "--sni", "localhost", "--cacert", trusted]);
            if let Some((chain, key)) = certificate {
                command.args(["--cert", chain, "--key", key]);
            }
        }
        let output = command.args(words).output().unwrap();
        assert_ne!(output.status.code(), Some(124), "no reply to {words:?}");
        output
    }

    /// Sends a POST; `None` if there is no response.
    fn curl(&self, address: &str, path: &str, headers: &[&str], body: &[u8]) -> Option<CurlResponse> {
        let (_, port) = address.rsplit_once(':').unwrap();
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", CLIENT_TIMEOUT, "--data-binary", "@-"]);
        curl.args(["-w", "\n%{http_code} %header{grpc-status}"]);
        for header in headers {
            curl.args(["-H", header]);
        }
        match &self.tls {
            None => curl.args(["--http2-prior-knowledge", &format!("http://{address}{path}")]),
            Some(TlsFiles { trusted, certificate }) => {
                if let Some((chain, key)) = certificate {
                    curl.args(["--cert", chain, "--key", key]);
                }
                curl.args(["--http2", "--resolve", &format!("localhost:{port}:127.0.0.1")]);
                curl.args(["--cacert", trusted, &format!("https://localhost:{port}{path}")])
            }
        };
        let mut child = curl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // curl ends before it has read the body if there is no connection.
        let _ = child.stdin.take().unwrap().write_all(body);
        let output = child.wait_with_output().unwrap();
        let timed_out = 28;
        assert_ne!(output.status.code(), Some(timed_out), "no response to {path}");
        output.status.success().then(|| CurlResponse::parse(&output.stdout))
    }
}

/// A response as curl prints it.
#[derive(Debug)]
struct CurlResponse {
    status: String,
    grpc_status: String,
    body: Vec<u8>,
}

impl CurlResponse {
    fn parse(output: &[u8]) -> Self {
        let end = output.iter().rposition(|byte| *byte == b'\n').unwrap();
        let last = String::from_utf8_lossy(&output[end + 1..]);
        let (status, grpc_status) = last.split_once(' ').unwrap();
        Self { status: status.to_owned(), grpc_status: grpc_status.to_owned(), body: output[..end].to_vec() }
    }
}

/// Field `number` of a message with `bytes` as its value.
pub(super) fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).ok().filter(|length| *length < 128).unwrap();
    [&[number << 3 | 2, length], bytes].concat()
}

/// A descriptor of a rate limit call.
pub(super) fn descriptor(entries: &[(&str, &str)]) -> Vec<u8> {
    let entry = |(key, value): &(&str, &str)| {
        field(1, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat())
    };
    entries.iter().flat_map(entry).collect()
}

/// A descriptor that carries a limit of `requests` per hour.
pub(super) fn descriptor_with_limit(entries: &[(&str, &str)], requests: u8) -> Vec<u8> {
    assert!(requests < 128);
    let hour = 3;
    [descriptor(entries), field(2, &[8, requests, 16, hour])].concat()
}

/// A gRPC frame with `message`.
pub(super) fn grpc_message(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), message].concat()
}
