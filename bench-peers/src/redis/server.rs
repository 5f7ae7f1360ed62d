//! A redis-server on a core of its own, and what it says about itself.

use std::collections::HashMap;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use rustix::thread::{CpuSet, sched_setaffinity};
use tidegate_redis::{Endpoint, RedisConfig};
use tidegate_store::SystemClock;

use crate::gateway::process::{Core, Server};

/// A running server that keeps nothing on disk.
#[derive(Debug)]
pub(crate) struct RedisProcess {
    _server: Server,
    url: String,
}

/// Figures of `INFO`, by name.
#[derive(Debug)]
pub(crate) struct Info(HashMap<String, String>);

/// Leaves the first core to Redis.
pub(crate) fn use_the_other_core() -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(1);
    sched_setaffinity(None, &set).context("this needs two cores")
}

impl RedisProcess {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = std::env::temp_dir().join(format!("bench-peers-redis-{port}.log"));
        let number = port.to_string();
        let arguments = ["--bind", "127.0.0.1", "--port", &number, "--save", "", "--appendonly", "no"];
        let ready = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        let server = Server::start(Core::Proxy, &PathBuf::from("redis-server"), &arguments, log, ready)
            .context("redis-server; `cargo xtask setup` installs it")?;
        Ok(Self { _server: server, url: format!("redis://127.0.0.1:{port}") })
    }

    pub(crate) fn config(&self) -> anyhow::Result<RedisConfig> {
        // A bench is about speed: a slow moment of the machine must not become a fallback decision.
        let timeout = std::time::Duration::from_secs(5);
        Ok(RedisConfig { timeout, ..RedisConfig::new(Endpoint::parse(&self.url)?) })
    }

    pub(crate) fn clock() -> Arc<SystemClock> {
        Arc::new(SystemClock::new())
    }

    pub(crate) fn client(&self) -> anyhow::Result<redis::Client> {
        Ok(redis::Client::open(self.url.as_str())?)
    }

    pub(crate) fn flush(&self) -> anyhow::Result<()> {
        Ok(redis::cmd("FLUSHALL").arg("SYNC").exec(&mut self.client()?.get_connection()?)?)
    }

    pub(crate) fn version(&self) -> anyhow::Result<String> {
        self.info()?.text("redis_version")
    }

    pub(crate) fn info(&self) -> anyhow::Result<Info> {
        let text: String =
            redis::cmd("INFO").arg("everything").query(&mut self.client()?.get_connection()?)?;
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Ok(Info(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()))
    }
}

impl Info {
    fn text(&self, name: &str) -> anyhow::Result<String> {
        self.0.get(name).cloned().with_context(|| format!("INFO has no `{name}`"))
    }

    pub(crate) fn number(&self, name: &str) -> anyhow::Result<f64> {
        Ok(self.text(name)?.parse()?)
    }

    /// Processor seconds of the server so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<f64> {
        Ok(self.number("used_cpu_user")? + self.number("used_cpu_sys")?)
    }

    /// How often a client sent a script call.
    pub(crate) fn script_calls(&self) -> anyhow::Result<f64> {
        let calls = |name: &str| -> anyhow::Result<f64> {
            let Some(line) = self.0.get(&format!("cmdstat_{name}")) else { return Ok(0.0) };
            let Some(calls) = line.strip_prefix("calls=").and_then(|rest| rest.split(',').next()) else {
                bail!("unexpected statistics of {name}: {line}");
            };
            Ok(calls.parse()?)
        };
        Ok(calls("evalsha")? + calls("eval")?)
    }
}
