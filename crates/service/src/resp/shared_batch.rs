//! Single `CL.THROTTLE` commands of several connections that are decided together.
//!
//! Clients without pipelines send one command at a time. A connection adds such a command to the open batch of its worker, lets
//! the other connections that are ready do the same ([`requeue`](crate::connection_events::requeue)), and then takes its reply.
//! The first connection that takes a reply decides the batch. The store then fetches all counters from memory at the same time,
//! and the clock is read and metrics are recorded once for all of them.

use std::cell::RefCell;
use std::net::IpAddr;
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
}

#[derive(Debug, Default)]
struct SharedBatch {
    throttles: ThrottleBatch,
    commands: Vec<u8>,
    replies: Vec<u8>,
    is_decided: bool,
}

/// A reply that a shared batch will contain.
#[derive(Debug)]
pub(crate) struct SharedReply {
    batch: Rc<RefCell<SharedBatch>>,
    index: usize,
}

impl SharedBatches {
    /// Adds a command of `peer`, whose bytes are `command`. `None` if it is invalid or the batch is full.
    pub(crate) fn push(
        &self,
        (command, arguments): (&[u8], &Arguments<'_>),
        peer: IpAddr,
        limits: &RefCell<LimitCache>,
    ) -> Option<SharedReply> {
        let mut open = self.open.borrow_mut();
        let batch = open.get_or_insert_with(|| self.spare.take().unwrap_or_default());
        let index = {
            let SharedBatch { throttles, commands, .. } = &mut *batch.borrow_mut();
            if throttles.is_full() {
                return None;
            }
            throttles.push(arguments, (commands.len(), peer), limits).ok()?;
            commands.extend_from_slice(command);
            throttles.len() - 1
        };
        Some(SharedReply { batch: Rc::clone(batch), index })
    }

    /// Keeps the memory of a batch after its last reply was taken.
    fn recycle(&self, mut batch: Rc<RefCell<SharedBatch>>) {
        if let Some(unused) = Rc::get_mut(&mut batch) {
            let SharedBatch { commands, replies, is_decided, .. } = unused.get_mut();
            if commands.capacity() <= MAX_SPARE {
                commands.clear();
                replies.clear();
                *is_decided = false;
                *self.spare.borrow_mut() = Some(batch);
            }
        }
    }
}

impl SharedReply {
    /// Appends the reply to `output`, after the batch is decided.
    pub(crate) fn append_to<S: Store + 'static>(self, output: &mut BytesMut, worker: &ServiceWorker<S>) {
        let shared = &worker.resp.shared;
        {
            let SharedBatch { throttles, commands, replies, is_decided } = &mut *self.batch.borrow_mut();
            if !*is_decided {
                // A batch that is not decided is the open one. It takes no more commands.
                shared.open.take();
                throttles.decide_at_once(commands, worker, &mut ReplyWriter::new(replies, false));
                *is_decided = true;
            }
            output.extend_from_slice(throttles.reply(self.index, replies));
        }
        shared.recycle(self.batch);
    }
}
