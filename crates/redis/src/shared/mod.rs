//! Records that all nodes share: bans, overrides and penalties.
//!
//! Redis keeps a map in which the version of a record that was changed last counts. Every node keeps a copy of all records.
//! It pushes its own changes and pulls those of the others: when the channel `<prefix>records` announces some, and once a
//! second in case an announcement was lost. A node that finds another epoch knows that Redis lost its contents; it pulls
//! everything and pushes all records that Redis lacks. So Redis may be emptied, and a node may be away: each record
//! survives as long as one node knows it. A removed record stays as a mark, so that a node that was away learns of it.
//!
//! Records are encrypted, and their names are keyed hashes: a copy of the database reveals no client.

mod copy;
mod script;
mod seal;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_store::{RecordExchange, SharedEvent, SharedRecord};
use tokio::sync::mpsc;

use crate::link::{ChannelEvent, Link};
use crate::nodes::NodeId;
use copy::RecordCopy;
use script::{PAGE, SharedScript};
use seal::Sealer;

/// How often a node pulls without an announcement, and pushes again after an error.
const INTERVAL: Duration = Duration::from_secs(1);
/// After so many intervals all records are pushed again, in case Redis lost some without going back visibly.
const PUSH_ALL_INTERVALS: u32 = 600;
/// Requests that wait for the task; further ones are dropped. A dropped record is published again when it changes.
const QUEUE: usize = 16_384;
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
    requests: mpsc::Sender<ShareRequest>,
}

enum ShareRequest {
    Publish(Vec<SharedRecord>),
    Broadcast(Vec<u8>),
}

impl SharedRecords {
    /// Starts the exchange on the thread of `link`. The receiver gets what other nodes did.
    pub(crate) fn start(link: &Arc<Link>) -> (Self, mpsc::Receiver<SharedEvent>) {
        let (requests, waiting) = mpsc::channel(QUEUE);
        let (events, received) = mpsc::channel(EVENTS);
        if let Some(sealer) = Sealer::new(&link.config().secret) {
            let channel = format!("{}records", link.config().prefix);
            let exchange = Exchange {
                script: SharedScript::new(link),
                link: Arc::downgrade(link),
                node: NodeId::random(),
                copy: RecordCopy::default(),
                channel: channel.clone(),
                sealer,
                events,
            };
            link.spawn(exchange.run(waiting, link.subscribe(&channel)));
        } else {
            tracing::error!(
                event = "records_not_shared",
                "bans and overrides are not shared: the cryptographic library failed"
            );
        }
        (Self { requests }, received)
    }
}

impl RecordExchange for SharedRecords {
    fn publish(&self, records: Vec<SharedRecord>) {
        let _ = self.requests.try_send(ShareRequest::Publish(records));
    }

    fn broadcast(&self, message: Vec<u8>) {
        let _ = self.requests.try_send(ShareRequest::Broadcast(message));
    }
}

impl fmt::Debug for SharedRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRecords").finish_non_exhaustive()
    }
}

/// The task that exchanges records.
struct Exchange {
    script: SharedScript,
    /// Weak: the link owns the thread that runs this task.
    link: std::sync::Weak<Link>,
    node: NodeId,
    copy: RecordCopy,
    channel: String,
    sealer: Sealer,
    events: mpsc::Sender<SharedEvent>,
}

impl Exchange {
    /// Runs until the handle or the receiver of events is dropped.
    async fn run(
        mut self,
        mut requests: mpsc::Receiver<ShareRequest>,
        mut channel: mpsc::Receiver<ChannelEvent>,
    ) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut is_subscribed = true;
        let mut intervals = 0;
        while !self.events.is_closed() {
            tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => self.handle(request, &mut requests).await,
                    None => return,
                },
                event = channel.recv(), if is_subscribed => match event {
                    Some(event) => self.receive(event).await,
                    None => is_subscribed = false,
                },
                _ = ticks.tick() => {
                    intervals = (intervals + 1) % PUSH_ALL_INTERVALS;
                    if intervals == 0 {
                        self.copy.push_all();
                    }
                    self.exchange().await;
                }
            }
        }
    }

    /// Handles `request` and all others that wait, in one push.
    async fn handle(&mut self, request: ShareRequest, requests: &mut mpsc::Receiver<ShareRequest>) {
        let mut next = Some(request);
        let mut has_changes = false;
        while let Some(request) = next {
            match request {
                ShareRequest::Publish(records) => {
                    for record in records {
                        let field = self.sealer.field(&record.id);
                        has_changes |= self.copy.change(field, record);
                    }
                }
                ShareRequest::Broadcast(message) => self.broadcast(&message).await,
            }
            next = requests.try_recv().ok();
        }
        if has_changes {
            self.exchange().await;
        }
    }

    async fn receive(&mut self, event: ChannelEvent) {
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
    async fn exchange(&mut self) {
        let Some(link) = self.link.upgrade() else { return };
        if link.is_available()
            && let Err(error) = self.try_exchange(&link).await
        {
            tracing::debug!(event = "records_not_exchanged", "{error}");
        }
    }

    async fn try_exchange(&mut self, link: &Link) -> Result<(), tidegate_store::StoreError> {
        loop {
            let page = self.script.pull(link, self.copy.cursor()).await?;
            if self.copy.enter_epoch(&page.epoch) {
                // Before the records, so that the receiver applies its own ones to a new store first.
                self.send(SharedEvent::Attached).await;
            }
            let mut changed = Vec::new();
            for (field, at, sealed) in page.records {
                match self.sealer.open_record(&field, at, &sealed) {
                    Ok(record) => changed.extend(self.copy.accept(field, record)),
                    Err(error) => tracing::warn!(event = "record_unreadable", "{error}"),
                }
            }
            self.copy.advance(page.reached);
            if !changed.is_empty() {
                self.send(SharedEvent::Records(changed)).await;
            }
            if page.is_last {
                break;
            }
        }
        let mut is_pushed = false;
        while let Some(batch) = self.copy.next_batch(PAGE) {
            let sealed = batch.iter().filter_map(|field| {
                let record = self.copy.get(field)?;
                Some((*field, record, self.sealer.seal_record(record)?))
            });
            let accepted = self.script.push(link, sealed).await?;
            is_pushed |= accepted > 0;
            self.copy.mark_pushed(&batch);
        }
        if is_pushed {
            let announcement = [&[CHANGED], self.node.0.to_be_bytes().as_slice()].concat();
            self.script.publish(link, &self.channel, &announcement).await?;
        }
        Ok(())
    }

    async fn broadcast(&self, message: &[u8]) {
        let Some(link) = self.link.upgrade().filter(|link| link.is_available()) else { return };
        let plain = [self.node.0.to_be_bytes().as_slice(), message].concat();
        let Some(sealed) = self.sealer.seal(TEXT_CONTEXT, &plain) else { return };
        let text = [&[TEXT], sealed.as_slice()].concat();
        // A message is sent at most once, so an error is not repaired.
        let _ = self.script.publish(&link, &self.channel, &text).await;
    }

    async fn receive_text(&self, sealed: &[u8]) {
        let Ok(plain) = self.sealer.open(TEXT_CONTEXT, sealed) else { return };
        if let Some((node, message)) = plain.split_first_chunk()
            && u64::from_be_bytes(*node) != self.node.0
        {
            self.send(SharedEvent::Message(message.to_vec())).await;
        }
    }

    async fn send(&self, event: SharedEvent) {
        // If the receiver is gone, the task ends.
        let _ = self.events.send(event).await;
    }
}
