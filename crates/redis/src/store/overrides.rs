//! Overrides, wherever the counters of their rules are.
//!
//! An override is kept where its counter is: in Redis for `central` and `lease`, on each node for `sync` and `static`. Every node
//! also knows all of them, so that each one
//! - holds after the coordination of its rule has changed,
//! - comes back if Redis has lost it with its counter, because that was evicted, or because a server of a cluster has gone back.

use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use tidegate_core::{Coordination, CounterKey, Timestamp};
use tidegate_store::{Override, Store, StoreError};
use tokio::sync::Mutex;

use super::StoreState;
use crate::invalidation::CounterChange;

/// Overrides that are set again together.
const PAGE: usize = 64;

/// Orders the changes of overrides.
#[derive(Debug, Default)]
pub(super) struct OverrideTurn {
    /// Held while an override is changed, so that none is set again after it was ended.
    turn: Mutex<()>,
    /// Where the next heartbeat continues.
    next: AtomicUsize,
}

/// Sets all overrides where the counters of their rules are now.
pub(super) async fn move_all(state: Weak<StoreState>) {
    for start in (0..).step_by(PAGE) {
        let Some(state) = state.upgrade().filter(|state| start < state.fallback.overrides().len()) else {
            return;
        };
        state.restore_page(start, &Coordination::ALL).await;
    }
}

impl StoreState {
    /// Sets or ends the override of `key`, and tells the other nodes. While Redis fails, an override can be set, because every
    /// node sets its overrides again when Redis is back, but not ended.
    pub(super) async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let shared = self.at_server(replacement).await;
        let turn = self.overrides.turn.lock().await;
        let current = self.settings.of(key.rule).coordination;
        match self.override_in(current, key, shared, now).await {
            Err(StoreError::Unavailable(error)) if shared.is_some() => {
                tracing::debug!("an override is set when Redis is back: {error}");
            }
            result => result?,
        }
        self.fallback.override_limit(key, shared, now).await?;
        if replacement.is_none() {
            // It may still be where it was before the coordination changed, and would hold again if that changes back.
            for other in Coordination::ALL.into_iter().filter(|other| *other != current) {
                if let Err(error) = self.override_in(other, key, None, now).await {
                    tracing::debug!("an override under an earlier coordination was not ended: {error}");
                }
            }
        }
        drop(turn);
        self.announce(CounterChange::Overridden, key);
        Ok(())
    }

    /// Sets the override of a counter with this coordination; its end is in the server's time.
    async fn override_in(
        &self,
        coordination: Coordination,
        key: CounterKey<'_>,
        shared: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let at_node =
            |found: Override| Override { until: self.link.server_time().at_node(found.until), ..found };
        // The node's own counters have its time.
        let replacement = if coordination == Coordination::Static { shared.map(at_node) } else { shared };
        self.store_of(coordination.into()).override_limit(key, replacement, now).await
    }

    /// An override with its end in the server's time, by which all nodes end it.
    async fn at_server(&self, replacement: Option<Override>) -> Option<Override> {
        let Override { limit, until } = replacement?;
        if !self.link.server_time().is_known() {
            // Without a reply the override is applied again when Redis is there.
            let _ = self.observe_server_time().await;
        }
        Some(Override { limit, until: self.link.server_time().at_server(until) })
    }

    /// Sets the next page of overrides again where Redis may have lost them.
    pub(super) async fn restore_some_overrides(&self) {
        let count = self.fallback.overrides().len();
        if count > 0 {
            let start = self.overrides.next.fetch_add(PAGE, Ordering::Relaxed);
            if start + PAGE >= count {
                self.overrides.next.store(0, Ordering::Relaxed);
            }
            self.restore_page(start, &[Coordination::Central, Coordination::Lease]).await;
        }
    }

    /// Sets a page of overrides again, of the rules with one of these coordinations.
    async fn restore_page(&self, start: usize, coordinations: &[Coordination]) {
        let now = self.link.clock().now();
        let _turn = self.overrides.turn.lock().await;
        let page = self.fallback.overrides().page(start, PAGE, self.link.server_time().at_server(now));
        let restored = page.iter().map(async |(key, replacement)| {
            let (key, coordination) = (key.as_key(), self.settings.of(key.rule).coordination);
            if !coordinations.contains(&coordination) {
                return Ok(());
            }
            match coordination {
                Coordination::Central => self.central.restore_override(key, *replacement, now).await,
                Coordination::Lease => self.lease.restore_override(key, *replacement, now).await,
                _ => self.override_in(coordination, key, Some(*replacement), now).await,
            }
        });
        if let Some(error) = join_all(restored).await.into_iter().find_map(Result::err) {
            tracing::debug!("an override was not set again: {error}");
        }
        // Rejections since it was lost are wrong.
        for (key, _) in &page {
            let name = self.link.names().counter(key.as_key());
            self.rejections.forget(name.as_bytes());
            self.lease.end_rejection(name.as_bytes());
        }
    }
}
