//! Executes the commands that one read has brought.

use std::cell::{OnceCell, RefCell};

use tidegate_core::Decision;
use tidegate_store::Store;
use tidegate_telemetry::RuleSlots;

use super::client_state::RespClientState;
use super::command::{self, CommandKind, CommandOrigin, CommandRoute, Refusal};
use super::frame::CommandParser;
use super::limit_cache::LimitCache;
use super::reply::ReplyWriter;
use super::throttle_batch::ThrottleBatch;
use super::{connection_commands, rule_commands, server_commands, throttle, transaction};
use crate::worker::ServiceWorker;

/// While more bytes of replies than this are unsent, no further command of the connection is executed or read.
pub(crate) const MAX_OUTPUT: usize = 256 << 10;
/// The same for a client that still has to authenticate.
pub(crate) const MAX_LOCKED_OUTPUT: usize = 4 << 10;
/// The most bytes that are kept of a command before authentication.
pub(crate) const MAX_LOCKED_INPUT: usize = 16 << 10;

/// The most bytes that are read at once.
const READ_LEN: usize = 64 << 10;
/// The number of unused workspaces that a worker keeps.
const MAX_SPARE: usize = 4;
/// Buffers for replies above this size are not kept.
const MAX_SPARE_OUTPUT: usize = 512 << 10;

/// What the connections of a worker share.
#[derive(Debug, Default)]
pub(crate) struct RespState {
    pub(crate) limits: RefCell<LimitCache>,
    /// The metric slot of `CL.THROTTLE`, which is registered when a command is rejected.
    pub(crate) slots: OnceCell<RuleSlots>,
    /// A connection uses a workspace until its commands are decided; unless the store is remote, one is enough.
    #[expect(clippy::vec_box, reason = "a workspace changes hands several times per batch")]
    spare: RefCell<Vec<Box<Workspace>>>,
}

/// The buffers for one batch of commands.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Commands are read into it.
    pub(crate) read: Box<[u8]>,
    pub(crate) batch: CommandBatch,
}

/// Executes commands in order. Consecutive `CL.THROTTLE` commands are decided together.
#[derive(Debug, Default)]
pub(crate) struct CommandBatch {
    parser: CommandParser,
    throttles: ThrottleBatch,
    decisions: Vec<Decision>,
    /// The replies.
    pub(crate) output: Vec<u8>,
}

/// What [`CommandBatch::execute`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchProgress {
    /// The bytes of the executed commands.
    pub(crate) consumed: usize,
    /// The number of executed commands.
    pub(crate) commands: usize,
    pub(crate) end: BatchEnd,
}

/// Why the execution ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchEnd {
    /// No complete command is left.
    Incomplete,
    /// Too many replies are unsent.
    OutputFull,
    /// The connection is to be closed after the replies.
    Close,
}

/// What happens to the connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    Continue,
    Close,
}

impl RespState {
    /// A workspace for one batch.
    pub(crate) fn take(&self) -> Box<Workspace> {
        let spare = self.spare.borrow_mut().pop();
        spare.unwrap_or_else(|| {
            Box::new(Workspace { read: vec![0; READ_LEN].into(), batch: CommandBatch::default() })
        })
    }

    pub(crate) fn put_back(&self, workspace: Box<Workspace>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < MAX_SPARE && workspace.batch.output.capacity() <= MAX_SPARE_OUTPUT {
            spare.push(workspace);
        }
    }
}

impl CommandBatch {
    /// Executes the commands in `input` and appends their replies to the output. `unsent` is the number of bytes that wait to
    /// be sent before those.
    pub(crate) async fn execute<S: Store + 'static>(
        &mut self,
        input: &[u8],
        unsent: usize,
        client: &mut RespClientState,
        worker: &ServiceWorker<S>,
    ) -> BatchProgress {
        // Each command is authorized by the state that those before it left, and by one policy.
        let policy = &*worker.policy();
        client.update_lock(&policy.tokens);
        let origin = &mut CommandOrigin { client, worker, policy };
        let (mut consumed, mut commands) = (0, 0);
        let end = loop {
            let is_locked = origin.client.is_locked;
            let max = if is_locked { MAX_LOCKED_OUTPUT } else { MAX_OUTPUT };
            if unsent + self.output.len() > max {
                break BatchEnd::OutputFull;
            }
            let rest = input.get(consumed..).unwrap_or_default();
            let error = match self.parser.parse(rest) {
                Ok(Some(length)) => {
                    // Of a pipeline, most commands only wait for the others: these need no future.
                    if let Some(route) = self.join(rest, origin)
                        && Box::pin(self.run(route, rest, origin)).await == NextStep::Close
                    {
                        break BatchEnd::Close;
                    }
                    consumed += length;
                    commands += 1;
                    continue;
                }
                Ok(None) if !is_locked || rest.len() <= MAX_LOCKED_INPUT => break BatchEnd::Incomplete,
                Ok(None) => "too big command before authentication".to_owned(),
                Err(error) => error.to_string(),
            };
            self.decide(origin).await;
            let mut replies = ReplyWriter::new(&mut self.output, origin.client.is_resp3);
            replies.error(format!("ERR Protocol error: {error}"));
            break BatchEnd::Close;
        };
        self.decide(origin).await;
        BatchProgress { consumed, commands, end }
    }

    /// Adds the parsed command at the beginning of `input` to those that are decided together. Returns the route of one that is
    /// not decided with them: any but `CL.THROTTLE`, one that is invalid, and the first of the next batch.
    #[expect(clippy::inline_always, reason = "most of what a command of a pipeline needs")]
    #[inline(always)]
    fn join<S>(&mut self, input: &[u8], origin: &mut CommandOrigin<'_, S>) -> Option<CommandRoute> {
        let Self { parser, throttles, .. } = self;
        let arguments = parser.arguments(input);
        let route = command::route(&arguments, origin.client);
        let has_joined = matches!(route, CommandRoute::Execute(CommandKind::Throttle))
            && !throttles.is_full()
            && throttles.push(&arguments, &origin.worker.resp.limits).is_ok();
        (!has_joined).then_some(route)
    }

    /// Takes the parsed command at the beginning of `input` along its route, after those that wait have been decided.
    async fn run<S: Store + 'static>(
        &mut self,
        route: CommandRoute,
        input: &[u8],
        origin: &mut CommandOrigin<'_, S>,
    ) -> NextStep {
        self.decide(origin).await;
        let Self { parser, throttles, output, .. } = self;
        let CommandOrigin { client, worker, policy } = origin;
        let (arguments, tokens) = (&parser.arguments(input), &*policy.tokens);
        let mut replies = ReplyWriter::new(output, client.is_resp3);
        let kind = match route {
            CommandRoute::Execute(kind) => kind,
            CommandRoute::Queue(kind) => {
                transaction::queue(kind, arguments, client, &mut replies);
                return NextStep::Continue;
            }
            CommandRoute::Refuse(Refusal::WebRequest) => return NextStep::Close,
            CommandRoute::Refuse(refusal) => {
                refusal.write(arguments, &mut replies);
                if refusal.is_invalid_throttle() {
                    throttle::log_invalid(client.peer, worker);
                }
                return NextStep::Continue;
            }
            CommandRoute::Skip => return NextStep::Continue,
        };
        match kind {
            CommandKind::Throttle => {
                if let Err(error) = throttles.push(arguments, &worker.resp.limits) {
                    replies.error(error.to_string());
                    throttle::log_invalid(client.peer, worker);
                }
            }
            CommandKind::Rule(command) => {
                let origin = (*worker, *policy, client.peer);
                rule_commands::execute(command, arguments, origin, &mut replies).await;
            }
            CommandKind::Auth => connection_commands::auth(arguments, client, tokens, &mut replies),
            CommandKind::Hello => connection_commands::hello(arguments, client, tokens, &mut replies),
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
            CommandKind::Multi => transaction::multi(client, &mut replies),
            CommandKind::Discard => transaction::discard(client, &mut replies),
            CommandKind::Exec => {
                let commands = transaction::exec(client, &mut replies);
                self.run_all(&commands, origin).await;
            }
            CommandKind::Quit => {
                replies.status("OK");
                return NextStep::Close;
            }
        }
        origin.client.update_lock(tokens);
        NextStep::Continue
    }

    /// Executes the commands of a transaction. None of them closes the connection.
    async fn run_all<S: Store + 'static>(&mut self, commands: &[u8], origin: &mut CommandOrigin<'_, S>) {
        let mut rest = commands;
        while let Ok(Some(length)) = self.parser.parse(rest) {
            if let Some(route) = self.join(rest, origin) {
                Box::pin(self.run(route, rest, origin)).await;
            }
            rest = rest.get(length..).unwrap_or_default();
        }
        self.decide(origin).await;
    }

    /// Decides the `CL.THROTTLE` commands that wait.
    async fn decide<S: Store + 'static>(&mut self, origin: &CommandOrigin<'_, S>) {
        if !self.throttles.is_empty() {
            let mut replies = ReplyWriter::new(&mut self.output, origin.client.is_resp3);
            throttle::decide(&mut self.throttles, &mut self.decisions, origin, &mut replies).await;
        }
    }
}
