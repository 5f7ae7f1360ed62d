//! Calls that wait for a reply.
//!
//! Callers append to one list and the I/O thread takes the whole list, so that everything that waits is sent together. All
//! calls have the same timeout and therefore expire in the order of their submission: one counter of ticks replaces a timer
//! per call.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{Cmd, Value};
use tidegate_core::Timestamp;
use tidegate_store::{ClockReading, StoreError};
use tokio::sync::{Notify, oneshot};

use super::error::LinkError;
use crate::operation::{Operation, OperationReply};

/// A call expires when the counter has advanced by this much: after more than 7/8 of the timeout, and never after more than
/// all of it.
pub(super) const TICKS_PER_TIMEOUT: u32 = 8;
/// Unanswered calls, in the queue or sent. Far more than Redis answers within a timeout.
const MAX_UNANSWERED: usize = 16_384;

/// What a caller wants.
#[derive(Debug)]
pub(super) enum CallBody {
    /// An operation, with the caller's time if that counts.
    Operation(Operation, Option<Timestamp>),
    /// A command of the store itself.
    Command(Cmd),
}

/// What a caller gets.
#[derive(Debug)]
pub(super) enum CallReply {
    Operation(OperationReply),
    Command(Value),
}

type CallResult = Result<CallReply, StoreError>;

/// A call without a reply.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) body: CallBody,
    /// The hash slot of its keys.
    pub(super) slot: u16,
    pub(super) reply: Arc<ReplySlot>,
    pub(super) submitted: ClockReading,
    /// It must not share a script call, because its slot is being moved.
    pub(super) is_alone: bool,
    /// It is sent after `ASKING`.
    pub(super) is_asking: bool,
    /// How often a server has refused to execute it.
    pub(super) refusals: u32,
}

/// Where the reply goes; empty once the caller has a result.
#[derive(Debug)]
pub(super) struct ReplySlot(Mutex<Option<oneshot::Sender<CallResult>>>);

impl ReplySlot {
    /// Whether somebody still waits for the reply.
    pub(super) fn is_wanted(&self) -> bool {
        lock(&self.0).as_ref().is_some_and(|sender| !sender.is_closed())
    }
}

/// The calls of all callers.
#[derive(Debug, Default)]
pub(super) struct CallQueue {
    lists: Mutex<CallLists>,
    submitted: Notify,
    unanswered: AtomicUsize,
    tick: AtomicU64,
}

#[derive(Debug, Default)]
struct CallLists {
    submitted: Vec<PendingCall>,
    /// All calls in the order of their submission, with the tick of it.
    expiring: VecDeque<(u64, Arc<ReplySlot>)>,
}

impl CallQueue {
    /// Submits a call, or fails at once if too many wait.
    pub(super) fn submit(
        &self,
        body: CallBody,
        slot: u16,
        submitted: ClockReading,
    ) -> Result<oneshot::Receiver<CallResult>, LinkError> {
        if self.unanswered.fetch_add(1, Ordering::Relaxed) >= MAX_UNANSWERED {
            self.unanswered.fetch_sub(1, Ordering::Relaxed);
            return Err(LinkError::QueueFull);
        }
        let (sender, receiver) = oneshot::channel();
        let reply = Arc::new(ReplySlot(Mutex::new(Some(sender))));
        let call = PendingCall {
            body,
            slot,
            reply: Arc::clone(&reply),
            submitted,
            is_alone: false,
            is_asking: false,
            refusals: 0,
        };
        let mut lists = lock(&self.lists);
        lists.expiring.push_back((self.tick.load(Ordering::Relaxed), reply));
        lists.submitted.push(call);
        let is_first = lists.submitted.len() == 1;
        drop(lists);
        if is_first {
            self.submitted.notify_one();
        }
        Ok(receiver)
    }

    /// Waits until there are submitted calls.
    pub(super) async fn wait(&self) {
        self.submitted.notified().await;
    }

    /// Takes the submitted calls.
    pub(super) fn take(&self) -> Vec<PendingCall> {
        std::mem::take(&mut lock(&self.lists).submitted)
    }

    /// Answers a call, unless it already has a result. Returns whether it had none.
    pub(super) fn answer(&self, reply: &ReplySlot, result: CallResult) -> bool {
        let Some(sender) = lock(&reply.0).take() else { return false };
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
        // The caller may be gone.
        let _ = sender.send(result);
        true
    }

    /// The number of unanswered calls.
    pub(super) fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// The number of ticks so far.
    pub(super) fn now(&self) -> u64 {
        self.tick.load(Ordering::Relaxed)
    }

    /// Advances the counter and answers the calls whose time is over. Returns their number.
    pub(super) fn tick(&self) -> u64 {
        let now = self.tick.fetch_add(1, Ordering::Relaxed) + 1;
        self.expire(|submitted| submitted + u64::from(TICKS_PER_TIMEOUT) <= now)
    }

    /// Answers all calls. Returns their number.
    pub(super) fn expire_all(&self) -> u64 {
        self.expire(|_| true)
    }

    fn expire(&self, is_over: impl Fn(u64) -> bool) -> u64 {
        let mut expired = 0;
        loop {
            let mut lists = lock(&self.lists);
            let Some((submitted, reply)) = lists.expiring.pop_front() else { return expired };
            if !is_over(submitted) && lock(&reply.0).is_some() {
                lists.expiring.push_front((submitted, reply));
                return expired;
            }
            drop(lists);
            expired += u64::from(self.answer(&reply, Err(LinkError::Timeout.into())));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tidegate_store::{Clock, ManualClock};

    use super::*;

    fn submit(queue: &CallQueue) -> Result<oneshot::Receiver<CallResult>, LinkError> {
        queue.submit(CallBody::Command(redis::cmd("PING")), 0, ManualClock::default().read())
    }

    #[test]
    fn call_expires_after_eight_ticks_and_a_late_reply_is_discarded() {
        let queue = CallQueue::default();
        let mut first = submit(&queue).unwrap();
        queue.tick();
        let mut second = submit(&queue).unwrap();
        let calls = queue.take();
        let expired: u64 = (2..=TICKS_PER_TIMEOUT).map(|_| queue.tick()).sum();
        assert_eq!(expired, 1);
        assert!(matches!(first.try_recv(), Ok(Err(StoreError::Unavailable(_)))));
        assert!(second.try_recv().is_err(), "one tick is left");
        assert!(!queue.answer(&calls[0].reply, Ok(CallReply::Command(Value::Okay))));
        assert!(queue.answer(&calls[1].reply, Ok(CallReply::Command(Value::Okay))));
        assert!(matches!(second.try_recv(), Ok(Ok(CallReply::Command(Value::Okay)))));
        assert_eq!((queue.tick(), queue.unanswered()), (0, 0));
    }

    #[test]
    fn queue_full_of_unanswered_calls_rejects_the_next() {
        let queue = CallQueue::default();
        let receivers: Vec<_> = (0..MAX_UNANSWERED).map(|_| submit(&queue).unwrap()).collect();
        assert!(matches!(submit(&queue), Err(LinkError::QueueFull)));
        assert_eq!(queue.expire_all(), receivers.len() as u64);
        assert!(submit(&queue).is_ok());
    }

    #[test]
    fn call_of_a_caller_that_gave_up_is_not_wanted() {
        let queue = CallQueue::default();
        drop(submit(&queue).unwrap());
        assert!(!queue.take()[0].reply.is_wanted());
    }
}
