//! Executes the commands that one read has brought.

use tidegate_store::Store;
use tidegate_telemetry::Protocol;

use super::client_state::RespClientState;
use super::command::{self, NextStep};
use super::frame::CommandParser;
use super::reply::ReplyWriter;
use super::throttle::ThrottleBatch;
use crate::auth;
use crate::worker::ServiceWorker;

/// While more bytes of replies than this are unsent, no further command of the connection is executed or read.
pub(crate) const MAX_OUTPUT: usize = 256 << 10;

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
        let needs_token =
            || auth::needs_token(&worker.policy().active.matcher.plan().service, Protocol::Resp);
        let is_locked = !client.is_authenticated && needs_token();
        let (mut consumed, mut commands) = (0, 0);
        let end = loop {
            if unsent + self.output.len() > MAX_OUTPUT {
                break BatchEnd::OutputFull;
            }
            let rest = input.get(consumed..).unwrap_or_default();
            let length = match self.parser.parse(rest) {
                Ok(Some(length)) => length,
                Ok(None) => break BatchEnd::Incomplete,
                Err(error) => {
                    self.decide(input, client, worker).await;
                    let mut replies = ReplyWriter::new(&mut self.output, client.is_resp3);
                    replies.error(format!("ERR Protocol error: {error}"));
                    break BatchEnd::Close;
                }
            };
            let arguments = self.parser.arguments(rest);
            if (client.is_authenticated || !is_locked) && command::is_throttle(&arguments) {
                self.throttle(input, consumed, client, worker).await;
            } else if !arguments.is_empty() {
                // Before the command, so that its reply follows theirs.
                Self::decide_with(&mut self.throttles, &mut self.output, input, client, worker).await;
                if command::execute(&arguments, client, worker, &mut self.output).await == NextStep::Close {
                    break BatchEnd::Close;
                }
            }
            consumed += length;
            commands += 1;
        };
        self.decide(input, client, worker).await;
        BatchProgress { consumed, commands, end }
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
        match throttles.push(&arguments, offset, &worker.resp.limits) {
            // The parser overwrites the arguments of an inline command with the next one.
            Ok(()) if is_inline => {
                Self::decide_with(throttles, output, arguments.bytes(), client, worker).await;
            }
            Ok(()) => {}
            Err(error) => {
                Self::decide_with(throttles, output, input, client, worker).await;
                ReplyWriter::new(output, client.is_resp3).error(error.to_string());
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
            throttles.decide(input, worker, &mut ReplyWriter::new(output, client.is_resp3)).await;
        }
    }
}
