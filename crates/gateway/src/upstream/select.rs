//! Selects a server whose breaker admits an attempt.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{TimeSpan, Timestamp};

use super::balance::StickyKey;
use super::breakers::{AttemptPermit, BreakerSet, earliest};
use super::client_shares::ClientId;
use super::connection_slots::ConnectionSlot;
use super::server::{Server, UpstreamGroup};
use crate::http::request_body::UploadHandle;

/// The servers that a request has been sent to, by their places in the upstream.
pub(crate) type TriedServers = SmallVec<[usize; 4]>;

/// Whose request a server is selected for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) key: StickyKey,
    pub(crate) client: ClientId,
    /// When its limits let it pass.
    pub(crate) at: Timestamp,
}

/// A server for one attempt.
#[derive(Debug)]
pub(crate) struct SelectedServer<'u> {
    pub(crate) index: usize,
    pub(crate) server: &'u Arc<Server>,
    /// Counts the result.
    pub(crate) breaker: Option<AttemptPermit<'u>>,
    /// For a new connection, if the upstream bounds them and none is idle.
    pub(crate) slot: Option<ConnectionSlot>,
}

impl SelectedServer<'_> {
    /// Whether it is to probe a server that has failed.
    pub(crate) fn is_probe(&self) -> bool {
        self.breaker.as_ref().is_some_and(AttemptPermit::is_probe)
    }

    /// The same server for an attempt that starts now, although its client may delay it; `None` if others do that already.
    pub(crate) fn started(mut self, upload: &UploadHandle) -> Option<Self> {
        if !self.is_probe() || upload.is_complete() || self.breaker.as_mut().is_none_or(AttemptPermit::delay)
        {
            return Some(self);
        }
        self.cancel();
        None
    }

    /// Selects it for nobody.
    pub(crate) fn cancel(self) {
        if let Some(breaker) = self.breaker {
            breaker.cancel();
        }
    }
}

/// Why no server is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SelectError {
    /// There is no server, or none that was not tried.
    NoServer,
    /// All breakers are open. The time until the next probe, if it is known.
    BreakerOpen(Option<TimeSpan>),
}

impl UpstreamGroup {
    /// A server for the first attempt, or for another one if there are `tried` servers.
    pub(crate) fn select(&self, caller: Caller, tried: &[usize]) -> Result<SelectedServer<'_>, SelectError> {
        let Caller { key, client, .. } = caller;
        let choose = |excluded: &[usize]| {
            if tried.is_empty() { self.choose(key, excluded) } else { self.choose_again(key, excluded) }
        };
        let Some(index) = choose(tried) else { return Err(SelectError::NoServer) };
        match self.resilience.breakers.try_acquire(index, client) {
            Ok(breaker) => Ok(self.selected(index, breaker)),
            Err(open) => {
                let mut excluded = TriedServers::from_slice(tried);
                excluded.push(index);
                self.select_other(client, open.retry_after, excluded, &choose)
            }
        }
    }

    /// A server that is not in `excluded`: the breaker of the first one is open.
    #[cold]
    fn select_other(
        &self,
        client: ClientId,
        mut retry_after: Option<TimeSpan>,
        mut excluded: TriedServers,
        choose: &dyn Fn(&[usize]) -> Option<usize>,
    ) -> Result<SelectedServer<'_>, SelectError> {
        let breakers = &self.resilience.breakers;
        if matches!(breakers, BreakerSet::Shared(_)) {
            return Err(SelectError::BreakerOpen(retry_after));
        }
        while let Some(index) = choose(&excluded) {
            match breakers.try_acquire(index, client) {
                Ok(breaker) => return Ok(self.selected(index, breaker)),
                Err(open) => retry_after = earliest(retry_after, open.retry_after),
            }
            excluded.push(index);
        }
        Err(SelectError::BreakerOpen(retry_after))
    }

    /// A server that has not failed lately and was not tried. Nothing was sent to those that were tried.
    pub(crate) fn select_working(&self, caller: Caller, tried: &[usize]) -> Option<SelectedServer<'_>> {
        let index = self.choose_working(caller.key, tried)?;
        Some(self.selected(index, self.resilience.breakers.try_acquire(index, caller.client).ok()?))
    }

    fn selected<'u>(&'u self, index: usize, breaker: Option<AttemptPermit<'u>>) -> SelectedServer<'u> {
        SelectedServer { index, server: &self.servers[index], breaker, slot: None }
    }
}
