//! `MULTI`, `EXEC` and `DISCARD`. Clients use them for pipelines unless they are told otherwise.
//!
//! Commands are kept until `EXEC` executes them in order. Other connections may be answered between them: a decision is atomic,
//! a transaction is not.

use super::client_state::RespClientState;
use super::command::{CommandKind, CommandRoute, Refusal};
use super::frame::{Arguments, MAX_COMMAND};
use super::reply::ReplyWriter;

/// The most bytes of commands in a transaction.
const MAX_BYTES: usize = 256 << 10;
/// The most commands in a transaction.
const MAX_COMMANDS: usize = 4_096;

/// The commands since `MULTI`.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    /// The commands as arrays of bulk strings.
    commands: Vec<u8>,
    len: usize,
    /// Whether a command was refused: nothing is executed then.
    is_failed: bool,
}

/// The route of a command after `MULTI`. If it is refused, `EXEC` will execute nothing.
#[cold]
pub(super) fn route(
    found: Result<CommandKind, Refusal>,
    name: &[u8],
    client: &mut RespClientState,
) -> CommandRoute {
    use CommandKind::{Discard, Exec, Multi, Quit, ResetConnection};
    match found {
        Ok(kind @ (Multi | Exec | Discard | ResetConnection | Quit)) if !client.is_locked => {
            CommandRoute::Execute(kind)
        }
        Ok(kind) if !client.is_locked => CommandRoute::Queue(kind),
        found => {
            // A refused `EXEC` ends the transaction too, as in Redis: its client sends commands that are not part of one next, and
            // must not read `QUEUED` as their replies.
            let is_exec = name.eq_ignore_ascii_case(b"exec");
            client.transaction = (!is_exec).then(Transaction::failed);
            found.map_or_else(CommandRoute::Refuse, CommandRoute::Execute)
        }
    }
}

/// `MULTI`
pub(super) fn multi(client: &mut RespClientState, replies: &mut ReplyWriter<'_>) {
    if client.transaction.is_some() {
        return replies.error("ERR MULTI calls can not be nested");
    }
    client.transaction = Some(Transaction::default());
    replies.status("OK");
}

/// Adds a command.
pub(super) fn queue(
    kind: CommandKind,
    arguments: &Arguments<'_>,
    client: &mut RespClientState,
    replies: &mut ReplyWriter<'_>,
) {
    client.transaction.get_or_insert_default().add(kind, arguments, replies);
}

/// `DISCARD`
pub(super) fn discard(client: &mut RespClientState, replies: &mut ReplyWriter<'_>) {
    match client.transaction.take() {
        Some(_) => replies.status("OK"),
        None => replies.error("ERR DISCARD without MULTI"),
    }
}

/// `EXEC`: the commands that are to be executed. Their replies complete the one that is written here.
pub(super) fn exec(client: &mut RespClientState, replies: &mut ReplyWriter<'_>) -> Vec<u8> {
    match client.transaction.take() {
        None => replies.error("ERR EXEC without MULTI"),
        Some(Transaction { is_failed: true, .. }) => {
            replies.error("EXECABORT Transaction discarded because of previous errors.");
        }
        Some(Transaction { commands, len, .. }) => {
            replies.array(len);
            return commands;
        }
    }
    Vec::new()
}

impl Transaction {
    fn failed() -> Self {
        Self { is_failed: true, ..Self::default() }
    }

    fn add(&mut self, kind: CommandKind, arguments: &Arguments<'_>, replies: &mut ReplyWriter<'_>) {
        use CommandKind::{Echo, Ping, Rule, Select, Throttle};
        // With the framing.
        let len = arguments.from(0).map(|argument| argument.len() + 12).sum::<usize>();
        let error = if !matches!(kind, Throttle | Rule(_) | Ping | Echo | Select) {
            "ERR Command not allowed inside a transaction"
        } else if self.commands.len() + len > MAX_BYTES || self.len == MAX_COMMANDS {
            "ERR too many commands in a transaction; send a pipeline without MULTI"
        } else if self.is_failed || self.append(arguments) {
            return replies.status("QUEUED");
        } else {
            "ERR too big command in a transaction; send it without MULTI"
        };
        *self = Self::failed();
        replies.error(error);
    }

    /// Appends a command; returns false if it is too long. An inline command that is short enough may be too long as an array.
    fn append(&mut self, arguments: &Arguments<'_>) -> bool {
        let start = self.commands.len();
        let mut command = ReplyWriter::new(&mut self.commands, false);
        command.array(arguments.len());
        arguments.from(0).for_each(|argument| command.bulk(argument));
        self.len += 1;
        self.commands.len() - start <= MAX_COMMAND
    }
}
