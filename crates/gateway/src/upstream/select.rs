//! Selects a server whose breaker admits an attempt.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::TimeSpan;
use tidegate_tower::breaker::BreakerPermit;
use tidegate_tower::bulkhead::BulkheadPermit;

use super::balance::StickyKey;
use super::breakers::{BreakerSet, earliest};
use super::server::{Server, UpstreamGroup};

/// The servers that a request has been sent to, by their places in the upstream.
pub(crate) type TriedServers = SmallVec<[usize; 4]>;

/// A server for one attempt.
#[derive(Debug)]
pub(crate) struct SelectedServer<'u> {
    pub(crate) index: usize,
    pub(crate) server: &'u Arc<Server>,
    /// Counts the result; dropped without one, the attempt says nothing about the server.
    pub(crate) breaker: Option<BreakerPermit>,
    /// For a new connection, if the upstream bounds them and none is idle.
    pub(crate) slot: Option<BulkheadPermit>,
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
    pub(crate) fn select(&self, key: StickyKey, tried: &[usize]) -> Result<SelectedServer<'_>, SelectError> {
        let choose = |excluded: &[usize]| {
            if tried.is_empty() { self.choose(key, excluded) } else { self.choose_again(key, excluded) }
        };
        let Some(index) = choose(tried) else { return Err(SelectError::NoServer) };
        match self.resilience.breakers.try_acquire(index) {
            Ok(breaker) => Ok(self.selected(index, breaker)),
            Err(open) => self.select_other(index, open.retry_after, tried, &choose),
        }
    }

    /// A server other than `first`, whose breaker is open.
    #[cold]
    fn select_other(
        &self,
        first: usize,
        mut retry_after: Option<TimeSpan>,
        tried: &[usize],
        choose: &dyn Fn(&[usize]) -> Option<usize>,
    ) -> Result<SelectedServer<'_>, SelectError> {
        let breakers = &self.resilience.breakers;
        let mut excluded = TriedServers::from_slice(tried);
        excluded.push(first);
        if matches!(breakers, BreakerSet::Shared(_)) {
            return Err(SelectError::BreakerOpen(retry_after));
        }
        while let Some(index) = choose(&excluded) {
            match breakers.try_acquire(index) {
                Ok(breaker) => return Ok(self.selected(index, breaker)),
                Err(open) => retry_after = earliest(retry_after, open.retry_after),
            }
            excluded.push(index);
        }
        Err(SelectError::BreakerOpen(retry_after))
    }

    /// A server that has not failed lately and was not tried. Nothing was sent to those that were tried.
    pub(crate) fn select_working(&self, key: StickyKey, tried: &[usize]) -> Option<SelectedServer<'_>> {
        let index = self.choose_working(key, tried)?;
        Some(self.selected(index, self.resilience.breakers.try_acquire(index).ok()?))
    }

    fn selected(&self, index: usize, breaker: Option<BreakerPermit>) -> SelectedServer<'_> {
        SelectedServer { index, server: &self.servers[index], breaker, slot: None }
    }
}
