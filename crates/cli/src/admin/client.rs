//! A client of the admin API: finds the address and the token, and sends requests.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tidegate_admin::{AdminToken, ConnectionAddresses, GatewayPaths, ServerChallenge};
use tidegate_policy::{AdminLocation, AdminPlan, locate_admin, split_port};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::args::AdminArgs;
use crate::file;
use crate::print::write_stderr;
use crate::serve::state::{self, TokenReader};

/// The timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// A gateway responds 503 while it hands over to a new process; the request is then sent again.
const MAX_ATTEMPTS: u32 = 20;
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// The code of an error of the store.
const STORE_UNAVAILABLE: &str = "store_unavailable";
const STORE_HINT: &str = "nothing was changed in Redis; see `tidegate status`, examine it with `tidegate doctor`, and repeat the \
                          command when it works";
const MAX_RESPONSE_BYTES: usize = 256 << 20;

/// The address of an admin API and its token.
pub(super) struct AdminClient {
    /// Host and port.
    authority: String,
    token: AdminToken,
    /// The file of the token, for messages.
    token_file: PathBuf,
    /// Whether the user has named the address. Otherwise the server must prove that it has the token before it gets it: any
    /// process can listen on an address that the gateway does not use.
    is_named: bool,
    /// The gateway that is meant: the one of the policy, unless the user has named the address.
    expected: GatewayPaths,
    /// Whether nothing says which gateway is meant. Then the user is told which one it was.
    is_default: bool,
}

/// The response to a request.
struct AdminReply {
    status: StatusCode,
    body: Value,
    /// The gateway that sent it.
    gateway: GatewayPaths,
}

impl AdminClient {
    /// Finds the address and the token by the policy, by the arguments, or in their default locations.
    pub(super) fn from_args(args: &AdminArgs) -> anyhow::Result<Self> {
        let is_specified = args.admin.is_some() && args.token_file.is_some();
        let (default_authority, default_token_file, paths) = match &args.config {
            Some(path) if !is_specified => {
                let (address, token, paths) = locate_by_policy(path)?;
                (address, Some(token), paths)
            }
            _ => (AdminPlan::LISTEN.to_owned(), state::user_token_file(), GatewayPaths::default()),
        };
        let authority = match &args.admin {
            Some(url) => parse_authority(url)?,
            None => default_authority,
        };
        let file = args
            .token_file
            .clone()
            .or(default_token_file)
            .context("no admin token file found; pass --token-file FILE")?;
        let token = state::read_token(&file, TokenReader::Command).map_err(|error| {
            if !state::is_not_found(&error) {
                return error;
            }
            anyhow!(
                "no admin token in {}: no such file; start the gateway first, or specify the gateway with --config POLICY \
                 or with --admin URL and --token-file FILE",
                file.display()
            )
        })?;
        let is_named = args.admin.is_some();
        let expected = if is_named { GatewayPaths::default() } else { paths };
        let is_default = !is_named && args.config.is_none();
        Ok(Self { authority, token, token_file: file, is_named, expected, is_default })
    }

    /// Sends a request. Returns the body of a successful response.
    pub(super) fn send(&self, method: &Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut attempt = 1;
            loop {
                let AdminReply { status, body: result, gateway } =
                    timeout(REQUEST_TIMEOUT, self.send_once(method, path, body)).await.with_context(
                        || {
                            format!(
                                "no response from {} within {} s; check that the gateway is running",
                                self.authority,
                                REQUEST_TIMEOUT.as_secs()
                            )
                        },
                    )??;
                if is_handing_over(status, &result) && attempt < MAX_ATTEMPTS {
                    attempt += 1;
                    tokio::time::sleep(RETRY_DELAY).await;
                    continue;
                }
                if status.is_success() {
                    if self.is_default && *method != Method::GET {
                        write_stderr(format_args!("gateway at {}: {gateway}\n", self.authority));
                    }
                    return Ok(result);
                }
                if status == StatusCode::UNAUTHORIZED {
                    bail!(
                        "the gateway at {} rejects the token in {}; pass the token file of that gateway with \
                         --token-file FILE",
                        self.authority,
                        self.token_file.display()
                    );
                }
                return Err(api_error(status, &result));
            }
        })
    }

    async fn send_once(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<AdminReply> {
        let address = &self.authority;
        let stream = TcpStream::connect(address).await.map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => anyhow!(
                "cannot connect to {address}: connection refused; start the gateway, or specify another one with \
                 --config POLICY or --admin URL"
            ),
            _ => anyhow!("cannot connect to {address}: {error}"),
        })?;
        let addresses = ConnectionAddresses { client: stream.local_addr()?, server: stream.peer_addr()? };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        if !self.is_named {
            self.verify_server(&mut sender, addresses).await?;
        }
        let token = format!("Bearer {}", self.token.expose());
        let body = body.map(Value::to_string).unwrap_or_default();
        self.exchange(&mut sender, method, (path, &token), body).await
    }

    /// Makes the server prove that it has the token, over the connection on which it will get the token.
    async fn verify_server(
        &self,
        sender: &mut SendRequest<Full<Bytes>>,
        addresses: ConnectionAddresses,
    ) -> anyhow::Result<()> {
        let challenge = ServerChallenge::new(&self.token, addresses)?;
        let target = (ServerChallenge::PATH, &*challenge.authorization());
        let response = self.exchange(sender, &Method::GET, target, String::new()).await;
        let is_proven = response.is_ok_and(|reply| {
            reply.status == StatusCode::OK
                && reply.body["proof"].as_str().is_some_and(|proof| challenge.is_met_by(proof))
        });
        if !is_proven {
            bail!(
                "the process that listens at {} does not have the token in {}, so it was not sent; check that the gateway is \
                 running there, or specify another one with --config POLICY, or name the address with --admin URL to send \
                 the token to it all the same",
                self.authority,
                self.token_file.display()
            );
        }
        Ok(sender.ready().await?)
    }

    /// Sends a request and reads the response.
    async fn exchange(
        &self,
        sender: &mut SendRequest<Full<Bytes>>,
        method: &Method,
        (path, authorization): (&str, &str),
        body: String,
    ) -> anyhow::Result<AdminReply> {
        let address = &self.authority;
        let mut authorization = HeaderValue::try_from(authorization)?;
        authorization.set_sensitive(true);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, address)
            .header(AUTHORIZATION, authorization)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))?;
        self.expected.write(request.headers_mut());
        let broken = || format!("{address} closed the connection or is not an admin API");
        let response = sender.send_request(request).await.with_context(broken)?;
        let (status, gateway) = (response.status(), GatewayPaths::read(response.headers()));
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| anyhow!(error)).with_context(broken)?.to_bytes();
        let body = serde_json::from_slice(&body)
            .map_err(|_| anyhow!("{address} is not an admin API: it responded {status} without JSON"))?;
        Ok(AdminReply { status, body, gateway })
    }
}

/// Whether another process will soon respond. A store that fails may do so for long.
fn is_handing_over(status: StatusCode, result: &Value) -> bool {
    status == StatusCode::SERVICE_UNAVAILABLE && result["error"] != STORE_UNAVAILABLE
}

/// The error message and the hint of an API response.
fn api_error(status: StatusCode, result: &Value) -> anyhow::Error {
    let text = |key: &str| result[key].as_str().map(super::replace_invisible).unwrap_or_default();
    let message = match text("message") {
        message if message.is_empty() => status.to_string(),
        message => message,
    };
    match text("hint") {
        hint if hint.is_empty() && result["error"] == STORE_UNAVAILABLE => {
            anyhow!("{message}\n  hint: {STORE_HINT}")
        }
        hint if hint.is_empty() => anyhow!(message),
        hint => anyhow!("{message}\n  hint: {hint}"),
    }
}

/// Returns the address of the admin API of a policy, its token file, and the paths of its gateway. The policy may be invalid: the gateway runs with an
/// earlier version of it.
fn locate_by_policy(path: &Path) -> anyhow::Result<(String, PathBuf, GatewayPaths)> {
    let name = path.display().to_string();
    let bytes = file::read_policy(path)
        .map_err(|error| anyhow!("cannot read {name}: {}", file::describe_io_error(&error)))?;
    let AdminLocation { admin, directory, syntax } = match locate_admin(&name, &bytes) {
        Ok(location) => location,
        Err(problems) => {
            write_stderr(problems);
            bail!(
                "{name} does not say where the admin API is; fix the problems listed above, or specify the gateway with \
                 --admin URL and --token-file FILE"
            );
        }
    };
    if !syntax.is_empty() {
        write_stderr(format_args!(
            "{name} is invalid (`tidegate check {name}` says why); `admin` and `store.directory` are read up to the first \
             error\n"
        ));
    }
    let Some(admin) = &admin else {
        bail!("{name} disables the admin API (`admin: off`); remove that line and restart the gateway")
    };
    let directory = directory.as_deref();
    let paths = GatewayPaths {
        policy: Some(std::path::absolute(path)?),
        state: Some(std::path::absolute(state::state_folder(path, directory))?),
    };
    Ok((connectable_address(admin.address()), state::token_file(path, admin, directory), paths))
}

/// Replaces an unspecified address, such as 0.0.0.0, by the loopback address.
fn connectable_address(address: &str) -> String {
    let (host, Some(port)) = split_port(address) else { return address.to_owned() };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(host)) if host.is_unspecified() => format!("127.0.0.1:{port}"),
        Ok(IpAddr::V6(host)) if host.is_unspecified() => format!("[::1]:{port}"),
        _ => address.to_owned(),
    }
}

fn parse_authority(url: &str) -> anyhow::Result<String> {
    let invalid_url =
        || format!("invalid admin API URL `{url}`: expected a URL such as http://127.0.0.1:9900");
    let uri: Uri = url.parse().with_context(invalid_url)?;
    if uri.scheme_str().is_some_and(|scheme| scheme != "http") || !matches!(uri.path(), "" | "/") {
        bail!(invalid_url());
    }
    let authority = uri.authority().with_context(invalid_url)?;
    let port = authority.port_u16().unwrap_or(80);
    Ok(format!("{}:{port}", authority.host()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_url_and_unspecified_address_become_connectable_addresses() {
        assert_eq!(parse_authority("http://127.0.0.1:9900").unwrap(), "127.0.0.1:9900");
        assert_eq!(parse_authority("http://[::1]:9900/").unwrap(), "[::1]:9900");
        assert_eq!(parse_authority("localhost:9900").unwrap(), "localhost:9900");
        for invalid in ["https://localhost:9900", "http://localhost:9900/v1", "", "http://"] {
            assert!(
                parse_authority(invalid).unwrap_err().to_string().contains("http://127.0.0.1:9900"),
                "{invalid}"
            );
        }
        assert_eq!(connectable_address("0.0.0.0:9900"), "127.0.0.1:9900");
        assert_eq!(connectable_address("[::]:9900"), "[::1]:9900");
        assert_eq!(connectable_address("192.0.2.1:9900"), "192.0.2.1:9900");
    }
}
