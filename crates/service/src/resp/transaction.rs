//! `MULTI`, `EXEC` and `DISCARD`. Clients use them for pipelines unless they are told otherwise.
//!
//! Commands are kept until `EXEC` executes them in order. Other connections may be answered between them: a decision is atomic,
//! a transaction is not.

use super::client_state::RespClientState;
use super::command::{CommandInfo, CommandKind};
use super::frame::{Arguments, MAX_COMMAND};
use super::reply::ReplyWriter;
use crate::auth::ListenerTokens;

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

/// What a command means for transactions.
#[derive(Debug)]
pub(crate) enum TransactionStep {
    /// It is executed as without a transaction.
    Outside,
    /// It was answered.
    Answered,
    /// It executes this number of commands.
    Execute(Vec<u8>, usize),
}

/// Whether a command must be passed to [`step`].
pub(crate) fn concerns(arguments: &Arguments<'_>, client: &RespClientState) -> bool {
    let is_one_of = |name: &[u8]| {
        [&b"multi"[..], b"exec", b"discard"].iter().any(|other| other.eq_ignore_ascii_case(name))
    };
    client.transaction.is_some() || arguments.get(0).is_some_and(is_one_of)
}

/// Begins or ends a transaction, or adds a command to it.
pub(crate) fn step(
    arguments: &Arguments<'_>,
    client: &mut RespClientState,
    tokens: &ListenerTokens,
    replies: &mut ReplyWriter<'_>,
) -> TransactionStep {
    use CommandKind::{Discard, Exec, Multi, Quit, ResetConnection};
    let is_authorized = client.is_authorized(tokens);
    let found = CommandInfo::find(arguments.get(0).unwrap_or_default());
    let is_exec = found.is_some_and(|command| matches!(command.kind, Exec));
    let command = found.filter(|command| is_authorized && command.accepts(arguments.len()));
    let kind = command.map(|command| command.kind);
    match (kind, client.transaction.take()) {
        (Some(Multi), None) => {
            client.transaction = Some(Transaction::default());
            replies.status("OK");
        }
        (Some(Exec), None) => replies.error("ERR EXEC without MULTI"),
        (Some(Discard), None) => replies.error("ERR DISCARD without MULTI"),
        (_, None) | (Some(ResetConnection | Quit), _) => return TransactionStep::Outside,
        (Some(Multi), transaction) => {
            client.transaction = transaction;
            replies.error("ERR MULTI calls can not be nested");
        }
        (Some(Exec), Some(Transaction { is_failed: true, .. })) => {
            replies.error("EXECABORT Transaction discarded because of previous errors.");
        }
        (Some(Exec), Some(Transaction { commands, len, .. })) => {
            return TransactionStep::Execute(commands, len);
        }
        (Some(Discard), _) => replies.status("OK"),
        (Some(kind), Some(mut transaction)) => {
            transaction.add(kind, arguments, replies);
            client.transaction = Some(transaction);
        }
        // The reply is the error of the command. A refused `EXEC` ends the transaction too, as in Redis: its client sends commands
        // that are not part of one next, and must not read `QUEUED` as their replies.
        (None, Some(_)) => {
            client.transaction =
                (!is_exec).then(|| Transaction { is_failed: true, ..Transaction::default() });
            return TransactionStep::Outside;
        }
    }
    TransactionStep::Answered
}

impl Transaction {
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
        *self = Self { is_failed: true, ..Self::default() };
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
