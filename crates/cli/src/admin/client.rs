//! The admin API, as a client: where it is, which token it takes, and one request after another.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tidegate_admin::AdminToken;
use tidegate_policy::{AdminPlan, compile, split_port};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::args::AdminArgs;
use crate::file::{self, Folder};
use crate::serve::state;

/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// A gateway that hands over to its successor is asked again.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);
const LARGEST: usize = 256 << 20;

/// Where to ask, and what lets us in.
pub(super) struct AdminClient {
    /// Host and port.
    authority: String,
    token: AdminToken,
}

impl AdminClient {
    /// By what was typed: a policy, an address and a token, or nothing.
    pub(super) fn find(args: &AdminArgs) -> anyhow::Result<Self> {
        let (found, kept) = match &args.config {
            Some(path) => {
                let (address, token) = of_policy(path)?;
                (address, Some(token))
            }
            None => (AdminPlan::LISTEN.to_owned(), state::own_token_file()),
        };
        let authority = match &args.admin {
            Some(url) => authority(url)?,
            None => found,
        };
        let file = args.token_file.clone().or(kept).context("say where the token is: --token-file FILE")?;
        let token = state::read_token(&file).map_err(|error| {
            if !state::is_missing(&error) {
                return error;
            }
            anyhow!(
                "there is no token in {}; start the gateway first, or say which is meant: --config POLICY, or \
                 --admin URL and --token-file FILE",
                file.display()
            )
        })?;
        Ok(Self { authority, token })
    }

    /// Asks, and gives the answer if it is a good one.
    pub(super) fn ask(&self, method: &Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut attempt = 1;
            loop {
                let (status, answer) =
                    timeout(PATIENCE, self.once(method, path, body)).await.with_context(|| {
                        format!("{} gave no answer within {} s", self.authority, PATIENCE.as_secs())
                    })??;
                if status == StatusCode::SERVICE_UNAVAILABLE && attempt < ATTEMPTS {
                    attempt += 1;
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                if status.is_success() {
                    return Ok(answer);
                }
                return Err(refused(status, &answer));
            }
        })
    }

    async fn once(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let at = &self.authority;
        let stream = TcpStream::connect(at).await.map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => anyhow!(
                "nothing listens on {at}; is the gateway running? Say which is meant: --config POLICY, or --admin URL"
            ),
            _ => anyhow!("cannot reach {at}: {error}"),
        })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut token = HeaderValue::try_from(format!("Bearer {}", self.token.expose()))?;
        token.set_sensitive(true);
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, at)
            .header(AUTHORIZATION, token)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let broken = || format!("{at} broke off, or is no admin API");
        let response = sender.send_request(request).await.with_context(broken)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        let body = body.map_err(|error| anyhow!(error)).with_context(broken)?.to_bytes();
        let answer =
            serde_json::from_slice(&body).with_context(|| format!("{at} is no admin API: {status}"))?;
        Ok((status, answer))
    }
}

/// What the API says is wrong, where, and what to do.
fn refused(status: StatusCode, answer: &Value) -> anyhow::Error {
    let text = |key: &str| answer[key].as_str().map(super::visible).unwrap_or_default();
    let message = match text("message") {
        message if message.is_empty() => status.to_string(),
        message => message,
    };
    match text("hint") {
        hint if hint.is_empty() => anyhow!(message),
        hint => anyhow!("{message}\n  hint: {hint}"),
    }
}

/// Where the admin API of a policy listens, and its token.
fn of_policy(path: &Path) -> anyhow::Result<(String, PathBuf)> {
    let name = path.display().to_string();
    let bytes = file::policy(path).with_context(|| format!("{name} cannot be read"))?;
    let plan = match compile(&name, &bytes, &Folder::of(path)) {
        Ok(compiled) => compiled.plan,
        Err(problems) => {
            eprint!("{problems}");
            bail!(
                "{name} is no good policy; name the gateway with --admin URL and --token-file FILE instead"
            );
        }
    };
    let Some(admin) = &plan.admin else { bail!("{name} says `admin: off`") };
    Ok((reachable(admin.address()), state::token_file(path, &plan)))
}

/// The address to ask for one that listens everywhere.
fn reachable(address: &str) -> String {
    let (host, Some(port)) = split_port(address) else { return address.to_owned() };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(host)) if host.is_unspecified() => format!("127.0.0.1:{port}"),
        Ok(IpAddr::V6(host)) if host.is_unspecified() => format!("[::1]:{port}"),
        _ => address.to_owned(),
    }
}

fn authority(url: &str) -> anyhow::Result<String> {
    let wrong = || format!("`{url}` is no URL of an admin API; write it as http://127.0.0.1:9900");
    let uri: Uri = url.parse().with_context(wrong)?;
    if uri.scheme_str().is_some_and(|scheme| scheme != "http") || !matches!(uri.path(), "" | "/") {
        bail!(wrong());
    }
    let authority = uri.authority().with_context(wrong)?;
    let port = authority.port_u16().unwrap_or(80);
    Ok(format!("{}:{port}", authority.host()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_to_ask_is_found() {
        assert_eq!(authority("http://127.0.0.1:9900").unwrap(), "127.0.0.1:9900");
        assert_eq!(authority("http://[::1]:9900/").unwrap(), "[::1]:9900");
        assert_eq!(authority("localhost:9900").unwrap(), "localhost:9900");
        for wrong in ["https://localhost:9900", "http://localhost:9900/v1", "", "http://"] {
            assert!(authority(wrong).unwrap_err().to_string().contains("http://127.0.0.1:9900"), "{wrong}");
        }
        assert_eq!(reachable("0.0.0.0:9900"), "127.0.0.1:9900");
        assert_eq!(reachable("[::]:9900"), "[::1]:9900");
        assert_eq!(reachable("192.0.2.1:9900"), "192.0.2.1:9900");
    }
}
