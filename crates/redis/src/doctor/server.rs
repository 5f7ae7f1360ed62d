//! Examines one server.

use std::time::Duration;

use redis::{Cmd, RedisError, RedisResult, Value};
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_store::Clock;

use super::report::Diagnosis;
use crate::config::RedisConfig;
use crate::endpoint::ServerAddress;
use crate::key::KeyNames;
use crate::link::{ConnectError, RedisConnector, ServerConnection, missing_permission};

const PINGS: usize = 100;
/// Far longer than a reply takes; a server that needs longer is reported.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);
/// Clocks that differ by more make logs hard to compare.
const MAX_CLOCK_OFFSET: TimeSpan = TimeSpan::from_secs(1);
/// Writes a key and reads the time, as the store's scripts do.
const WRITE: &str = "#!lua\nredis.call('SET', KEYS[1], '1', 'PX', 1)\nreturn redis.call('TIME')";

/// The examination of one server.
pub(super) struct ServerExamination<'a> {
    pub(super) config: &'a RedisConfig,
    pub(super) connector: &'a RedisConnector,
    pub(super) clock: &'a dyn Clock,
    pub(super) address: &'a ServerAddress,
}

impl ServerExamination<'_> {
    pub(super) async fn run(&self, diagnosis: &mut Diagnosis) {
        let mut connection = match self.connector.connect(self.address, || {}).await {
            Ok(connection) => connection,
            Err(error) => return diagnosis.problem("connection", self.advise(&error)),
        };
        if let Err(error) = query::<Value>(&mut connection, &redis::cmd("PING")).await {
            return diagnosis.problem("connection", self.explain(&error));
        }
        diagnosis.ok("connection", format!("{} responds", self.address));
        match query::<String>(&mut connection, redis::cmd("INFO").arg("everything")).await {
            Ok(info) => {
                examine_version(&info, diagnosis);
                examine_role(&info, self.config.endpoint.is_cluster(), diagnosis);
                examine_persistence(&info, diagnosis);
                examine_memory(&info, diagnosis);
            }
            Err(error) => diagnosis.advice(
                "INFO",
                format!("{error}; allow it (`+info`) to examine version, persistence and eviction"),
            ),
        }
        self.examine_cluster(&mut connection, diagnosis).await;
        self.examine_latency(&mut connection, diagnosis).await;
        self.examine_clock(&mut connection, diagnosis).await;
        self.examine_permissions(&mut connection, diagnosis).await;
    }

    /// Why there is no connection.
    fn advise(&self, error: &ConnectError) -> String {
        match error {
            ConnectError::Tls { .. } | ConnectError::Timeout { .. } if self.config.endpoint.tls => {
                format!("{error}; if the port does not use TLS, write `redis` instead of `rediss` in the URL")
            }
            error => error.to_string(),
        }
    }

    /// Why a server that accepts connections does not respond to `PING`.
    fn explain(&self, error: &RedisError) -> String {
        let address = self.address;
        match error.code() {
            Some("NOAUTH") => format!(
                "{address} needs a login; put the user into the URL (`redis://user@host`) and the password into a file \
                 (`--password-file`, `store.password_file`)"
            ),
            Some("NOPERM") => {
                format!("{address}: {}", missing_permission(error.detail().unwrap_or_default()))
            }
            Some(_) => format!("{address} cannot be used: {error}"),
            None if error.is_timeout() => {
                format!("{address} accepts connections but does not respond; check whether the process hangs")
            }
            None if self.config.endpoint.tls => format!("{address} closed the connection: {error}"),
            None => format!(
                "{address} closed the connection: {error}; if the port uses TLS, write `rediss` instead of `redis` in the URL"
            ),
        }
    }

    async fn examine_cluster(&self, connection: &mut ServerConnection, diagnosis: &mut Diagnosis) {
        if !self.config.endpoint.is_cluster() {
            return;
        }
        match query::<String>(connection, redis::cmd("CLUSTER").arg("INFO")).await {
            Ok(info) if field(&info, "cluster_state") == Some("ok") => {
                diagnosis.ok("cluster", "its state is ok");
            }
            Ok(_) => diagnosis.problem(
                "cluster",
                "its state is not ok: some slots have no working primary; run `redis-cli --cluster check`",
            ),
            Err(error) => {
                diagnosis
                    .problem("permissions", format!("{error}; allow it: `+cluster|info +cluster|slots`"));
            }
        }
    }

    async fn examine_latency(&self, connection: &mut ServerConnection, diagnosis: &mut Diagnosis) {
        let mut micros = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let before = self.clock.read();
            if let Err(error) = query::<Value>(connection, &redis::cmd("PING")).await {
                return diagnosis.problem("latency", format!("PING failed: {error}"));
            }
            micros.push(self.clock.read().nanos_since(before) / 1_000);
        }
        micros.sort_unstable();
        let at = |index: usize| micros.get(index).copied().unwrap_or_default();
        let (median, high) = (at(PINGS / 2), at(PINGS * 99 / 100));
        let measured = format!("PING takes {median} µs (p50), {high} µs (p99)");
        let timeout = u64::try_from(self.config.timeout.as_micros()).unwrap_or(u64::MAX);
        if high >= timeout {
            let millis = self.config.timeout.as_millis();
            let advice = "use a server that is closer, or a longer `store.timeout`";
            diagnosis
                .problem("latency", format!("{measured}, but decisions wait at most {millis} ms; {advice}"));
        } else if median >= timeout / 4 {
            let advice = "use a server that is closer, or the coordination `lease`";
            diagnosis.advice("latency", format!("{measured}; {advice}"));
        } else {
            diagnosis.ok("latency", measured);
        }
    }

    async fn examine_clock(&self, connection: &mut ServerConnection, diagnosis: &mut Diagnosis) {
        let before = self.clock.now();
        let reply = query::<(u64, u64)>(connection, &redis::cmd("TIME")).await;
        let after = self.clock.now();
        match reply {
            Ok((seconds, micros)) => {
                let server = Timestamp::from_secs(seconds) + TimeSpan::from_micros(micros);
                // The server read its clock between these two readings.
                let apart = before.since(server).max(server.since(after));
                let measured =
                    format!("its clock and this machine's differ by {} ms", apart.as_micros() / 1_000);
                if apart > MAX_CLOCK_OFFSET {
                    let advice =
                        "decisions use the server's clock and stay exact; synchronize both clocks with NTP";
                    diagnosis.advice("clock", format!("{measured}; {advice}"));
                } else {
                    diagnosis.ok("clock", measured);
                }
            }
            Err(error) => {
                diagnosis.problem("permissions", format!("TIME failed: {error}; allow it: `+time`"));
            }
        }
    }

    async fn examine_permissions(&self, connection: &mut ServerConnection, diagnosis: &mut Diagnosis) {
        let prefix = &self.config.prefix;
        let names = KeyNames::new(prefix, &self.config.secret);
        let script = redis::Script::new(WRITE);
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(WRITE);
        let mut run = redis::cmd("EVALSHA");
        run.arg(script.get_hash()).arg(1).arg(names.internal("doctor", "key").as_bytes());
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(format!("{prefix}doctor")).arg("");
        let mut failed = false;
        for (name, command, rule) in [
            ("SCRIPT LOAD", &load, "+script|load".to_owned()),
            ("EVALSHA", &run, format!("+evalsha +set +time ~{prefix}*")),
            ("PUBLISH", &publish, format!("+publish +subscribe &{prefix}*")),
        ] {
            match query::<Value>(connection, command).await {
                Ok(_) => {}
                // Another primary has the slot of the key.
                Err(error) if error.code() == Some("MOVED") => {}
                Err(error) if error.code() == Some("NOPERM") || error.to_string().contains("permission") => {
                    failed = true;
                    diagnosis
                        .problem("permissions", format!("the user may not run {name}; allow it: `{rule}`"));
                }
                Err(error) => {
                    failed = true;
                    diagnosis.problem("permissions", format!("{name} failed: {error}"));
                }
            }
        }
        if !failed {
            diagnosis.ok("permissions", "scripts, writes and messages are allowed");
        }
    }
}

async fn query<T: redis::FromRedisValue>(connection: &mut ServerConnection, command: &Cmd) -> RedisResult<T> {
    let reply = command.query_async(connection.commands());
    let late = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
    tokio::time::timeout(COMMAND_TIMEOUT, reply).await.unwrap_or_else(late)
}

/// The value of a field of `INFO`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn examine_version(info: &str, diagnosis: &mut Diagnosis) {
    if let Some(version) = field(info, "valkey_version") {
        return diagnosis.ok("version", format!("Valkey {version}"));
    }
    let version = field(info, "redis_version").unwrap_or("unknown");
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major >= 7) {
        diagnosis.ok("version", format!("Redis {version}"));
    } else {
        diagnosis.problem("version", format!("Redis {version}; install Redis 7.0 or newer, or Valkey"));
    }
}

fn examine_role(info: &str, is_cluster: bool, diagnosis: &mut Diagnosis) {
    if field(info, "role") != Some("master") {
        return diagnosis.problem(
            "role",
            "it is a replica and cannot write; use the URL of the primary, of the Sentinels or of the cluster",
        );
    }
    let is_clustered = field(info, "cluster_enabled") == Some("1");
    if is_clustered && !is_cluster {
        diagnosis.problem("role", "it is a node of a cluster; use `redis-cluster://` in the URL");
    } else if field(info, "connected_slaves") == Some("0") {
        diagnosis.advice("role", "primary without a replica: nothing replaces it when it fails");
    } else {
        diagnosis.ok("role", "primary with a replica");
    }
}

fn examine_persistence(info: &str, diagnosis: &mut Diagnosis) {
    let is_failing = |name| field(info, name).is_some_and(|status| status != "ok");
    if is_failing("rdb_last_bgsave_status") || is_failing("aof_last_write_status") {
        diagnosis
            .problem("persistence", "the last save failed; see the server's log, Redis may refuse to write");
    } else if field(info, "aof_enabled") == Some("1") {
        diagnosis.ok("persistence", "AOF: a crash loses about a second of counts (`appendfsync everysec`)");
    } else {
        diagnosis.advice(
            "persistence",
            "no AOF: a restart loses all counts since the last snapshot, so clients may use their limits once more; set \
             `appendonly yes`",
        );
    }
}

fn examine_memory(info: &str, diagnosis: &mut Diagnosis) {
    let policy = field(info, "maxmemory_policy").unwrap_or("unknown");
    let is_bounded = field(info, "maxmemory").is_some_and(|bytes| bytes != "0");
    if policy != "noeviction" {
        let effect = "Redis may delete counters, which resets their limits";
        diagnosis.problem(
            "eviction",
            format!("`maxmemory-policy` is `{policy}`: {effect}; set it to `noeviction`"),
        );
    } else if is_bounded {
        diagnosis.ok("eviction", "`noeviction`, with a bound on memory");
    } else {
        diagnosis.advice(
            "eviction",
            "`noeviction`, but memory has no bound; set `maxmemory` so that the kernel does not kill the server",
        );
    }
}
