//! The tasks that run beside decisions. They end when the store is dropped: between two steps they hold no handle to it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate_store::StoreError;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use super::StoreState;
use crate::invalidation::{self, CounterChange, Invalidation, InvalidationMessage, InvalidationPublisher};
use crate::link::ChannelEvent;
use crate::membership::HEARTBEAT;
use crate::permits::RENEWAL_INTERVAL;

/// How often a node in fallback asks whether Redis is back.
const RECOVERY_INTERVAL: Duration = Duration::from_millis(100);

/// How long a node that misses changes of other nodes repeats a rejection by a lease.
const UNINFORMED_LIFE: Duration = Duration::from_secs(1);

/// Starts all tasks.
pub(super) fn start(state: &Arc<StoreState>, publisher: InvalidationPublisher) {
    let link = &state.link;
    let events = link.subscribe(&invalidation::channel(&link.config().prefix));
    link.spawn(send_heartbeats(Arc::downgrade(state)));
    link.spawn(leave_fallback(Arc::downgrade(state)));
    link.spawn(renew_permits(Arc::downgrade(state)));
    link.spawn(follow_changes(Arc::downgrade(state), events));
    let weak = Arc::downgrade(state);
    link.spawn(publisher.run(move || weak.upgrade().map(|state| Arc::clone(&state.link))));
}

async fn send_heartbeats(state: Weak<StoreState>) {
    let mut ticks = ticks(HEARTBEAT);
    loop {
        ticks.tick().await;
        let Some(state) = state.upgrade() else { return };
        state.send_heartbeat().await;
    }
}

async fn leave_fallback(state: Weak<StoreState>) {
    let mut ticks = ticks(RECOVERY_INTERVAL);
    loop {
        ticks.tick().await;
        let Some(state) = state.upgrade() else { return };
        state.follow_link();
        state.permits.release_again();
        state.try_leave_fallback().await;
    }
}

async fn renew_permits(state: Weak<StoreState>) {
    let mut ticks = ticks(RENEWAL_INTERVAL);
    loop {
        ticks.tick().await;
        let Some(state) = state.upgrade() else { return };
        state.permits.renew();
    }
}

async fn follow_changes(state: Weak<StoreState>, mut events: mpsc::Receiver<ChannelEvent>) {
    let mut is_subscribed = false;
    loop {
        let event = timeout(UNINFORMED_LIFE, events.recv()).await;
        let Some(state) = state.upgrade() else { return };
        match event {
            Ok(Some(ChannelEvent::Subscribed)) => {
                is_subscribed = true;
                // Changes may have been missed since the subscription was lost.
                state.lease.invalidate_rejections();
                state.rejections.resume();
            }
            Ok(Some(ChannelEvent::Message(bytes))) => StoreState::apply_changes(state, &bytes).await,
            Ok(Some(ChannelEvent::Lost)) => {
                is_subscribed = false;
                state.lease.invalidate_rejections();
                state.rejections.suspend();
            }
            Ok(None) => return state.rejections.suspend(),
            Err(_) if !is_subscribed => state.lease.invalidate_rejections(),
            Err(_) => {}
        }
    }
}

fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Drop for StoreState {
    /// Tells the other nodes. The link lives until this is sent.
    fn drop(&mut self) {
        self.membership.leave_in_background(&self.link);
    }
}

impl StoreState {
    /// A node without requests is in fallback too if Redis fails: its status and its metrics say so.
    fn follow_link(&self) {
        if !self.link.is_available() {
            self.enter_fallback();
        }
    }

    async fn send_heartbeat(&self) {
        let heartbeats = [
            self.membership.beat(&self.link).await,
            self.check_writes().await,
            self.observe_server_time().await,
        ];
        if let Some(error) = heartbeats.into_iter().find_map(Result::err) {
            tracing::debug!("a heartbeat failed: {error}");
        } else {
            self.restore_some_overrides().await;
        }
    }

    /// After a loss, leases that Redis may have forgotten are not spent, and permits in use are added again. Cached rejections stay: they are what Redis said
    /// before it forgot.
    async fn check_writes(&self) -> Result<(), StoreError> {
        if self.lost_writes.beat(&self.link).await? {
            self.lease.invalidate_all();
            self.permits.renew();
        }
        Ok(())
    }

    /// Drops what is known about counters that other nodes have changed.
    async fn apply_changes(self: Arc<Self>, message: &[u8]) {
        match invalidation::decode(self.node, message) {
            None => {}
            Some(InvalidationMessage::Everything) => {
                self.rejections.clear();
                self.lease.invalidate_rejections();
            }
            Some(InvalidationMessage::Counters(mut changes)) => {
                for Invalidation { change, name } in &changes {
                    self.rejections.forget(name);
                    match change {
                        CounterChange::Refunded => {}
                        CounterChange::LeaseRefunded => self.lease.end_rejection(name),
                        CounterChange::LeaseUnreported => self.lease.report_spent(name),
                        CounterChange::Reset | CounterChange::Overridden => self.lease.invalidate(name),
                    }
                }
                changes.retain(|Invalidation { change, .. }| {
                    matches!(change, CounterChange::Reset | CounterChange::Overridden)
                });
                if !changes.is_empty() {
                    // The search takes time for each counter of the node, which calls to Redis must not wait for.
                    let search = tokio::task::spawn_blocking(move || self.search_and_drop(&changes));
                    if let Err(error) = search.await {
                        tracing::error!("counters that another node has changed were not dropped: {error}");
                    }
                }
            }
        }
    }

    /// Drops what is found only by a search of all counters.
    fn search_and_drop(&self, changes: &[Invalidation]) {
        for Invalidation { change, name } in changes {
            self.sync.invalidate(name);
            // An override applies to what this node has counted; it does not start again.
            if *change == CounterChange::Reset {
                self.fallback.invalidate(name);
            }
        }
    }
}
