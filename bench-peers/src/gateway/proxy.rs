//! The proxies, and the configuration with which each does the same work: one worker, kept connections, no log, a limit per
//! value of `X-API-Key`.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use super::process::{Core, Server};
use super::tools::Tools;

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Proxy {
    Nginx,
    Haproxy,
    Envoy,
    Tidegate,
    /// Tidegate with a policy that has no limits.
    TidegateUnlimited,
}

/// What the limit does to the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    PassesAll,
    /// All but the first of each key, or nearly: nginx knows no rate under one a minute.
    RefusesAll,
}

/// What every proxy of a work is set to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) tools: &'a Tools,
    pub(crate) upstream: u16,
    pub(crate) limit: Limit,
    pub(crate) tls: bool,
}

/// A proxy that is up.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) server: Server,
    pub(crate) port: u16,
}

impl Proxy {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
            Self::Tidegate => "tidegate",
            Self::TidegateUnlimited => "tidegate without limits",
        }
    }

    /// Starts it on a free port.
    pub(crate) fn start(self, setting: &Setting<'_>) -> anyhow::Result<Running> {
        let port = free_port()?;
        let Setting { tools, tls, .. } = *setting;
        let (file, text, program) = match self {
            Self::Nginx => ("nginx.conf", nginx(setting), &tools.nginx),
            Self::Haproxy => ("haproxy.cfg", haproxy(setting), &tools.haproxy),
            Self::Envoy => ("envoy.yaml", envoy(setting), &tools.envoy),
            Self::Tidegate => ("tidegate.yaml", tidegate(setting, port, true), &tools.tidegate),
            Self::TidegateUnlimited => ("unlimited.yaml", tidegate(setting, port, false), &tools.tidegate),
        };
        let path = write(setting, file, &text, port)?;
        let arguments: &[&str] = match self {
            Self::Nginx => &["-c", &path],
            Self::Haproxy => &["-f", &path],
            Self::Envoy => {
                &["-c", &path, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
            }
            Self::Tidegate | Self::TidegateUnlimited => &["serve", "--config", &path],
        };
        let log = tools.dir.join(file).with_extension("log");
        let server = Server::start(Core::Proxy, program, arguments, log, || is_up(port, tls))?;
        Ok(Running { server, port })
    }
}

/// What stands behind the proxies.
pub(crate) fn start_upstream(tools: &Tools) -> anyhow::Result<Running> {
    let port = free_port()?;
    let setting = Setting { tools, upstream: port, limit: Limit::PassesAll, tls: false };
    let path = write(&setting, "upstream.conf", include_str!("configs/upstream.conf"), port)?;
    let log = tools.dir.join("upstream.log");
    let server = Server::start(Core::Rest, &tools.nginx, &["-c", &path], log, || is_up(port, false))
        .context("the upstream (nginx)")?;
    Ok(Running { server, port })
}

/// Fills in the values that all of them share. Returns the path of the file.
fn write(setting: &Setting<'_>, file: &str, text: &str, port: u16) -> anyhow::Result<String> {
    let Setting { tools, upstream, .. } = setting;
    let text = text
        .replace("@DIR@", &tools.dir.to_string_lossy())
        .replace("@UPSTREAM@", &upstream.to_string())
        .replace("@LISTEN@", &port.to_string());
    let path = tools.dir.join(file);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path.to_string_lossy().into_owned())
}

fn nginx(setting: &Setting<'_>) -> String {
    let (rate, burst) = match setting.limit {
        Limit::PassesAll => ("1000000r/s", "burst=1000000"),
        Limit::RefusesAll => ("1r/m", ""),
    };
    let (cert, key) = pem(setting.tools);
    let tls = format!(
        " ssl;\n    ssl_certificate {cert};\n    ssl_certificate_key {key};\n    ssl_protocols TLSv1.2 TLSv1.3"
    );
    include_str!("configs/nginx.conf")
        .replace("@RATE@", rate)
        .replace("@BURST@", burst)
        .replace("@TLS@", if setting.tls { &tls } else { "" })
}

fn haproxy(setting: &Setting<'_>) -> String {
    let most = match setting.limit {
        Limit::PassesAll => "2000000000",
        Limit::RefusesAll => "1",
    };
    let tls = format!(" ssl crt {}", setting.tools.dir.join("both.pem").display());
    include_str!("configs/haproxy.cfg")
        .replace("@MOST@", most)
        .replace("@TLS@", if setting.tls { &tls } else { "" })
}

fn envoy(setting: &Setting<'_>) -> String {
    let (most, every) = match setting.limit {
        Limit::PassesAll => ("4000000000", "1s"),
        Limit::RefusesAll => ("1", "3600s"),
    };
    let (cert, key) = pem(setting.tools);
    let tls = include_str!("configs/envoy-tls.yaml").replace("@CERT@", &cert).replace("@KEY@", &key);
    include_str!("configs/envoy.yaml")
        .replace("@MOST@", most)
        .replace("@EVERY@", every)
        .replace("          @TLS@\n", if setting.tls { &tls } else { "" })
}

fn tidegate(setting: &Setting<'_>, port: u16, limited: bool) -> String {
    let (cert, key) = pem(setting.tools);
    let listen = if setting.tls {
        format!("[{{ address: \"127.0.0.1:{port}\", tls: {{ cert: {cert}, key: {key} }} }}]")
    } else {
        format!("127.0.0.1:{port}")
    };
    let limits = match setting.limit {
        _ if !limited => "",
        Limit::PassesAll => include_str!("configs/tidegate-pass.yaml"),
        Limit::RefusesAll => include_str!("configs/tidegate-refuse.yaml"),
    };
    include_str!("configs/tidegate.yaml").replace("@ADDRESS@", &listen) + limits
}

fn pem(tools: &Tools) -> (String, String) {
    let path = |name: &str| tools.dir.join(name).to_string_lossy().into_owned();
    (path("cert.pem"), path("key.pem"))
}

/// A port that was free a moment ago.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Whether it answers in HTTP; with TLS, whether it accepts: the first, counted load looks at the answers.
fn is_up(port: u16, tls: bool) -> bool {
    let second = Duration::from_secs(1);
    let probe = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), second)?;
        if tls {
            return Ok(true);
        }
        stream.set_read_timeout(Some(second))?;
        stream.write_all(b"GET /small HTTP/1.1\r\nHost: api.example\r\nX-API-Key: first\r\n\r\n")?;
        let mut start = [0; 9];
        stream.read_exact(&mut start)?;
        Ok(&start == b"HTTP/1.1 ")
    };
    probe().unwrap_or(false)
}
