//! The commands by name.

use tidegate_store::Store;

use super::client_state::RespClientState;
use super::frame::Arguments;
use super::reply::ReplyWriter;
use super::rule_commands::RuleCommand;
use super::{connection_commands, rule_commands, server_commands};
use crate::auth::ListenerTokens;
use crate::worker::{ServedPolicy, ServiceWorker};

/// The longest part of a client's text that an error repeats, as in Redis.
const MAX_QUOTED: usize = 128;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandKind {
    Throttle,
    /// About a rule of the policy.
    Rule(RuleCommand),
    Auth,
    Hello,
    Ping,
    Echo,
    Select,
    Client,
    Command,
    Config,
    Info,
    ResetConnection,
    Quit,
    Multi,
    Exec,
    Discard,
}

/// What clients can learn about a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandInfo {
    pub(crate) kind: CommandKind,
    /// In lower case.
    pub(crate) name: &'static str,
    /// The number of arguments with the name; if negative, at least that many.
    pub(crate) arity: i64,
    pub(crate) flag: &'static str,
    /// The position of its key; 0 if it has none.
    pub(crate) key: i64,
}

const fn info(
    kind: CommandKind,
    name: &'static str,
    arity: i64,
    (flag, key): (&'static str, i64),
) -> CommandInfo {
    CommandInfo { kind, name, arity, flag, key }
}

/// Every command.
pub(crate) const COMMANDS: [CommandInfo; 19] = [
    info(CommandKind::Throttle, "cl.throttle", -5, ("write", 1)),
    info(CommandKind::Rule(RuleCommand::Check), "tidegate.check", -3, ("write", 0)),
    info(CommandKind::Rule(RuleCommand::Peek), "tidegate.peek", -3, ("readonly", 0)),
    info(CommandKind::Rule(RuleCommand::Refund), "tidegate.refund", -4, ("write", 0)),
    info(CommandKind::Rule(RuleCommand::Reset), "tidegate.reset", -3, ("write", 0)),
    info(CommandKind::Auth, "auth", -2, ("fast", 0)),
    info(CommandKind::Hello, "hello", -1, ("fast", 0)),
    info(CommandKind::Ping, "ping", -1, ("fast", 0)),
    info(CommandKind::Echo, "echo", 2, ("fast", 0)),
    info(CommandKind::Select, "select", 2, ("fast", 0)),
    info(CommandKind::Client, "client", -2, ("fast", 0)),
    info(CommandKind::Command, "command", -1, ("fast", 0)),
    info(CommandKind::Config, "config", -2, ("fast", 0)),
    info(CommandKind::Info, "info", -1, ("fast", 0)),
    info(CommandKind::ResetConnection, "reset", 1, ("fast", 0)),
    info(CommandKind::Quit, "quit", -1, ("fast", 0)),
    info(CommandKind::Multi, "multi", 1, ("fast", 0)),
    info(CommandKind::Exec, "exec", 1, ("fast", 0)),
    info(CommandKind::Discard, "discard", 1, ("fast", 0)),
];

/// What happens to the connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    Continue,
    Close,
}

impl CommandInfo {
    /// The command called `name`, in any case.
    pub(crate) fn find(name: &[u8]) -> Option<&'static Self> {
        COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
    }

    pub(crate) fn accepts(&self, arguments: usize) -> bool {
        let (arguments, arity) = (i64::try_from(arguments).unwrap_or(i64::MAX), self.arity);
        if arity < 0 { arguments >= -arity } else { arguments == arity }
    }

    /// Whether clients that have not authenticated may use it.
    fn is_public(&self) -> bool {
        use CommandKind::{Auth, Hello, Ping, Quit, ResetConnection};
        matches!(self.kind, Auth | Hello | Ping | Quit | ResetConnection)
    }
}

/// Whether `arguments` are those of a `CL.THROTTLE` command.
#[inline]
pub(crate) fn is_throttle(arguments: &Arguments<'_>) -> bool {
    let is = |name: &[u8]| name == b"CL.THROTTLE" || name.eq_ignore_ascii_case(b"cl.throttle");
    arguments.get(0).is_some_and(is)
}

/// Executes any command but `CL.THROTTLE` and those of transactions, and writes its reply.
pub(crate) async fn execute<S: Store + 'static>(
    arguments: &Arguments<'_>,
    client: &mut RespClientState,
    (worker, policy): (&ServiceWorker<S>, &ServedPolicy),
    output: &mut Vec<u8>,
) -> NextStep {
    let tokens: &ListenerTokens = &policy.tokens;
    let mut replies = ReplyWriter::new(output, client.is_resp3);
    let name = arguments.get(0).unwrap_or_default();
    let Some(command) = CommandInfo::find(name) else {
        return reject_unknown(arguments, name, client.is_authorized(tokens), &mut replies);
    };
    if !command.is_public() && !client.is_authorized(tokens) {
        replies.error(NO_AUTH);
        return NextStep::Continue;
    }
    if !command.accepts(arguments.len()) {
        replies.error(format!("ERR wrong number of arguments for '{}' command", command.name));
        return NextStep::Continue;
    }
    match command.kind {
        // Handled before this is called. A command without a reply would shift the replies of all that follow it.
        CommandKind::Throttle | CommandKind::Multi | CommandKind::Exec | CommandKind::Discard => {
            replies.error("ERR the command is not possible here");
        }
        CommandKind::Rule(command) => {
            let origin = (worker, policy, client.peer);
            rule_commands::execute(command, arguments, origin, &mut replies).await;
        }
        CommandKind::Auth => connection_commands::auth(arguments, client, tokens, &mut replies),
        CommandKind::Hello => connection_commands::hello(arguments, client, tokens, output),
        CommandKind::Ping => connection_commands::ping(arguments, &mut replies),
        CommandKind::Echo => replies.bulk(arguments.get(1).unwrap_or_default()),
        CommandKind::Select => connection_commands::select(arguments, &mut replies),
        CommandKind::Client => connection_commands::client(arguments, client, &mut replies),
        CommandKind::Command => server_commands::command(arguments, &mut replies),
        CommandKind::Config => server_commands::config(arguments, &mut replies),
        CommandKind::Info => server_commands::info(&mut replies),
        CommandKind::ResetConnection => {
            client.reset();
            replies.status("RESET");
        }
        CommandKind::Quit => {
            replies.status("OK");
            return NextStep::Close;
        }
    }
    NextStep::Continue
}

/// The error for clients that need a token.
pub(crate) const NO_AUTH: &str = "NOAUTH Authentication required.";

fn reject_unknown(
    arguments: &Arguments<'_>,
    name: &[u8],
    is_authorized: bool,
    replies: &mut ReplyWriter<'_>,
) -> NextStep {
    // A browser that a web page makes send a request here must not have its body executed.
    if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
        return NextStep::Close;
    }
    if !is_authorized {
        replies.error(NO_AUTH);
        return NextStep::Continue;
    }
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(truncate(name, MAX_QUOTED));
    text.extend_from_slice(b"', with args beginning with: ");
    let prefix = text.len();
    for argument in arguments.from(1) {
        let Some(left) = (prefix + MAX_QUOTED).checked_sub(text.len()).filter(|left| *left > 0) else {
            break;
        };
        text.push(b'\'');
        text.extend_from_slice(truncate(argument, left));
        text.extend_from_slice(b"' ");
    }
    replies.error(text);
    NextStep::Continue
}

fn truncate(bytes: &[u8], max: usize) -> &[u8] {
    bytes.get(..max).unwrap_or(bytes)
}

/// An integer in the form of the protocol: digits, after a `-` if it is negative.
#[inline]
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    // Most numbers are short: 18 digits cannot overflow.
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut number: i64 = 0;
    for digit in digits {
        let value = digit.wrapping_sub(b'0');
        if value > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(i64::from(value))?;
    }
    Some(if is_negative { -number } else { number })
}
