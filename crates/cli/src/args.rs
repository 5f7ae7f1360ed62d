//! The command line.

mod admin;

use std::num::NonZeroUsize;
use std::path::PathBuf;

pub(crate) use admin::{
    AdminArgs, BAN_EXAMPLES, BANS_EXAMPLES, BREAKER_EXAMPLES, BackupArgs, BanArgs, BansArgs, BansFormat,
    BreakerArgs, BreakerVerb, CLIENT_EXAMPLES, ClientArgs, OVERRIDE_EXAMPLES, OverrideArgs, RELOAD_EXAMPLES,
    RESET_EXAMPLES, ReloadArgs, ResetArgs, StatusArgs, UnbanArgs,
};
use clap::{Parser, Subcommand, ValueEnum};

/// Rate-limiting reverse proxy.
///
/// Without a command, `tidegate` runs the built-in demo; see `tidegate serve --help`.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  tidegate                                 run the demo on 127.0.0.1:8080
  tidegate serve --upstream http://localhost:3000 --limit 100/m
                                           limit each client of a service to 100 requests per minute
  tidegate serve --resp 127.0.0.1:6380     serve decisions to Redis clients (CL.THROTTLE)
  tidegate serve --config policy.yaml      run with a policy file
  curl -i http://127.0.0.1:8080/           send a request to it
  tidegate check policy.yaml               validate a policy
  tidegate explain -c policy.yaml GET /    show how a policy handles a request
  tidegate ban -c policy.yaml user:bob     ban a client on a running gateway
  tidegate schema > tidegate.schema.json   write the JSON Schema for your editor

Exit codes: 0 success, 1 failure, 2 invalid command line.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the gateway.
    ///
    /// With --config, a policy file configures everything: listeners, upstreams, routes and limits. With --upstream, the
    /// gateway forwards to one service with one limit per client, and prints the equivalent policy file; with both, it forwards
    /// to this service with the limits of the file, which then has no routes. With only --grpc (Envoy), --http or --resp
    /// (commands of Redis clients), it serves decisions to other proxies and programs and forwards nothing. With none of
    /// these, it runs a built-in demo.
    ///
    /// Admitted requests are forwarded. Rejected requests get 429 with Retry-After. Every response to a limited request
    /// carries the limit, what remains of it and when it resets.
    ///
    /// The policy and its certificates are reloaded when their files change, and on SIGHUP. Replace files by a rename: a file
    /// that is written in place is applied when it has been quiet for a while. Invalid reloads are rejected: the running policy
    /// stays active. On SIGTERM or Ctrl-C the gateway stops accepting connections and drains requests in
    /// progress for up to 10 seconds.
    ///
    /// The admin API listens on 127.0.0.1:9900 unless the policy changes it; see `tidegate status --help`.
    ///
    /// Clients are identified by IP address unless the policy says otherwise. An API key identifies a client only if the
    /// policy's keys file (`clients.tiers.file`) lists it, so inventing keys does not evade limits. Behind a proxy, list the
    /// proxy in `clients.ip.trusted_proxies`; otherwise all its clients share one limit.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Validate policies; report all problems.
    ///
    /// Each problem is reported with its file, line and path in the document, what was expected and how to fix it.
    /// Warnings report what is valid but probably mistaken: a rule that can never match, a limit that can never be reached,
    /// a proxy list that trusts every address, a certificate that expires within 14 days. File names in a policy are
    /// relative to the folder of the policy. A private key must match its certificate.
    ///
    /// The exit code is 0 if all policies are valid, with or without warnings, and 1 otherwise.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Show how a policy handles a request.
    ///
    /// Prints the client and how it was identified, its tier, the route, and every rule that applies, in order: which
    /// counter it uses, what the request costs, and what the rule decides for a client without earlier requests. Nothing is
    /// sent and nothing is counted. API keys are shown as a prefix and a hash.
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Print the limits that clients have to know, for the documentation of your API.
    ///
    /// Leaves out limits in shadow mode and those of a canary, which clients need not know, and the conditions and headers by which
    /// rules tell requests apart.
    #[command(after_help = LIMITS_EXAMPLES)]
    Limits(LimitsArgs),
    /// Examine a Redis or Valkey store; say what to change.
    ///
    /// Connects to the servers of a store URL and examines version, role, persistence, eviction policy, latency, clock, cluster
    /// or Sentinels, and the permissions of the user. Each finding says what to change. Writes one key, which expires at once.
    ///
    /// The exit code is 1 if something must be changed, and 0 if there is only advice.
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Ban networks or clients on a running gateway.
    ///
    /// Banned clients get 403. A subject is a network (203.0.113.0/24), an address (203.0.113.7; for IPv6 its whole prefix,
    /// as clients are counted), a user (user:bob), a tenant (tenant:acme), an API key, complete or as listed
    /// (`api_key:sk_l…#b59c1698`), a cookie or a fingerprint. When the command returns, the ban is active and saved: it
    /// survives restarts.
    #[command(after_help = BAN_EXAMPLES)]
    Ban(BanArgs),
    /// Remove bans.
    #[command(after_help = BAN_EXAMPLES)]
    Unban(UnbanArgs),
    /// List bans made by operators and by the policy.
    ///
    /// With --format nft, prints the banned networks as nftables sets, to drop their packets before they reach the
    /// gateway.
    #[command(after_help = BANS_EXAMPLES)]
    Bans(BansArgs),
    /// Set, list or remove per-client limits.
    ///
    /// An override replaces the limit of one rule for one client. Requests that are already counted stay counted. Overrides
    /// survive restarts.
    #[command(after_help = OVERRIDE_EXAMPLES)]
    Override(OverrideArgs),
    /// Open, close or reset the circuit breakers of an upstream.
    ///
    /// An open breaker rejects requests with 503, or responds as `fallback` says; a closed one admits them. Both stay until
    /// `reset`, whatever the results of requests, but not after a restart. `tidegate status` shows all breakers.
    #[command(after_help = BREAKER_EXAMPLES)]
    Breaker(BreakerArgs),
    /// Reset a client's counters.
    #[command(after_help = RESET_EXAMPLES)]
    Reset(ResetArgs),
    /// Show one client's state: what remains of each limit, lock-outs, bans, overrides.
    ///
    /// Shows the client under every rule that counts it, and the lock-outs and overrides of combinations with it. Nothing is
    /// charged.
    #[command(after_help = CLIENT_EXAMPLES)]
    Client(ClientArgs),
    /// Show a running gateway's status: policy, limits, connections, bans, upstreams.
    Status(StatusArgs),
    /// Reload a running gateway's policy.
    ///
    /// The policy and the files it names are read and applied at once, whether or not they are still being written. An invalid
    /// policy, and one that lacks more bans or keys than `reload.max_loss` allows, changes nothing; --force applies the latter.
    #[command(after_help = RELOAD_EXAMPLES)]
    Reload(ReloadArgs),
    /// Back up a running gateway's bans and overrides.
    ///
    /// The gateway writes the backup as its own user. To restore it, stop the gateway and replace `tidegate.redb` with the
    /// backup.
    Backup(BackupArgs),
    /// Print the policy format as JSON Schema (for editors) or Markdown.
    ///
    /// Save the schema next to your policies and start each policy with the line below. Editors with a YAML language server
    /// then complete and check keys.
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema(SchemaArgs),
    /// Print a shell completion script.
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
}

const SERVE_EXAMPLES: &str = "\
Examples:
  tidegate serve
  tidegate serve --upstream http://localhost:3000 --limit 100/m
  tidegate serve --config policy.yaml
  tidegate serve --config limits.yaml --upstream http://localhost:3000
  tidegate serve --config policy.yaml --store redis://127.0.0.1:6379
  tidegate serve --envoy-config ratelimit/config";

const CHECK_EXAMPLES: &str = "\
Examples:
  tidegate check policy.yaml
  tidegate check --envoy-config ratelimit/config
  tidegate check --format json policies/*.yaml | jq '.[] | select(.ok | not).file'";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  tidegate explain --config policy.yaml GET /api/v1/search
  tidegate explain --config policy.yaml POST /login -H 'X-API-Key: k' --from 203.0.113.9
  tidegate explain --config policy.yaml GET / --format json | jq '.rules[].name'";

const LIMITS_EXAMPLES: &str = "\
Examples:
  tidegate limits --config policy.yaml >> docs/rate-limits.md
  tidegate limits --config policy.yaml --format json | jq '.limits[].name'";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  tidegate doctor redis://127.0.0.1:6379
  tidegate doctor --config policy.yaml
  tidegate doctor rediss://gate@cache.internal:6380 --password-file redis.password --ca ca.pem
  tidegate doctor redis-sentinel://s1,s2,s3/main
  tidegate doctor redis-cluster://n1,n2,n3";

const SCHEMA_EXAMPLES: &str = "\
First line of a policy:
  # yaml-language-server: $schema=tidegate.schema.json

Examples:
  tidegate schema > tidegate.schema.json
  tidegate schema --format markdown | less";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(tidegate completions bash)
  tidegate completions zsh > ~/.zfunc/_tidegate
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish";

impl Default for Command {
    fn default() -> Self {
        Self::Serve(ServeArgs::default())
    }
}

#[derive(Debug, Default, clap::Args)]
pub(crate) struct ServeArgs {
    /// Policy file.
    #[arg(long, short, value_name = "FILE", conflicts_with = "limit")]
    pub(crate) config: Option<PathBuf>,
    /// URL of the service to forward to, such as `http://localhost:3000`. The policy file, if there is one, has no routes.
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// Limit of each client: 100/m, 10/s, 1000/15m. Default: 100/m, or 10/m for the demo.
    #[arg(long, value_name = "REQUESTS/WINDOW")]
    pub(crate) limit: Option<String>,
    /// Redis or Valkey that shares limits between gateways, such as `redis://127.0.0.1:6379`, or `memory`. Replaces `store.url` of
    /// the policy.
    /// Other users of this machine can see it: put a password into `store.password_file` of a policy instead.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Address to listen on, such as 127.0.0.1:8080 or localhost:9000; port 0 picks a free port. Default: the addresses of
    /// the policy, or 127.0.0.1:8080. Replaces all addresses of the policy. If the policy uses TLS, so does this address, with
    /// the same certificate; a policy with several certificates is rejected.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// Address on which Envoy's rate limit service (gRPC) is served, such as 127.0.0.1:8081. Replaces `service.grpc` of the
    /// policy.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) grpc: Option<String>,
    /// Address on which checks over HTTP are served, such as 127.0.0.1:8082. Replaces `service.http` of the policy.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) http: Option<String>,
    /// Address on which decisions are served over the Redis protocol, such as 127.0.0.1:6380: any Redis client sends
    /// `CL.THROTTLE` or `TIDEGATE.CHECK`. It stores no data. Replaces `service.resp` of the policy.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) resp: Option<String>,
    /// Folder with the configuration of Envoy's rate limit server: all `*.yaml` and `*.yml` files, also in subfolders. It is
    /// reloaded when it changes. Without a policy, the decision service listens on 127.0.0.1:8081 (gRPC) and 127.0.0.1:8082
    /// (HTTP).
    #[arg(long, value_name = "FOLDER")]
    pub(crate) envoy_config: Option<PathBuf>,
    /// Unix socket for restarts without downtime. If a process that was started with the same socket is running, this process
    /// takes over its listening sockets and the old one drains and exits; no connection is rejected. The next process can then
    /// take over from this one.
    #[arg(long, value_name = "SOCKET")]
    pub(crate) takeover: Option<PathBuf>,
    /// Number of worker threads. Default: one per CPU core.
    #[arg(long, value_name = "NUMBER", value_parser = parse_cores)]
    pub(crate) cores: Option<NonZeroUsize>,
}

/// Why the value of `--cores` is invalid.
#[derive(Debug, thiserror::Error)]
#[error("expected a whole number of at least 1")]
struct InvalidCores;

fn parse_cores(text: &str) -> Result<NonZeroUsize, InvalidCores> {
    text.parse().map_err(|_| InvalidCores)
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Policy files to validate.
    #[arg(required_unless_present = "envoy_config", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Folder with the configuration of Envoy's rate limit server to validate, as `tidegate serve --envoy-config` reads it.
    /// Prints its domains and limits.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) envoy_config: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// URL of the store. Replaces that of the policy.
    #[arg(value_name = "URL", required_unless_present = "config")]
    pub(crate) url: Option<String>,
    /// Policy file: its `store` has the URL, the prefix, the password and the certificates.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Prefix of the keys, as `store.prefix`. Default: that of the policy, or `tg:`.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    /// File with the password, if it is not in the URL.
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Certificate authorities to trust, in PEM format. Default: those of the system.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Client certificate, in PEM format.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) certificate: Option<PathBuf>,
    /// Private key of the client certificate, in PEM format.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// Policy file.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Method, in uppercase.
    pub(crate) method: String,
    /// Path, with or without a query, or a full URL.
    pub(crate) path: String,
    /// Request header; can be repeated.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub(crate) headers: Vec<String>,
    /// Request body, for rules that count the user that it names. Needs a Content-Type header.
    #[arg(long, short, value_name = "BODY", default_value = "", hide_default_value = true)]
    pub(crate) data: String,
    /// IP address that the connection comes from.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) from: std::net::IpAddr,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
}

/// The output format of a command.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Format {
    /// Text
    Human,
    /// JSON
    Json,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LimitsArgs {
    /// Policy file.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Output format.
    #[arg(long, value_enum, default_value_t = LimitsFormat::Markdown)]
    pub(crate) format: LimitsFormat,
}

/// The output format of `tidegate limits`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LimitsFormat {
    /// Table
    Markdown,
    /// JSON
    Json,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SchemaArgs {
    /// Output format.
    #[arg(long, value_enum, default_value_t = SchemaFormat::Json)]
    pub(crate) format: SchemaFormat,
}

/// The output format of `tidegate schema`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SchemaFormat {
    /// JSON Schema, draft 2020-12
    Json,
    /// Reference of every key, with default and example
    Markdown,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to generate the script for.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_definition_passes_clap_checks() {
        Args::command().debug_assert();
    }

    #[test]
    fn command_line_without_command_serves_the_demo() {
        let Command::Serve(serve) = Args::parse_from(["tidegate"]).command.unwrap_or_default() else {
            panic!("expected the command `serve`");
        };
        assert!(serve.config.is_none() && serve.upstream.is_none() && serve.listen.is_none());
    }
}
