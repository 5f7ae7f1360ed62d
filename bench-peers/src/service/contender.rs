//! The servers that decide: how each is started and asked for the same decision.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use super::grpc::GrpcLoad;
use super::load::{Load, LoadResult, Until};
use super::programs::Programs;
use super::replies::{self, ReplyFormat};
use super::requests::{RequestSet, command, post, rls_message, throttle_message};
use crate::gateway::process::{Core, Server};

const RLS_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const THROTTLECRAB_PATH: &str = "/throttlecrab.RateLimiter/Throttle";
/// A burst of 16 and 30 per minute: at the highest rates, many requests are rejected.
const LIMIT: [&str; 3] = ["15", "30", "60"];
/// A limit that admits all requests of the benchmark.
const WIDE_LIMIT: [&str; 3] = ["1000000", "1000000", "60"];
/// A limit under which a key that was used once is not full again before the end.
const LASTING_LIMIT: [&str; 3] = ["15", "30", "86400"];

/// A server, and what it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Contender {
    Tidegate,
    /// With a limit that admits everything: an admission writes, a rejection does not.
    TidegateAdmitting,
    Throttlecrab,
    RedisIncr,
    /// redis-server with the usual token-bucket script.
    RedisClassic,
    Limitador,
}

/// The protocol of a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// The Redis protocol, with `depth` commands in one write.
    Resp {
        depth: usize,
    },
    Http,
    /// gRPC, with `streams` concurrent calls on each connection.
    Grpc {
        streams: usize,
    },
}

/// What a server is asked, and how its answers look.
#[derive(Debug)]
enum Traffic {
    Bytes { requests: RequestSet, format: ReplyFormat, depth: usize },
    Calls { messages: RequestSet, path: &'static str, streams: usize },
}

/// A server that is up.
#[derive(Debug)]
pub(crate) struct RunningServer {
    pub(crate) server: Server,
    pub(crate) port: u16,
}

/// A server that is up, and its load.
#[derive(Debug)]
pub(crate) struct RunningContender {
    pub(crate) running: RunningServer,
    traffic: Traffic,
}

impl Contender {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tidegate => "tidegate",
            Self::TidegateAdmitting => "tidegate, all admitted",
            Self::Throttlecrab => "throttlecrab-server",
            Self::RedisIncr => "redis-server INCR",
            Self::RedisClassic => "redis-server, classic script",
            Self::Limitador => "limitador-server",
        }
    }

    /// Starts the contender for a work with `keys` keys.
    pub(crate) fn start(
        self,
        programs: &Programs,
        transport: Transport,
        keys: usize,
    ) -> anyhow::Result<RunningContender> {
        let running = self.start_server(programs, transport)?;
        let traffic = match transport {
            Transport::Resp { depth } => self.commands(running.port, keys, depth, LIMIT)?,
            Transport::Http => self.checks(keys)?,
            Transport::Grpc { streams } => self.calls(keys, streams)?,
        };
        Ok(RunningContender { running, traffic })
    }

    /// Starts the contender with the Redis protocol for a work with `keys` keys that all stay in use.
    pub(crate) fn start_with_lasting_keys(
        self,
        programs: &Programs,
        keys: usize,
    ) -> anyhow::Result<RunningContender> {
        let running = self.start_server(programs, Transport::Resp { depth: 1 })?;
        let traffic = self.commands(running.port, keys, 1, LASTING_LIMIT)?;
        Ok(RunningContender { running, traffic })
    }

    fn start_server(self, programs: &Programs, transport: Transport) -> anyhow::Result<RunningServer> {
        let number = free_port()?;
        let port = number.to_string();
        let limits = programs.dir.join("limitador.yaml").to_string_lossy().into_owned();
        let (program, arguments): (&Path, Vec<&str>) = match self {
            Self::Tidegate | Self::TidegateAdmitting => {
                return start_tidegate(programs, transport, "requests: 30, window: 60, burst: 16");
            }
            Self::Throttlecrab => {
                let [flag, host_flag, port_flag] = match transport {
                    Transport::Resp { .. } => ["--redis", "--redis-host", "--redis-port"],
                    Transport::Http => ["--http", "--http-host", "--http-port"],
                    Transport::Grpc { .. } => ["--grpc", "--grpc-host", "--grpc-port"],
                };
                let options = [flag, host_flag, "127.0.0.1", port_flag, &port, "--log-level", "error"];
                (&programs.throttlecrab, options.to_vec())
            }
            Self::RedisIncr | Self::RedisClassic => {
                let options = ["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no"];
                (&programs.redis, options.to_vec())
            }
            Self::Limitador => {
                let program =
                    programs.limitador.as_deref().context("no binary was given with --limitador")?;
                let options = [
                    "--rls-ip",
                    "127.0.0.1",
                    "--rls-port",
                    &port,
                    "--http-ip",
                    "127.0.0.1",
                    "--http-port",
                    "0",
                ];
                (program, options.into_iter().chain([&*limits, "memory"]).collect())
            }
        };
        start_server(programs, program, &arguments, number)
    }

    fn commands(
        self,
        port: u16,
        keys: usize,
        depth: usize,
        limit: [&'static str; 3],
    ) -> anyhow::Result<Traffic> {
        let [burst, count, period] = if self == Self::TidegateAdmitting { WIDE_LIMIT } else { limit };
        let sha = if self == Self::RedisClassic { load_classic_script(port)? } else { String::new() };
        let requests = RequestSet::new(keys, |key| {
            let key = format!("user:{key}");
            match self {
                Self::Throttlecrab => command(&["THROTTLE", &key, burst, count, period, "1"]),
                Self::RedisIncr => command(&["INCR", &key]),
                Self::RedisClassic => command(&["EVALSHA", &sha, "1", &key, "0.5", "16", "1"]),
                _ => command(&["CL.THROTTLE", &key, burst, count, period, "1"]),
            }
        })?;
        let format = match self {
            Self::Throttlecrab => replies::THROTTLE,
            Self::RedisIncr => replies::INCR,
            Self::RedisClassic => replies::CLASSIC,
            _ => replies::REDIS_CELL,
        };
        Ok(Traffic::Bytes { requests, format, depth })
    }

    fn checks(self, keys: usize) -> anyhow::Result<Traffic> {
        let requests = RequestSet::new(keys, |key| match self {
            Self::Throttlecrab => post(
                "/throttle",
                &format!(
                    r#"{{"key":"user:{key}","max_burst":15,"count_per_period":30,"period":60,"quantity":1}}"#
                ),
            ),
            _ => post("/v1/check", &format!(r#"{{"rule":"default","client":"user:{key}","cost":1}}"#)),
        })?;
        let format = if self == Self::Throttlecrab { replies::THROTTLE_JSON } else { replies::CHECK };
        Ok(Traffic::Bytes { requests, format, depth: 1 })
    }

    fn calls(self, keys: usize, streams: usize) -> anyhow::Result<Traffic> {
        let messages = RequestSet::new(keys, |key| {
            let client = format!("user:{key}");
            match self {
                Self::Throttlecrab => throttle_message(&client, [15, 30, 60, 1]),
                _ => rls_message("bench", ("client", &client)),
            }
        })?;
        let path = if self == Self::Throttlecrab { THROTTLECRAB_PATH } else { RLS_PATH };
        Ok(Traffic::Calls { messages, path, streams })
    }
}

impl RunningContender {
    pub(crate) fn load(&self, connections: usize, until: Until) -> anyhow::Result<LoadResult> {
        let port = self.running.port;
        match (&self.traffic, until) {
            (Traffic::Bytes { requests, format, depth }, until) => {
                Load { port, connections, depth: *depth, requests, format: *format }.run(until)
            }
            (Traffic::Calls { messages, path, streams }, Until::Elapsed(time)) => {
                GrpcLoad { port, connections, streams: *streams, path, messages }.run(time)
            }
            (Traffic::Calls { .. }, Until::EachSentOnce) => anyhow::bail!("gRPC loads are bounded by time"),
        }
    }
}

/// Starts Tidegate with one listener and a default limit.
pub(crate) fn start_tidegate(
    programs: &Programs,
    transport: Transport,
    limit: &str,
) -> anyhow::Result<RunningServer> {
    let port = free_port()?;
    let protocol = match transport {
        Transport::Resp { .. } => "resp",
        Transport::Http => "http",
        Transport::Grpc { .. } => "grpc",
    };
    // Commands of the Redis protocol carry their limits. Those of a policy would have half of the memory.
    let rate_limits = match transport {
        Transport::Resp { .. } => String::new(),
        _ => format!("rate_limits: {{ default: {{ algorithm: token_bucket, {limit} }} }}"),
    };
    let policy = include_str!("configs/tidegate.yaml")
        .replace("@ADMIN@", &free_port()?.to_string())
        .replace("@PROTOCOL@", protocol)
        .replace("@LISTEN@", &port.to_string())
        .replace("@RATE_LIMITS@", &rate_limits);
    let policy = programs.write(&format!("tidegate-{port}.yaml"), &policy)?;
    let envoy = programs.dir.join("envoy").to_string_lossy().into_owned();
    let mut arguments = vec!["serve", "--config", &policy];
    if protocol == "grpc" {
        arguments.extend(["--envoy-config", &envoy]);
    }
    start_server(programs, &programs.tidegate, &arguments, port)
}

/// Starts a server on the first core and waits until its port accepts.
pub(crate) fn start_server(
    programs: &Programs,
    program: &Path,
    arguments: &[&str],
    port: u16,
) -> anyhow::Result<RunningServer> {
    anyhow::ensure!(program.is_file(), "{} is missing", program.display());
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let log = programs.dir.join(format!("{name}-{port}.log"));
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let is_up = || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
    let server =
        Server::start(Core::Proxy, program, arguments, log, is_up).with_context(|| name.into_owned())?;
    Ok(RunningServer { server, port })
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Loads the script. Returns its digest.
fn load_classic_script(port: u16) -> anyhow::Result<String> {
    let mut connection = redis::Client::open(("127.0.0.1", port))?.get_connection()?;
    let script = include_str!("../redis/classic.lua");
    Ok(redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut connection)?)
}
