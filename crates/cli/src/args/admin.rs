//! Arguments of the commands that call the admin API of a running gateway.

use std::path::PathBuf;

use clap::ValueEnum;

use super::Format;

pub(crate) const BAN_EXAMPLES: &str = "\
Examples:
  tidegate ban --config policy.yaml 203.0.113.0/24 --for 1d --reason 'scrapes the catalogue'
  tidegate ban --config policy.yaml user:bob tenant:acme
  tidegate unban --config policy.yaml user:bob";

pub(crate) const BANS_EXAMPLES: &str = "\
Examples:
  tidegate bans --config policy.yaml
  tidegate bans --config policy.yaml --format json | jq -r '.[].subject'
  tidegate bans --config policy.yaml --format nft | nft -f -
  tidegate bans --config policy.yaml --format nft --lock-outs | nft -f -";

pub(crate) const OVERRIDE_EXAMPLES: &str = "\
Examples:
  tidegate override --config policy.yaml user:bob --rule default --limit 1000/m --for 1d
  tidegate override --config policy.yaml user:bob --rule default --end
  tidegate override --config policy.yaml";

pub(crate) const BREAKER_EXAMPLES: &str = "\
Examples:
  tidegate breaker --config policy.yaml open payments
  tidegate breaker --config policy.yaml close payments --server 10.0.0.1:3000
  tidegate breaker --config policy.yaml reset payments
  tidegate status --config policy.yaml";

pub(crate) const RESET_EXAMPLES: &str = "\
Examples:
  tidegate reset --config policy.yaml user:bob
  tidegate reset --config policy.yaml ip:203.0.113.7 --rule login";

pub(crate) const CLIENT_EXAMPLES: &str = "\
Examples:
  tidegate client --config policy.yaml ip:203.0.113.7
  tidegate client --config policy.yaml user:bob --format json | jq .rules";

pub(crate) const RELOAD_EXAMPLES: &str = "\
Examples:
  tidegate reload --config policy.yaml
  tidegate reload --config policy.yaml --force";

/// Selects the gateway: by its policy, by the URL of its admin API, or by default the one on 127.0.0.1:9900.
#[derive(Debug, clap::Args)]
pub(crate) struct AdminArgs {
    /// Policy file of the gateway; it contains the address of the admin API and the location of its token.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// URL of the admin API. Default: `http://127.0.0.1:9900`, or the address in the policy. The token is sent to the default
    /// address only after the gateway there has proved that it has it; to this URL it is sent unconditionally.
    #[arg(long, value_name = "URL")]
    pub(crate) admin: Option<String>,
    /// File that contains the token of the admin API.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BanArgs {
    /// Subject to ban: 203.0.113.0/24, user:bob, `api_key:KEY`.
    #[arg(required = true, value_name = "SUBJECT")]
    pub(crate) subjects: Vec<String>,
    /// Duration: 15m, 12h, 7d. Default: permanent.
    #[arg(long = "for", value_name = "DURATION")]
    pub(crate) duration: Option<String>,
    /// Reason, shown in the list.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UnbanArgs {
    /// Subject to unban, as given to `ban` or as listed by `bans`.
    #[arg(required = true, value_name = "SUBJECT")]
    pub(crate) subjects: Vec<String>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BansArgs {
    /// Output format.
    #[arg(long, value_enum, default_value_t = BansFormat::Human)]
    pub(crate) format: BansFormat,
    /// With `--format nft`, also drop the packets of addresses that a rule has locked out. They then get no response with
    /// `Retry-After`.
    #[arg(long)]
    pub(crate) lock_outs: bool,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

/// The output format of `tidegate bans`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BansFormat {
    /// Text
    Human,
    /// JSON
    Json,
    /// nftables sets
    Nft,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OverrideArgs {
    /// Client: user:bob, ip:203.0.113.7, `api_key:KEY`. Without it, all overrides are listed.
    #[arg(value_name = "CLIENT", requires = "rule")]
    pub(crate) client: Option<String>,
    /// Name of the rule.
    #[arg(long, value_name = "NAME", requires = "client")]
    pub(crate) rule: Option<String>,
    /// Limit of this client: 1000/m, 10/s, 5000/15m.
    #[arg(long, value_name = "REQUESTS/WINDOW", requires = "client", conflicts_with = "end")]
    pub(crate) limit: Option<String>,
    /// Algorithm. Default: that of the rule.
    #[arg(long, value_name = "NAME", requires = "limit")]
    pub(crate) algorithm: Option<String>,
    /// Burst, for algorithms that have one.
    #[arg(long, value_name = "NUMBER", requires = "limit")]
    pub(crate) burst: Option<u64>,
    /// Duration: 15m, 12h, 7d. Default: permanent.
    #[arg(long = "for", value_name = "DURATION", requires = "limit")]
    pub(crate) duration: Option<String>,
    /// Reason, shown in the list.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,
    /// Remove the override.
    #[arg(long, requires = "client")]
    pub(crate) end: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BreakerArgs {
    /// What to do.
    #[arg(value_enum, value_name = "ACTION")]
    pub(crate) action: BreakerVerb,
    /// Name of the upstream.
    #[arg(value_name = "UPSTREAM")]
    pub(crate) upstream: String,
    /// Server as listed by `status`. Default: all servers of the upstream.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) server: Option<String>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

/// What `tidegate breaker` does.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BreakerVerb {
    /// Reject all requests until reset
    Open,
    /// Admit all requests until reset
    Close,
    /// Close it and let the results of requests decide again
    Reset,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ResetArgs {
    /// Client: user:bob, ip:203.0.113.7, `api_key:KEY`, or `everybody` for counters that all clients share.
    #[arg(value_name = "CLIENT")]
    pub(crate) client: String,
    /// Name of the rule. Default: all rules.
    #[arg(long, value_name = "NAME")]
    pub(crate) rule: Option<String>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClientArgs {
    /// Client: ip:203.0.113.7, user:bob, `api_key:KEY`, or a combination: ip:203.0.113.7+user:bob.
    #[arg(value_name = "CLIENT")]
    pub(crate) client: String,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReloadArgs {
    /// Apply the files even if they lack more bans or keys than `reload.max_loss` allows.
    #[arg(long)]
    pub(crate) force: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BackupArgs {
    /// Destination; the file must not exist.
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}
