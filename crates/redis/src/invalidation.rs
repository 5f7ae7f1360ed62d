//! Tells the other nodes which counters have changed, so that they drop what they know about them.
//!
//! A node publishes the names of counters that were reset, refunded or overridden, after the change succeeded. Changes that
//! wait at the same moment travel in one message. A message is repeated until it was sent (dropping knowledge twice does no
//! harm), the queue is bounded, and what does not fit becomes the message "everything".
//!
//! A message is the version, the sender, and for each change its kind, the length of the name (two bytes) and the name.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::link::Link;
use crate::nodes::NodeId;

/// The format of messages; others are treated as "everything".
const VERSION: u8 = 1;
/// Changes that may wait.
const QUEUE: usize = 4_096;
/// Changes in a message: about 16 kB.
const MAX_BATCH: usize = 512;
/// The pause before a message that could not be sent is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How a counter has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CounterChange {
    /// Units were given back: it may admit again.
    Refunded,
    /// The same for its leases.
    LeaseRefunded,
    /// Units are to be given back that a node may have spent without a report: it reports them.
    LeaseUnreported,
    /// It starts again.
    Reset,
    /// Another limit applies.
    Overridden,
}

/// A change and the name of its counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invalidation {
    pub(crate) change: CounterChange,
    pub(crate) name: Box<[u8]>,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvalidationMessage {
    /// These counters have changed.
    Counters(Vec<Invalidation>),
    /// Any counter may have changed.
    Everything,
}

/// The channel of a store with this prefix.
pub(crate) fn channel(prefix: &str) -> String {
    format!("{prefix}invalidate")
}

/// Queues changes for the other nodes.
#[derive(Clone, Debug)]
pub(crate) struct InvalidationQueue {
    sender: mpsc::Sender<Invalidation>,
    /// Changes were dropped.
    has_overflowed: Arc<AtomicBool>,
}

/// Publishes the queued changes.
#[derive(Debug)]
pub(crate) struct InvalidationPublisher {
    node: NodeId,
    receiver: mpsc::Receiver<Invalidation>,
    has_overflowed: Arc<AtomicBool>,
}

impl InvalidationQueue {
    /// A queue of the changes made by `node`.
    pub(crate) fn new(node: NodeId) -> (Self, InvalidationPublisher) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let has_overflowed = Arc::new(AtomicBool::new(false));
        let publisher = InvalidationPublisher { node, receiver, has_overflowed: Arc::clone(&has_overflowed) };
        (Self { sender, has_overflowed }, publisher)
    }

    /// Adds a change; never waits.
    pub(crate) fn push(&self, change: CounterChange, name: &[u8]) {
        if self.sender.try_send(Invalidation { change, name: name.into() }).is_err() {
            self.has_overflowed.store(true, Ordering::Release);
        }
    }
}

impl InvalidationPublisher {
    /// The next message; `None` when the store is gone.
    async fn next(&mut self) -> Option<Vec<u8>> {
        let mut changes = Vec::new();
        if self.receiver.recv_many(&mut changes, MAX_BATCH).await == 0 {
            return None;
        }
        if self.has_overflowed.swap(false, Ordering::AcqRel) {
            return Some(encode(self.node, &InvalidationMessage::Everything));
        }
        Some(encode(self.node, &InvalidationMessage::Counters(changes)))
    }

    /// Publishes until the store is gone. `link` returns `None` then.
    pub(crate) async fn run(mut self, link: impl Fn() -> Option<Arc<Link>>) {
        while let Some(message) = self.next().await {
            loop {
                let Some(link) = link() else { return };
                let mut command = redis::cmd("PUBLISH");
                command.arg(channel(&link.config().prefix)).arg(&message);
                let slot = link.names().internal("nodes", "").slot();
                let result = link.command(slot, &command).await;
                drop(link);
                if result.is_ok() {
                    break;
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

fn encode(node: NodeId, message: &InvalidationMessage) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&node.0.to_be_bytes());
    match message {
        InvalidationMessage::Everything => bytes.push(b'*'),
        InvalidationMessage::Counters(changes) => {
            for Invalidation { change, name } in changes {
                let Ok(length) = u16::try_from(name.len()) else { continue };
                bytes.push(match change {
                    CounterChange::Refunded => b'f',
                    CounterChange::LeaseRefunded => b'l',
                    CounterChange::LeaseUnreported => b'u',
                    CounterChange::Reset => b'r',
                    CounterChange::Overridden => b'o',
                });
                bytes.extend_from_slice(&length.to_be_bytes());
                bytes.extend_from_slice(name);
            }
        }
    }
    bytes
}

/// The message in `bytes`; `None` if `node` itself sent it. What cannot be read means "everything".
pub(crate) fn decode(node: NodeId, bytes: &[u8]) -> Option<InvalidationMessage> {
    match bytes.split_first_chunk::<9>() {
        Some(([VERSION, sender @ ..], _)) if u64::from_be_bytes(*sender) == node.0 => None,
        Some(([VERSION, ..], changes)) => Some(
            decode_changes(changes).map_or(InvalidationMessage::Everything, InvalidationMessage::Counters),
        ),
        _ => Some(InvalidationMessage::Everything),
    }
}

fn decode_changes(mut bytes: &[u8]) -> Option<Vec<Invalidation>> {
    let mut changes = Vec::new();
    while let Some((kind, rest)) = bytes.split_first() {
        let change = match kind {
            b'f' => CounterChange::Refunded,
            b'l' => CounterChange::LeaseRefunded,
            b'u' => CounterChange::LeaseUnreported,
            b'r' => CounterChange::Reset,
            b'o' => CounterChange::Overridden,
            _ => return None,
        };
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (name, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        changes.push(Invalidation { change, name: name.into() });
        bytes = rest;
    }
    Some(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDER: NodeId = NodeId(7);
    const RECEIVER: NodeId = NodeId(8);

    fn changes() -> Vec<Invalidation> {
        [
            (CounterChange::Refunded, &b"tg:{a}b"[..]),
            (CounterChange::LeaseRefunded, b"tg:{a}b"),
            (CounterChange::Reset, b""),
            (CounterChange::Overridden, b"tg:{c}*"),
        ]
        .map(|(change, name)| Invalidation { change, name: name.into() })
        .into()
    }

    #[test]
    fn message_is_decoded_by_other_nodes_and_ignored_by_its_sender() {
        for message in [InvalidationMessage::Counters(changes()), InvalidationMessage::Everything] {
            let bytes = encode(SENDER, &message);
            assert_eq!(decode(RECEIVER, &bytes), Some(message));
            assert_eq!(decode(SENDER, &bytes), None);
        }
    }

    #[test]
    fn message_that_cannot_be_read_means_everything() {
        let whole = encode(SENDER, &InvalidationMessage::Counters(changes()));
        let newer = [&[VERSION + 1], &whole[1..]].concat();
        for bytes in [&b""[..], b"x", &newer, &whole[..whole.len() - 1]] {
            assert_eq!(decode(RECEIVER, bytes), Some(InvalidationMessage::Everything), "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn queued_changes_travel_together_and_overflow_becomes_everything() {
        let (queue, mut publisher) = InvalidationQueue::new(SENDER);
        for Invalidation { change, name } in changes() {
            queue.push(change, &name);
        }
        let message = publisher.next().await.unwrap();
        assert_eq!(decode(RECEIVER, &message), Some(InvalidationMessage::Counters(changes())));
        for _ in 0..=QUEUE {
            queue.push(CounterChange::Refunded, b"name");
        }
        let message = publisher.next().await.unwrap();
        assert_eq!(decode(RECEIVER, &message), Some(InvalidationMessage::Everything));
        drop(queue);
        while publisher.next().await.is_some() {}
    }
}
