//! What can be typed.

use clap::{Parser, Subcommand};

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
  tidegate serve --listen 127.0.0.1:9000   the same elsewhere
  curl -i http://127.0.0.1:8080/           what a client sees

Exit codes: 0 done, 1 failed, 2 wrong usage.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer HTTP requests, within limits.
    ///
    /// A built-in demo upstream stands behind a built-in demo policy: 10 requests a minute for each
    /// X-API-Key, or for each client address where no key is sent. What passes is answered by the upstream;
    /// what does not gets 429 with Retry-After. Every response carries the limit, what is left of it and
    /// when it is whole again. Keys are not checked: whoever invents one is a new client, which is fine for a
    /// demo and nothing else.
    Serve(ServeArgs),
}

impl Default for Command {
    fn default() -> Self {
        Self::Serve(ServeArgs { listen: DEFAULT_LISTEN.to_owned() })
    }
}

/// Loopback: nobody else's machine reaches a demo by accident.
const DEFAULT_LISTEN: &str = "127.0.0.1:8080";

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Where to listen, such as 127.0.0.1:8080 or localhost:9000; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT", default_value = DEFAULT_LISTEN)]
    pub(crate) listen: String,
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
    fn no_command_serves_on_loopback() {
        let Command::Serve(serve) = Args::parse_from(["tidegate"]).command.unwrap_or_default();
        let Some(Command::Serve(named)) = Args::parse_from(["tidegate", "serve"]).command else {
            panic!("serve is a command");
        };
        assert_eq!(serve.listen, named.listen);
        let address: std::net::SocketAddr = serve.listen.parse().unwrap();
        assert!(address.ip().is_loopback());
    }
}
