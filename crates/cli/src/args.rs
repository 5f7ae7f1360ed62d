//! What can be typed.

mod admin;

use std::path::PathBuf;

pub(crate) use admin::{
    AdminArgs, BAN_EXAMPLES, BANS_EXAMPLES, BackupArgs, BanArgs, BansArgs, BansFormat, OVERRIDE_EXAMPLES,
    OverrideArgs, RESET_EXAMPLES, ResetArgs, StatusArgs, UnbanArgs,
};
use clap::{Parser, Subcommand, ValueEnum};

/// Decides, fast and fairly, which requests may pass.
///
/// Without a command it serves the built-in demo: see `tidegate serve --help`.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  tidegate                                 serve the demo on 127.0.0.1:8080
  tidegate serve --upstream http://localhost:3000 --limit 100/m
                                           100 a minute for each client of a service
  tidegate serve --config policy.yaml      a whole policy
  curl -i http://127.0.0.1:8080/           what a client sees
  tidegate check policy.yaml               everything that is wrong with a policy, at once
  tidegate explain -c policy.yaml GET /    what it would do with a request
  tidegate ban -c policy.yaml user:bob     shut somebody out of a gateway that runs
  tidegate schema > tidegate.schema.json   for the editor

Exit codes: 0 done, 1 failed, 2 wrong usage.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Stand in front of an API and let through what its policy allows.
    ///
    /// With --config the policy says everything: where to listen, which upstreams there are, who may do how much. It is
    /// read again when it changes or at SIGHUP, as are its certificates; a policy that is not good, or a key that does
    /// not match its certificate, changes nothing. With --upstream one limit
    /// for each client stands in front of one service, and the policy that this equals is printed. With neither, a
    /// built-in demo shows what clients see.
    ///
    /// What passes is forwarded; what does not gets 429 with Retry-After. Every response carries the limit, what is
    /// left of it and when it is whole again. SIGTERM and Ctrl-C let requests under way end first.
    ///
    /// Operators are answered on 127.0.0.1:9900 unless the policy says otherwise: see `tidegate status --help`.
    ///
    /// Clients are counted by address, or by what the policy says. An API key counts only if the policy lists it
    /// (`clients.tiers.file`): a key that a client invents gives it no limit of its own. Behind a proxy, name the proxy in
    /// `clients.ip.trusted_proxies`: without that, all its clients share one limit.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Say whether policies are good, and everything that is wrong with them.
    ///
    /// Each problem comes with its file, line and path in the document, with what was expected and how to mend it.
    /// Warnings are about what can be used but is hardly meant: a rule that can never match, a limit that never
    /// binds, a proxy list that trusts everybody, a certificate that expires within 14 days. Files that a policy names
    /// are looked for in its own folder; a private key must match its certificate.
    ///
    /// The exit code is 0 if every policy is good, with or without warnings, and 1 if not.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Say what a policy would do with a request, and why.
    ///
    /// Who the client is and how it was found, its tier, where the request goes, and every rule that applies, in
    /// order: whose counter, what it costs, and what it would answer to a client nobody has seen before. Nothing is
    /// sent and nothing is counted. API keys are shown by how they begin and a hash.
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Shut out networks or clients of a gateway that runs: they get 403 at once, and after restarts too.
    ///
    /// Whom: a network (203.0.113.0/24), an address (203.0.113.7; of IPv6 its whole prefix, as clients are counted), a
    /// user (user:bob), a tenant (tenant:acme), an API key, whole or as it is shown (`api_key:sk_l…#b59c1698`), a cookie
    /// or a fingerprint. When the command returns, the ban is in force and on the disk.
    #[command(after_help = BAN_EXAMPLES)]
    Ban(BanArgs),
    /// Take bans back.
    #[command(after_help = BAN_EXAMPLES)]
    Unban(UnbanArgs),
    /// List bans: those of operators and those of the policy.
    ///
    /// With --format nft it prints the banned networks as sets of nftables, for those who want to drop them before they
    /// reach the gateway.
    #[command(after_help = BANS_EXAMPLES)]
    Bans(BansArgs),
    /// Give one client another limit under one rule, end that, or list all such limits.
    ///
    /// What the client has spent stays spent. The other limit survives restarts.
    #[command(after_help = OVERRIDE_EXAMPLES)]
    Override(OverrideArgs),
    /// Forget what a client has spent, under one rule or under all.
    #[command(after_help = RESET_EXAMPLES)]
    Reset(ResetArgs),
    /// Say how a gateway that runs is: its policy, limits, connections, bans.
    Status(StatusArgs),
    /// Have a gateway that runs write a copy of its bans and overrides.
    ///
    /// The gateway writes it, as its own user, where nothing may be yet. To go back to it, stop the gateway and put the
    /// copy in the place of `tidegate.redb`.
    Backup(BackupArgs),
    /// Print the policy language for editors (JSON Schema) or people (Markdown).
    ///
    /// Keep the schema beside your policies and begin each of them with the line below; editors with a YAML language
    /// server then complete and check what you type.
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema(SchemaArgs),
    /// Print a script that completes this command line in a shell.
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
}

const SERVE_EXAMPLES: &str = "\
Examples:
  tidegate serve
  tidegate serve --upstream http://localhost:3000 --limit 100/m
  tidegate serve --config policy.yaml";

const CHECK_EXAMPLES: &str = "\
Examples:
  tidegate check policy.yaml
  tidegate check --format json policies/*.yaml | jq '.[] | select(.ok | not).file'";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  tidegate explain --config policy.yaml GET /api/v1/search
  tidegate explain --config policy.yaml POST /login -H 'X-API-Key: k' --from 203.0.113.9
  tidegate explain --config policy.yaml GET / --format json | jq '.rules[].name'";

const SCHEMA_EXAMPLES: &str = "\
The first line of a policy:
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
    /// The policy.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["upstream", "limit"])]
    pub(crate) config: Option<PathBuf>,
    /// The service to stand in front of, such as <http://localhost:3000>.
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// How much each client may do: 100/m, 10/s, 1000/15m. 100/m unless said, 10/m for the demo.
    #[arg(long, value_name = "REQUESTS/WINDOW")]
    pub(crate) limit: Option<String>,
    /// Where to listen, such as 127.0.0.1:8080 or localhost:9000; port 0 takes a free one. What the policy says, or
    /// 127.0.0.1:8080, unless given. It replaces every address of the policy. If the policy has TLS, so does this
    /// address, with the same certificate; a policy with different certificates is rejected.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// Take over from the process that was started with the same file, and let the next one take over from this. The
    /// new process is started beside the old one, gets its listening sockets through this Unix socket, and the old one
    /// ends: no connection is refused.
    #[arg(long, value_name = "SOCKET")]
    pub(crate) takeover: Option<PathBuf>,
    /// How many cores to use; all unless given.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) cores: Option<std::num::NonZeroUsize>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// The policies to check.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// How to tell the result.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// The policy.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// The method, in capitals.
    pub(crate) method: String,
    /// The path, with or without a query, or a whole URL.
    pub(crate) path: String,
    /// A header of the request; may be given many times.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub(crate) headers: Vec<String>,
    /// The address at the other end of the connection.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) from: std::net::IpAddr,
    /// How to tell the result.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
}

/// How a result is told.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Human,
    /// For tools
    Json,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SchemaArgs {
    /// In which form.
    #[arg(long, value_enum, default_value_t = SchemaFormat::Json)]
    pub(crate) format: SchemaFormat,
}

/// In which form the language is told.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SchemaFormat {
    /// JSON Schema, draft 2020-12
    Json,
    /// A page with every key, its default and an example
    Markdown,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn no_command_serves_the_demo() {
        let Command::Serve(serve) = Args::parse_from(["tidegate"]).command.unwrap_or_default() else {
            panic!("it serves");
        };
        assert!(serve.config.is_none() && serve.upstream.is_none() && serve.listen.is_none());
    }
}
