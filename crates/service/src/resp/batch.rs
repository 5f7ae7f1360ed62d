//! Executes the commands that one read has brought.

use tidegate_store::Store;

use super::client_state::RespClientState;
use super::command::{self, NextStep};
use super::frame::CommandParser;
use super::reply::ReplyWriter;
use super::throttle::{self, ThrottleBatch};
use super::transaction::{self, TransactionStep};
use crate::worker::{ServedPolicy, ServiceWorker};

/// While more bytes of replies than this are unsent, no further command of the connection is executed or read.
pub(crate) const MAX_OUTPUT: usize = 256 << 10;
/// The same for a client that still has to authenticate.
pub(crate) const MAX_LOCKED_OUTPUT: usize = 4 << 10;
/// The most bytes that are kept of a command before authentication.
pub(crate) const MAX_LOCKED_INPUT: usize = 16 << 10;

/// Executes commands in order. Consecutive `CL.THROTTLE` commands are decided together.
#[derive(Debug, Default)]
pub(crate) struct CommandBatch {
    parser: CommandParser,
    throttles: ThrottleBatch,
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
        let (mut consumed, mut commands) = (0, 0);
        let end = loop {
            let is_locked = !client.is_authorized(&policy.tokens);
            let max = if is_locked { MAX_LOCKED_OUTPUT } else { MAX_OUTPUT };
            if unsent + self.output.len() > max {
                break BatchEnd::OutputFull;
            }
            let rest = input.get(consumed..).unwrap_or_default();
            let parsed = self.parser.parse(rest).map_err(|error| error.to_string());
            let length = match parsed {
                Ok(Some(length)) => length,
                Ok(None) if !is_locked || rest.len() <= MAX_LOCKED_INPUT => break BatchEnd::Incomplete,
                Ok(None) => {
                    break self.refuse("too big command before authentication", input, client, worker).await;
                }
                Err(error) => break self.refuse(&error, input, client, worker).await,
            };
            // Of a pipeline, most commands only wait for the others: these need no future.
            if !self.push_throttle(input, consumed, client, (worker, is_locked)) {
                let next = Box::pin(self.step(input, consumed, client, (worker, policy))).await;
                if next == NextStep::Close {
                    break BatchEnd::Close;
                }
            }
            consumed += length;
            commands += 1;
        };
        self.decide(input, client, worker).await;
        client.is_locked = !client.is_authorized(&policy.tokens);
        BatchProgress { consumed, commands, end }
    }

    /// Answers bytes that are not a command.
    async fn refuse<S: Store + 'static>(
        &mut self,
        reason: &str,
        input: &[u8],
        client: &RespClientState,
        worker: &ServiceWorker<S>,
    ) -> BatchEnd {
        self.decide(input, client, worker).await;
        let mut replies = ReplyWriter::new(&mut self.output, client.is_resp3);
        replies.error(format!("ERR Protocol error: {reason}"));
        BatchEnd::Close
    }

    /// Adds the command that was parsed at `start` of `input` to those that are decided together. Returns whether it is one of
    /// them, valid, and not the first of the next batch.
    #[inline]
    fn push_throttle<S: Store + 'static>(
        &mut self,
        input: &[u8],
        start: usize,
        client: &RespClientState,
        (worker, is_locked): (&ServiceWorker<S>, bool),
    ) -> bool {
        let Self { parser, throttles, .. } = self;
        if is_locked || client.transaction.is_some() || parser.is_inline() || throttles.is_full() {
            return false;
        }
        let arguments = parser.arguments(input.get(start..).unwrap_or_default());
        command::is_throttle(&arguments)
            && throttles.push(&arguments, (start, client.peer), &worker.resp.limits).is_ok()
    }

    /// Executes the command that was parsed at `start` of `input`, or adds it to those that are decided together.
    async fn step<S: Store + 'static>(
        &mut self,
        input: &[u8],
        start: usize,
        client: &mut RespClientState,
        (worker, policy): (&ServiceWorker<S>, &ServedPolicy),
    ) -> NextStep {
        let arguments = self.parser.arguments(input.get(start..).unwrap_or_default());
        if arguments.is_empty() {
            return NextStep::Continue;
        }
        if client.transaction.is_none()
            && command::is_throttle(&arguments)
            && client.is_authorized(&policy.tokens)
        {
            self.throttle(input, start, client, worker).await;
            return NextStep::Continue;
        }
        // Before the command, so that its reply follows theirs.
        Self::decide_with(&mut self.throttles, &mut self.output, input, client, worker).await;
        if transaction::concerns(&arguments, client) {
            let mut replies = ReplyWriter::new(&mut self.output, client.is_resp3);
            match transaction::step(&arguments, client, &policy.tokens, &mut replies) {
                TransactionStep::Outside => {}
                TransactionStep::Answered => return NextStep::Continue,
                TransactionStep::Execute(commands, len) => {
                    replies.array(len);
                    self.execute_all(&commands, client, (worker, policy)).await;
                    return NextStep::Continue;
                }
            }
        }
        command::execute(&arguments, client, (worker, policy), &mut self.output).await
    }

    /// Executes the commands of a transaction.
    async fn execute_all<S: Store + 'static>(
        &mut self,
        commands: &[u8],
        client: &mut RespClientState,
        (worker, policy): (&ServiceWorker<S>, &ServedPolicy),
    ) {
        let mut start = 0;
        while let Ok(Some(length)) = self.parser.parse(commands.get(start..).unwrap_or_default()) {
            let arguments = self.parser.arguments(commands.get(start..).unwrap_or_default());
            if command::is_throttle(&arguments) {
                self.throttle(commands, start, client, worker).await;
            } else {
                Self::decide_with(&mut self.throttles, &mut self.output, commands, client, worker).await;
                // None of these commands closes the connection.
                let _ = command::execute(&arguments, client, (worker, policy), &mut self.output).await;
            }
            start += length;
        }
        self.decide(commands, client, worker).await;
    }

    /// Adds the last command to those that are decided together.
    async fn throttle<S: Store + 'static>(
        &mut self,
        input: &[u8],
        start: usize,
        client: &RespClientState,
        worker: &ServiceWorker<S>,
    ) {
        let is_inline = self.parser.is_inline();
        if is_inline || self.throttles.is_full() {
            self.decide(input, client, worker).await;
        }
        let Self { parser, throttles, output } = self;
        let arguments = parser.arguments(input.get(start..).unwrap_or_default());
        let offset = if is_inline { 0 } else { start };
        match throttles.push(&arguments, (offset, client.peer), &worker.resp.limits) {
            // The parser overwrites the arguments of an inline command with the next one.
            Ok(()) if is_inline => {
                Self::decide_with(throttles, output, arguments.bytes(), client, worker).await;
            }
            Ok(()) => {}
            Err(error) => {
                Self::decide_with(throttles, output, input, client, worker).await;
                ReplyWriter::new(output, client.is_resp3).error(error.to_string());
                throttle::log_invalid(client.peer, worker);
            }
        }
    }

    /// Decides the commands that wait.
    async fn decide<S: Store + 'static>(
        &mut self,
        input: &[u8],
        client: &RespClientState,
        worker: &ServiceWorker<S>,
    ) {
        Self::decide_with(&mut self.throttles, &mut self.output, input, client, worker).await;
    }

    async fn decide_with<S: Store + 'static>(
        throttles: &mut ThrottleBatch,
        output: &mut Vec<u8>,
        input: &[u8],
        client: &RespClientState,
        worker: &ServiceWorker<S>,
    ) {
        if !throttles.is_empty() {
            let mut replies = ReplyWriter::new(output, client.is_resp3);
            throttles.decide(input, worker, &mut replies).await;
        }
    }
}
