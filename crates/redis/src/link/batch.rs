//! Everything that waits for one server, as one pipeline.

use std::collections::HashMap;

use redis::{Cmd, Pipeline, Value};
use tidegate_core::Timestamp;
use tidegate_store::StoreError;

use super::queue::{CallBody, PendingCall};
use crate::operation::{Operation, ScriptName};
use crate::script::{self, ScriptCall};

/// Requests in one script call, unless a single operation has more. Redis does nothing else meanwhile, so the call must be
/// short.
const MAX_REQUESTS: usize = 64;
/// Bytes of the arguments of a script call with more than one operation.
const MAX_BYTES: usize = 64 << 10;

/// A pipeline and the calls that it answers.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) pipeline: Pipeline,
    /// One per reply, in the order of the replies. Commands without a group are only sent so that another one works.
    pub(super) groups: Vec<Option<CallGroup>>,
    /// Calls that could not be encoded.
    pub(super) invalid: Vec<(PendingCall, StoreError)>,
}

/// Calls that share a command.
#[derive(Debug)]
pub(super) struct CallGroup {
    pub(super) calls: Vec<PendingCall>,
    /// The script that the command runs.
    pub(super) script: Option<ScriptName>,
}

/// Operations can share a script call if these are equal.
type GroupKey = (ScriptName, u16, Option<Timestamp>);

/// How calls are grouped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grouping {
    /// Operations of different slots cannot share a call.
    pub(super) has_slots: bool,
}

impl Batch {
    /// Groups `calls`. The pipeline loads `scripts` first: no later pipeline can be executed between that and the calls.
    pub(super) fn new(
        calls: Vec<PendingCall>,
        grouping: Grouping,
        scripts: impl IntoIterator<Item = ScriptName>,
    ) -> Self {
        let mut batch = Self::default();
        for name in scripts {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(script::code(name));
            batch.push(load, None);
        }
        let mut groups: Vec<(Option<ScriptName>, Vec<PendingCall>, usize)> = Vec::new();
        let mut open: HashMap<GroupKey, usize> = HashMap::new();
        for call in calls {
            let CallBody::Operation(operation, now) = &call.body else {
                groups.push((None, vec![call], 1));
                continue;
            };
            let (script, requests) = (operation.script(), operation.requests());
            let key = (script, if grouping.has_slots { call.slot } else { 0 }, *now);
            let shared = open.get(&key).copied().filter(|_| !call.is_alone);
            match shared.and_then(|index| groups.get_mut(index)) {
                Some((_, group, count)) if *count + requests <= MAX_REQUESTS => {
                    group.push(call);
                    *count += requests;
                }
                _ => {
                    if !call.is_alone {
                        open.insert(key, groups.len());
                    }
                    groups.push((Some(script), vec![call], requests));
                }
            }
        }
        for (script, calls, _) in groups {
            match script {
                Some(script) => batch.push_script_call(script, calls),
                None => batch.push_commands(calls),
            }
        }
        batch
    }

    /// A pipeline that only asks whether the server responds.
    pub(super) fn ping() -> Self {
        let mut batch = Self::default();
        batch.push(redis::cmd("PING"), None);
        batch
    }

    fn push(&mut self, command: Cmd, group: Option<CallGroup>) {
        self.pipeline.add_command(command);
        self.groups.push(group);
    }

    fn push_commands(&mut self, calls: Vec<PendingCall>) {
        for call in calls {
            let CallBody::Command(command) = &call.body else { continue };
            let command = command.clone();
            self.push_asking(call.is_asking);
            self.push(command, Some(CallGroup { calls: vec![call], script: None }));
        }
    }

    fn push_asking(&mut self, is_asking: bool) {
        if is_asking {
            self.push(redis::cmd("ASKING"), None);
        }
    }

    fn push_script_call(&mut self, script: ScriptName, mut calls: Vec<PendingCall>) {
        let now = calls.first().and_then(|call| match call.body {
            CallBody::Operation(_, now) => now,
            CallBody::Command(_) => None,
        });
        match script::encode(&operations(&calls), now) {
            Ok(call) if calls.len() == 1 || size(&call) <= MAX_BYTES => {
                self.push_asking(calls.iter().any(|call| call.is_asking));
                self.push(evalsha(script, &call), Some(CallGroup { calls, script: Some(script) }));
            }
            // One operation must not fail the others.
            Ok(_) | Err(_) if calls.len() > 1 => {
                let rest = calls.split_off(calls.len() / 2);
                self.push_script_call(script, calls);
                self.push_script_call(script, rest);
            }
            Ok(_) => {}
            Err(error) => {
                if let Some(call) = calls.pop() {
                    self.invalid.push((call, error));
                }
            }
        }
    }
}

impl CallGroup {
    /// The number of requests in all operations.
    pub(super) fn requests(&self) -> usize {
        self.operations().into_iter().map(Operation::requests).sum()
    }

    /// The operations of the calls, in order.
    pub(super) fn operations(&self) -> Vec<&Operation> {
        operations(&self.calls)
    }

    /// Whether the reply is that of a command.
    pub(super) fn is_command(&self) -> bool {
        self.script.is_none()
    }

    /// Decodes the reply to a script call.
    pub(super) fn decode(&self, reply: &Value) -> Result<Vec<crate::operation::OperationReply>, StoreError> {
        let replies = script::decode(&self.operations(), reply)?;
        if replies.len() == self.calls.len() {
            Ok(replies)
        } else {
            Err(StoreError::Protocol { reason: "the number of replies is wrong".to_owned() })
        }
    }
}

fn operations(calls: &[PendingCall]) -> Vec<&Operation> {
    calls
        .iter()
        .filter_map(|call| match &call.body {
            CallBody::Operation(operation, _) => Some(operation),
            CallBody::Command(_) => None,
        })
        .collect()
}

fn size(call: &ScriptCall) -> usize {
    call.keys.iter().chain(&call.arguments).map(Vec::len).sum()
}

fn evalsha(script: ScriptName, call: &ScriptCall) -> Cmd {
    let hash = script::source(script).get_hash();
    let mut command = Cmd::with_capacity(3 + call.keys.len() + call.arguments.len(), size(call) + 64);
    command.arg("EVALSHA").arg(hash).arg(call.keys.len());
    for argument in call.keys.iter().chain(&call.arguments) {
        command.arg(argument.as_slice());
    }
    command
}
