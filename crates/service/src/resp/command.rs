//! The commands by name, and the route of each: whether it is executed, kept for `EXEC` or refused.

use super::client_state::RespClientState;
use super::frame::Arguments;
use super::reply::ReplyWriter;
use super::rule_commands::RuleCommand;
use super::transaction;
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
    /// In capitals, as most clients send it.
    pub(crate) name: &'static str,
    /// The number of arguments with the name; if negative, at least that many.
    pub(crate) arity: i64,
    pub(crate) flag: &'static str,
    /// The position of its key; 0 if it has none.
    pub(crate) key: i64,
}

const fn info(kind: CommandKind, name: &'static str, arity: i64, flag: &'static str) -> CommandInfo {
    let key = if matches!(kind, CommandKind::Throttle) { 1 } else { 0 };
    CommandInfo { kind, name, arity, flag, key }
}

/// Every command.
pub(crate) const COMMANDS: [CommandInfo; 19] = [
    info(CommandKind::Throttle, "CL.THROTTLE", -5, "write"),
    info(CommandKind::Rule(RuleCommand::Check), "TIDEGATE.CHECK", -3, "write"),
    info(CommandKind::Rule(RuleCommand::Peek), "TIDEGATE.PEEK", -3, "readonly"),
    info(CommandKind::Rule(RuleCommand::Refund), "TIDEGATE.REFUND", -4, "write"),
    info(CommandKind::Rule(RuleCommand::Reset), "TIDEGATE.RESET", -3, "write"),
    info(CommandKind::Auth, "AUTH", -2, "fast"),
    info(CommandKind::Hello, "HELLO", -1, "fast"),
    info(CommandKind::Ping, "PING", -1, "fast"),
    info(CommandKind::Echo, "ECHO", 2, "fast"),
    info(CommandKind::Select, "SELECT", 2, "fast"),
    info(CommandKind::Client, "CLIENT", -2, "fast"),
    info(CommandKind::Command, "COMMAND", -1, "fast"),
    info(CommandKind::Config, "CONFIG", -2, "fast"),
    info(CommandKind::Info, "INFO", -1, "fast"),
    info(CommandKind::ResetConnection, "RESET", 1, "fast"),
    info(CommandKind::Quit, "QUIT", -1, "fast"),
    info(CommandKind::Multi, "MULTI", 1, "fast"),
    info(CommandKind::Exec, "EXEC", 1, "fast"),
    info(CommandKind::Discard, "DISCARD", 1, "fast"),
];

/// Where a command goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommandRoute {
    Execute(CommandKind),
    /// It is executed by `EXEC`.
    Queue(CommandKind),
    Refuse(Refusal),
    /// There is no command, and no reply.
    Skip,
}

/// Why a command is not executed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// The client has to authenticate.
    NoAuth,
    /// It has too few or too many arguments.
    Arity(&'static CommandInfo),
    Unknown,
    /// A browser that a web page makes send a request here must not have its body executed: the connection is closed.
    WebRequest,
}

/// Who sent commands, and what they are executed with.
pub(crate) struct CommandOrigin<'a, S> {
    pub(crate) client: &'a mut RespClientState,
    pub(crate) worker: &'a ServiceWorker<S>,
    /// Commands of one read use one policy.
    pub(crate) policy: &'a ServedPolicy,
}

impl CommandInfo {
    /// The command called `name`, in any case.
    #[inline]
    pub(crate) fn find(name: &[u8]) -> Option<&'static Self> {
        let exact = COMMANDS.iter().find(|command| command.name.as_bytes() == name);
        exact.or_else(|| COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name)))
    }

    fn accepts(&self, arguments: usize) -> bool {
        let (arguments, arity) = (i64::try_from(arguments).unwrap_or(i64::MAX), self.arity);
        if arity < 0 { arguments >= -arity } else { arguments == arity }
    }

    /// Whether clients that have not authenticated may use it.
    fn is_public(&self) -> bool {
        use CommandKind::{Auth, Hello, Ping, Quit, ResetConnection};
        matches!(self.kind, Auth | Hello | Ping | Quit | ResetConnection)
    }
}

/// Finds the route of a command. No other function authorizes commands.
#[inline]
pub(crate) fn route(arguments: &Arguments<'_>, client: &mut RespClientState) -> CommandRoute {
    let Some(name) = arguments.get(0) else { return CommandRoute::Skip };
    let found = match CommandInfo::find(name) {
        Some(command) if client.is_locked && !command.is_public() => Err(Refusal::NoAuth),
        Some(command) if !command.accepts(arguments.len()) => Err(Refusal::Arity(command)),
        Some(command) => Ok(command.kind),
        None if is_web_request(name) => Err(Refusal::WebRequest),
        None if client.is_locked => Err(Refusal::NoAuth),
        None => Err(Refusal::Unknown),
    };
    if client.transaction.is_some() {
        return transaction::route(found, name, client);
    }
    found.map_or_else(CommandRoute::Refuse, CommandRoute::Execute)
}

/// Whether a browser may have sent this.
fn is_web_request(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

impl Refusal {
    /// Whether the command is a `CL.THROTTLE` with too few arguments. It is logged like one with invalid arguments.
    pub(crate) fn is_invalid_throttle(self) -> bool {
        matches!(self, Self::Arity(command) if command.kind == CommandKind::Throttle)
    }

    /// Writes the error, if there is one.
    pub(crate) fn write(self, arguments: &Arguments<'_>, replies: &mut ReplyWriter<'_>) {
        match self {
            Self::NoAuth => replies.error("NOAUTH Authentication required."),
            Self::Arity(command) => {
                let name = command.name.to_ascii_lowercase();
                replies.error(format!("ERR wrong number of arguments for '{name}' command"));
            }
            Self::Unknown => replies.error(unknown_text(arguments)),
            Self::WebRequest => {}
        }
    }
}

fn unknown_text(arguments: &Arguments<'_>) -> Vec<u8> {
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(truncate(arguments.get(0).unwrap_or_default(), MAX_QUOTED));
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
    text
}

fn truncate(bytes: &[u8], max: usize) -> &[u8] {
    bytes.get(..max).unwrap_or(bytes)
}
