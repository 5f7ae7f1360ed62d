//! Single `CL.THROTTLE` commands of several connections that are decided together.
//!
//! Clients without pipelines send one command at a time. A connection adds such a command to the open batch of its worker, lets
//! the other connections that are ready do the same ([`requeue`](crate::connection_events::requeue)), and then takes its reply.
//! The first connection that takes a reply decides the batch. The store then fetches all counters from memory at the same time,
//! and the clock is read and metrics are recorded once for all of them.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;

use bytes::BytesMut;
use tidegate_store::Store;

use super::frame::Arguments;
use super::limit_cache::LimitCache;
use super::reply::ReplyWriter;
use super::throttle::ThrottleBatch;
use crate::worker::ServiceWorker;

/// Batches with more bytes of commands than this are not kept for reuse.
const MAX_SPARE: usize = 256 << 10;

/// The shared batches of a worker.
#[derive(Debug, Default)]
pub(crate) struct SharedBatches {
    /// Takes commands until its first reply is taken.
    open: RefCell<Option<Rc<RefCell<SharedBatch>>>>,
    /// A batch whose replies have been taken, kept for its memory.
    spare: RefCell<Option<Rc<RefCell<SharedBatch>>>>,
    /// Whether the store had to be awaited for a batch. From then on each connection executes its own commands: nothing is gained
    /// if a call of the store follows anyway.
    are_awaited: Cell<bool>,
}

#[derive(Debug, Default)]
struct SharedBatch {
    throttles: ThrottleBatch,
    commands: Vec<u8>,
    replies: Vec<u8>,
    state: SharedState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SharedState {
    /// Takes commands.
    #[default]
    Open,
    Decided,
    /// Not decided, because the store has to be awaited.
    Awaited,
}

/// A reply that a shared batch will contain.
#[derive(Debug)]
pub(crate) struct SharedReply {
    batch: Rc<RefCell<SharedBatch>>,
    index: usize,
    /// The bytes of the command in the batch.
    command: Range<usize>,
}

impl SharedBatches {
    /// Whether no commands are shared, because the store has to be awaited.
    pub(crate) fn are_awaited(&self) -> bool {
        self.are_awaited.get()
    }

    /// Adds a command of `peer`, whose bytes are `command`. `None` if it is invalid or the batch is full.
    pub(crate) fn push(
        &self,
        (command, arguments): (&[u8], &Arguments<'_>),
        peer: IpAddr,
        limits: &RefCell<LimitCache>,
    ) -> Option<SharedReply> {
        let mut open = self.open.borrow_mut();
        let batch = open.get_or_insert_with(|| self.spare.take().unwrap_or_default());
        let (index, start) = {
            let SharedBatch { throttles, commands, .. } = &mut *batch.borrow_mut();
            if throttles.is_full() {
                return None;
            }
            let start = commands.len();
            throttles.push(arguments, (start, peer), limits).ok()?;
            commands.extend_from_slice(command);
            (throttles.len() - 1, start)
        };
        Some(SharedReply { batch: Rc::clone(batch), index, command: start..start + command.len() })
    }

    /// Keeps the memory of a batch after its last reply was taken.
    fn recycle(&self, mut batch: Rc<RefCell<SharedBatch>>) {
        if let Some(unused) = Rc::get_mut(&mut batch) {
            let SharedBatch { commands, replies, state, .. } = unused.get_mut();
            if *state == SharedState::Decided && commands.capacity() <= MAX_SPARE {
                commands.clear();
                replies.clear();
                *state = SharedState::Open;
                *self.spare.borrow_mut() = Some(batch);
            }
        }
    }
}

impl SharedReply {
    /// Appends the reply to `output`, after the batch is decided. If the store has to be awaited, returns the command instead,
    /// which the connection then executes by itself.
    pub(crate) fn append_to<S: Store + 'static>(
        self,
        output: &mut BytesMut,
        worker: &ServiceWorker<S>,
    ) -> Option<Vec<u8>> {
        let shared = &worker.resp.shared;
        let command = {
            let SharedBatch { throttles, commands, replies, state } = &mut *self.batch.borrow_mut();
            if *state == SharedState::Open {
                // A batch that is not decided is the open one. It takes no more commands.
                shared.open.take();
                let is_decided =
                    throttles.try_decide(commands, worker, &mut ReplyWriter::new(replies, false));
                shared.are_awaited.set(!is_decided);
                *state = if is_decided { SharedState::Decided } else { SharedState::Awaited };
            }
            if *state == SharedState::Decided {
                output.extend_from_slice(throttles.reply(self.index, replies));
                None
            } else {
                Some(commands.get(self.command).unwrap_or_default().to_vec())
            }
        };
        shared.recycle(self.batch);
        command
    }
}
