//! Records that all nodes share: bans, overrides and penalties.
//!
//! Redis keeps a map in which the version of a record that was changed last counts. Every node keeps a copy of all records.
//! It pushes its own changes and pulls those of the others: when the channel `<prefix>records` announces some, and once a
//! second in case an announcement was lost.
//!
//! Redis may lose its contents, the latest of them, or one of its keys. Each exchange of a node therefore leaves a mark of this node, in the
//! same step. A node that does not find its mark knows that Redis lost what it had pushed or pulled: it pulls everything and
//! pushes all records that Redis lacks, as a new node does. So each record survives as long as one node knows it, and all
//! nodes agree again by themselves. A removed record stays as a tombstone, so that a node that was away learns of it.
//!
//! Records expire by the clock of Redis. The exchange converts from and to that of the node.
//!
//! Records are encrypted, and their names are keyed hashes: a copy of the database reveals no client.

mod copy;
mod script;
mod seal;
#[cfg(test)]
mod simulation;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tidegate_store::{RecordExchange, SharedEvent, SharedRecord, StoreError};
use tokio::sync::mpsc;

use crate::link::{ChannelEvent, Link};
use crate::nodes::NodeId;
use crate::server_time::ServerTime;
use copy::RecordCopy;
use script::{PAGE, SharedScript};
use seal::Sealer;

/// How often a node pulls without an announcement, and pushes again after an error.
const INTERVAL: Duration = Duration::from_secs(1);
/// After this many intervals all records are pushed again, in case Redis lost some without going back visibly.
const PUSH_ALL_INTERVALS: u32 = 600;
/// Broadcasts that wait; further ones are dropped. Records never wait here, so a flood of broadcasts does not delay them.
const BROADCASTS: usize = 16_384;
/// Broadcasts that are sent together.
const BROADCAST_BATCH: usize = 64;
/// Events that wait for their receiver.
const EVENTS: usize = 256;
/// A message on the channel: records were changed.
const CHANGED: u8 = b'c';
/// A message on the channel: a sealed text.
const TEXT: u8 = b't';
/// What a sealed text is bound to.
const TEXT_CONTEXT: &[u8] = b"message";

/// Exchanges records with the other nodes through Redis.
pub struct SharedRecords {
    /// `None` if the cryptographic library failed.
    sealer: Option<Arc<Sealer>>,
    copy: Arc<Mutex<RecordCopy>>,
    time: Arc<ServerTime>,
    /// Wakes the task that exchanges records; one waiting message is enough.
    changes: mpsc::Sender<()>,
    broadcasts: mpsc::Sender<Vec<u8>>,
}

impl SharedRecords {
    /// Starts the exchange on the thread of `link`. The receiver gets what other nodes did.
    pub(crate) fn start(link: &Arc<Link>) -> (Self, mpsc::Receiver<SharedEvent>) {
        let (changes, wakeups) = mpsc::channel(1);
        let (broadcasts, messages) = mpsc::channel(BROADCASTS);
        let (events, received) = mpsc::channel(EVENTS);
        let copy = Arc::new(Mutex::new(RecordCopy::default()));
        let sealer = Sealer::new(&link.config().secret).map(Arc::new);
        if let Some(sealer) = &sealer {
            let channel: Arc<str> = format!("{}records", link.config().prefix).into();
            let node = NodeId::random();
            let script = Arc::new(SharedScript::new(link, node));
            let broadcaster = Broadcaster {
                script: Arc::clone(&script),
                link: Arc::downgrade(link),
                node,
                channel: Arc::clone(&channel),
                sealer: Arc::clone(sealer),
            };
            link.spawn(broadcaster.run(messages));
            let subscription = link.subscribe(&channel);
            let exchange = ExchangeTask {
                script,
                link: Arc::downgrade(link),
                node,
                copy: Arc::clone(&copy),
                channel,
                sealer: Arc::clone(sealer),
                events,
            };
            link.spawn(exchange.run(wakeups, subscription));
        } else {
            tracing::error!(
                event = "records_not_shared",
                "bans and overrides are not shared: the cryptographic library failed"
            );
        }
        let time = Arc::clone(link.server_time());
        (Self { sealer, copy, time, changes, broadcasts }, received)
    }
}

impl RecordExchange for SharedRecords {
    fn publish(&self, records: Vec<SharedRecord>) {
        let Some(sealer) = &self.sealer else { return };
        let mut has_changes = false;
        for record in records {
            let field = sealer.field(&record.id);
            has_changes |= lock(&self.copy).publish(field, record, &self.time);
        }
        if has_changes {
            // If the queue is full, the task will run anyway.
            let _ = self.changes.try_send(());
        }
    }

    fn broadcast(&self, message: Vec<u8>) {
        let _ = self.broadcasts.try_send(message);
    }
}

/// The copy is never left half changed, so a panic elsewhere does not invalidate it.
fn lock(copy: &Mutex<RecordCopy>) -> MutexGuard<'_, RecordCopy> {
    copy.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for SharedRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRecords").finish_non_exhaustive()
    }
}

/// The task that exchanges records.
struct ExchangeTask {
    script: Arc<SharedScript>,
    /// Weak: the link owns the thread that runs this task.
    link: Weak<Link>,
    node: NodeId,
    copy: Arc<Mutex<RecordCopy>>,
    channel: Arc<str>,
    sealer: Arc<Sealer>,
    events: mpsc::Sender<SharedEvent>,
}

impl ExchangeTask {
    /// Runs until the handle or the receiver of events is dropped.
    async fn run(self, mut changes: mpsc::Receiver<()>, mut channel: mpsc::Receiver<ChannelEvent>) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut is_subscribed = true;
        let mut intervals = 0;
        while !self.events.is_closed() {
            tokio::select! {
                change = changes.recv() => match change {
                    Some(()) => self.exchange().await,
                    None => return,
                },
                event = channel.recv(), if is_subscribed => match event {
                    Some(event) => self.receive(event).await,
                    None => is_subscribed = false,
                },
                _ = ticks.tick() => {
                    intervals = (intervals + 1) % PUSH_ALL_INTERVALS;
                    self.remove_expired(intervals == 0);
                    self.exchange().await;
                }
            }
        }
    }

    /// Removes expired records, and marks all others to be pushed if `pushes_all`.
    fn remove_expired(&self, pushes_all: bool) {
        let Some(link) = self.link.upgrade() else { return };
        let mut copy = lock(&self.copy);
        copy.remove_expired(link.clock().now(), link.server_time());
        if pushes_all {
            copy.push_all();
        }
    }

    async fn receive(&self, event: ChannelEvent) {
        match event {
            // Changes may have been missed.
            ChannelEvent::Subscribed => self.exchange().await,
            ChannelEvent::Message(message) => match message.split_first() {
                Some((&CHANGED, node)) if node != self.node.0.to_be_bytes() => self.exchange().await,
                Some((&TEXT, sealed)) => self.receive_text(sealed).await,
                _ => {}
            },
            ChannelEvent::Lost => {}
        }
    }

    /// Pulls what others changed and pushes what this node changed. After an error, the next tick tries again.
    async fn exchange(&self) {
        let Some(link) = self.link.upgrade() else { return };
        if link.is_available()
            && let Err(error) = self.try_exchange(&link).await
        {
            tracing::debug!(event = "records_not_exchanged", "{error}");
        }
    }

    async fn try_exchange(&self, link: &Link) -> Result<(), StoreError> {
        loop {
            self.pull_all(link).await?;
            if self.push_all(link).await? {
                return Ok(());
            }
        }
    }

    async fn pull_all(&self, link: &Link) -> Result<(), StoreError> {
        loop {
            let (known, sent) = (lock(&self.copy).cursor(), link.clock().now());
            let Some(page) = self.script.pull(link, known).await? else {
                lock(&self.copy).forget_cursor();
                continue;
            };
            if !link.server_time().is_known() {
                link.server_time().observe(page.now, sent);
            }
            lock(&self.copy).use_server_time(link.server_time());
            if known.mark == 0 {
                // Before the records, so that the receiver applies its own ones to a new store first.
                self.send(SharedEvent::Attached).await;
                let removed = lock(&self.copy).removed();
                self.send_records(removed, link).await;
            }
            let mut changed = Vec::new();
            for (field, at, sealed) in page.records {
                match self.sealer.open_record(&field, at, &sealed) {
                    Ok(record) => changed.extend(lock(&self.copy).accept(field, record, page.now)),
                    Err(error) => tracing::warn!(event = "record_unreadable", "{error}"),
                }
            }
            self.send_records(changed, link).await;
            lock(&self.copy).advance(page.reached);
            if page.is_last {
                return Ok(());
            }
        }
    }

    /// Pushes what Redis may lack. Returns false if Redis has lost what this node knew.
    async fn push_all(&self, link: &Link) -> Result<bool, StoreError> {
        let mut is_pushed = false;
        loop {
            let (known, batch) = {
                let copy = lock(&self.copy);
                (copy.cursor(), copy.next_batch(PAGE))
            };
            let Some(batch) = batch else { break };
            let sealed = batch
                .iter()
                .filter_map(|(field, record)| Some((*field, record, self.sealer.seal_record(record)?)));
            let Some(reply) = self.script.push(link, known, sealed).await? else {
                lock(&self.copy).forget_cursor();
                return Ok(false);
            };
            is_pushed |= reply.accepted > 0;
            let mut copy = lock(&self.copy);
            copy.set_mark(reply.mark);
            copy.mark_pushed(&batch);
        }
        if is_pushed {
            let announcement = [&[CHANGED], self.node.0.to_be_bytes().as_slice()].concat();
            self.script.publish(link, &self.channel, &announcement).await?;
        }
        Ok(true)
    }

    async fn receive_text(&self, sealed: &[u8]) {
        let Ok(plain) = self.sealer.open(TEXT_CONTEXT, sealed) else { return };
        if let Some((node, message)) = plain.split_first_chunk()
            && u64::from_be_bytes(*node) != self.node.0
        {
            self.send(SharedEvent::Message(message.to_vec())).await;
        }
    }

    /// Sends records with the node's time.
    async fn send_records(&self, mut records: Vec<SharedRecord>, link: &Link) {
        if records.is_empty() {
            return;
        }
        for record in &mut records {
            record.expires = record.expires.map(|at| link.server_time().at_node(at));
        }
        self.send(SharedEvent::Records(records)).await;
    }

    async fn send(&self, event: SharedEvent) {
        // If the receiver is gone, the task ends.
        let _ = self.events.send(event).await;
    }
}

/// The task that sends broadcasts.
struct Broadcaster {
    script: Arc<SharedScript>,
    /// Weak: the link owns the thread that runs this task.
    link: Weak<Link>,
    node: NodeId,
    channel: Arc<str>,
    sealer: Arc<Sealer>,
}

impl Broadcaster {
    /// Runs until the handle is dropped.
    async fn run(self, mut messages: mpsc::Receiver<Vec<u8>>) {
        let mut batch = Vec::new();
        while messages.recv_many(&mut batch, BROADCAST_BATCH).await > 0 {
            join_all(batch.iter().map(|message| self.broadcast(message))).await;
            batch.clear();
        }
    }

    async fn broadcast(&self, message: &[u8]) {
        let Some(link) = self.link.upgrade().filter(|link| link.is_available()) else { return };
        let plain = [self.node.0.to_be_bytes().as_slice(), message].concat();
        let Some(sealed) = self.sealer.seal(TEXT_CONTEXT, &plain) else { return };
        let text = [&[TEXT], sealed.as_slice()].concat();
        // A message is sent at most once, so an error is not repaired.
        let _ = self.script.publish(&link, &self.channel, &text).await;
    }
}
