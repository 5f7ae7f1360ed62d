//! What the I/O thread does with replies.

use redis::{RedisResult, Value};
use tidegate_core::CallOutcome;

use super::batch::{Batch, CallGroup};
use super::dispatcher::Dispatcher;
use super::error::{ConnectError, ErrorReply, LinkError};
use super::queue::{CallReply, PendingCall};
use super::stats;
use crate::endpoint::ServerAddress;
use crate::operation::ScriptName;

/// After this many refusals a call waits for the next tick, so that servers that disagree about a slot do not keep the thread
/// busy.
const MAX_IMMEDIATE_RETRIES: u32 = 6;

impl Dispatcher {
    /// Answers the calls of a pipeline, or sends them again if the server did not execute them.
    pub(super) fn handle_replies(
        &mut self,
        address: &ServerAddress,
        batch: Batch,
        result: RedisResult<Vec<Value>>,
    ) {
        let replies = match result {
            Ok(replies) => replies,
            Err(error) => {
                for call in batch.groups.into_iter().flatten().flat_map(|group| group.calls) {
                    let lost = LinkError::ConnectionLost { address: address.clone(), source: error.clone() };
                    self.shared.queue.answer(&call.reply, Err(lost.into()));
                }
                return;
            }
        };
        let (mut refusal, mut unloaded, mut not_loaded) = (None, Vec::new(), None);
        for (group, reply) in batch.groups.into_iter().zip(replies) {
            let Some(group) = group else {
                if let Value::ServerError(error) = reply {
                    not_loaded = Some(error.to_string());
                }
                continue;
            };
            match reply {
                Value::ServerError(error) => {
                    let error = ErrorReply::parse(&error, address);
                    if let (ErrorReply::NoScript, Some(reason)) = (&error, &not_loaded) {
                        // The script cannot be loaded, so that sending the calls again would not help.
                        group.calls.iter().for_each(|call| self.answer_rejected(address, call, reason));
                        continue;
                    }
                    if error == ErrorReply::NoScript {
                        unloaded.push(group);
                        continue;
                    }
                    for call in group.calls {
                        self.handle_error(address, call, &error);
                    }
                    if let ErrorReply::NotReady { reason } = error {
                        refusal = Some(reason);
                    }
                }
                reply => self.answer(address, &group, &reply),
            }
        }
        self.send_again(address, unloaded);
        self.record_replies(address, refusal);
    }

    /// Sends calls whose script is not loaded again, before all others and in the same order.
    fn send_again(&mut self, address: &ServerAddress, groups: Vec<CallGroup>) {
        for group in groups.into_iter().rev() {
            let Some(server) = self.servers.get_mut(address) else {
                group.calls.into_iter().for_each(|call| self.route(call));
                continue;
            };
            server.missing_scripts.extend(group.script);
            for mut call in group.calls.into_iter().rev() {
                stats::add(&self.shared.stats.retries, 1);
                call.refusals += 1;
                // A server that loads a script and does not know it afterwards would keep the thread busy.
                if call.refusals > MAX_IMMEDIATE_RETRIES {
                    self.delayed.push(call);
                } else {
                    server.push_first(call);
                }
            }
        }
    }

    /// Records whether the server works; `refusal` says why it does not.
    fn record_replies(&mut self, address: &ServerAddress, refusal: Option<String>) {
        let is_ready = refusal.is_none();
        let now = self.shared.now();
        let outcome = if is_ready { CallOutcome::Success } else { CallOutcome::Failure };
        let Some(server) = self.servers.get(address) else { return };
        server.health.set_refusing(!is_ready);
        if !server.health.is_available() {
            return;
        }
        let has_opened = server.health.record(outcome, now);
        if has_opened {
            let reason = refusal.unwrap_or_default();
            self.log_failure(&ConnectError::Probe { address: address.clone(), reason });
            self.note_breakers(true);
            self.reject_backlog(address);
            if let Some(server) = self.servers.get_mut(address) {
                server.disconnect();
            }
        }
        if !is_ready {
            self.refresh();
        }
    }

    fn answer(&self, address: &ServerAddress, group: &CallGroup, reply: &Value) {
        let now = self.shared.timer_reading();
        // Commands are background work of the store, and so are exchanges of counts.
        let is_decision = matches!(group.script, Some(ScriptName::Central | ScriptName::Lease));
        let answer = |call: &PendingCall, reply| {
            if self.shared.queue.answer(&call.reply, Ok(reply)) && is_decision {
                self.shared.stats.add_reply(now.nanos_since(call.submitted) / 1_000);
            }
        };
        if group.is_command() {
            group.calls.iter().for_each(|call| answer(call, CallReply::Command(reply.clone())));
            return;
        }
        match group.decode(reply) {
            Ok(replies) => {
                for (call, reply) in group.calls.iter().zip(replies) {
                    if let Some(reason) = reply.entry_error() {
                        self.note_error_reply(address, reason);
                    }
                    answer(call, CallReply::Operation(reply));
                }
            }
            Err(error) => {
                let reason = error.to_string();
                group.calls.iter().for_each(|call| self.answer_rejected(address, call, &reason));
            }
        }
    }

    fn handle_error(&mut self, from: &ServerAddress, mut call: PendingCall, error: &ErrorReply) {
        if let ErrorReply::Rejected { reason } = error {
            return self.answer_rejected(from, &call, reason);
        }
        if let ErrorReply::NotReady { reason } = error {
            self.note_error_reply(from, reason);
        }
        if !self.grouping.has_slots && matches!(error, ErrorReply::Moved { .. } | ErrorReply::Ask { .. }) {
            let reason = "the server is part of a cluster; use `redis-cluster://`";
            return self.answer_rejected(from, &call, reason);
        }
        stats::add(&self.shared.stats.retries, 1);
        call.refusals += 1;
        call.is_asking = false;
        let is_delayed = call.refusals > MAX_IMMEDIATE_RETRIES;
        match error {
            ErrorReply::Moved { slot, address } => {
                let health = self.health(address);
                self.server(&health);
                if let Some(routes) = self.routes.moved(*slot, &health) {
                    self.set_routes(routes);
                    self.refresh();
                }
                if is_delayed { self.delayed.push(call) } else { self.route(call) }
            }
            ErrorReply::Ask { address } => {
                // Some keys of a shared call may be at either server: each operation goes where its own keys are.
                call.is_alone = true;
                call.is_asking = !is_delayed;
                let health = self.health(address);
                if is_delayed { self.delayed.push(call) } else { self.push(&health, call) }
            }
            ErrorReply::TryAgain if !call.is_alone => {
                call.is_alone = true;
                self.route(call);
            }
            _ => self.delayed.push(call),
        }
    }
}
