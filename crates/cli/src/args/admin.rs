//! What can be typed to a gateway that runs.

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
  tidegate bans --config policy.yaml --format nft | nft -f -";

pub(crate) const OVERRIDE_EXAMPLES: &str = "\
Examples:
  tidegate override --config policy.yaml user:bob --rule default --limit 1000/m --for 1d
  tidegate override --config policy.yaml user:bob --rule default --end
  tidegate override --config policy.yaml";

pub(crate) const RESET_EXAMPLES: &str = "\
Examples:
  tidegate reset --config policy.yaml user:bob
  tidegate reset --config policy.yaml ip:203.0.113.7 --rule login";

/// LogSampling gateway: by its policy, by the address of its admin API, or the one on 127.0.0.1:9900.
#[derive(Debug, clap::Args)]
pub(crate) struct AdminArgs {
    /// The policy of the gateway: it says where the admin API is and where its token is kept.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The admin API, such as <http://127.0.0.1:9900>.
    #[arg(long, value_name = "URL")]
    pub(crate) admin: Option<String>,
    /// The file with its token.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BanArgs {
    /// Whom: 203.0.113.0/24, user:bob, `api_key:KEY`.
    #[arg(required = true, value_name = "SUBJECT")]
    pub(crate) subjects: Vec<String>,
    /// How long: 15m, 12h, 7d. Without end unless given.
    #[arg(long = "for", value_name = "DURATION")]
    pub(crate) lasting: Option<String>,
    /// Why, for whoever reads the list.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,
    /// How to tell the result.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UnbanArgs {
    /// Whom, as they were banned or as they are listed.
    #[arg(required = true, value_name = "SUBJECT")]
    pub(crate) subjects: Vec<String>,
    /// How to tell the result.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BansArgs {
    /// How to tell the result.
    #[arg(long, value_enum, default_value_t = BansFormat::Human)]
    pub(crate) format: BansFormat,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

/// How bans are told.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BansFormat {
    /// For people
    Human,
    /// For tools
    Json,
    /// Sets of nftables
    Nft,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OverrideArgs {
    /// Whose: user:bob, ip:203.0.113.7, `api_key:KEY`. Without it all are listed.
    #[arg(value_name = "CLIENT", requires = "rule")]
    pub(crate) client: Option<String>,
    /// Under which rule, by its name.
    #[arg(long, value_name = "NAME", requires = "client")]
    pub(crate) rule: Option<String>,
    /// The other limit: 1000/m, 10/s, 5000/15m.
    #[arg(long, value_name = "REQUESTS/WINDOW", requires = "client", conflicts_with = "end")]
    pub(crate) limit: Option<String>,
    /// The rule's own algorithm unless given.
    #[arg(long, value_name = "NAME", requires = "limit")]
    pub(crate) algorithm: Option<String>,
    /// How many at once, for algorithms that know a burst.
    #[arg(long, value_name = "NUMBER", requires = "limit")]
    pub(crate) burst: Option<u64>,
    /// How long: 15m, 12h, 7d. Without end unless given.
    #[arg(long = "for", value_name = "DURATION", requires = "limit")]
    pub(crate) lasting: Option<String>,
    /// Why, for whoever reads the list.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,
    /// End it now.
    #[arg(long, requires = "client")]
    pub(crate) end: bool,
    /// How to tell the result.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ResetArgs {
    /// Whose: user:bob, ip:203.0.113.7, `api_key:KEY`, or everybody for what all share.
    #[arg(value_name = "CLIENT")]
    pub(crate) client: String,
    /// Under which rule, by its name; under all unless given.
    #[arg(long, value_name = "NAME")]
    pub(crate) rule: Option<String>,
    /// How to tell the result.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// How to tell the result.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BackupArgs {
    /// Where to.
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// How to tell the result.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}
