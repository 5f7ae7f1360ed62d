//! What one core has to serve requests with.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_policy::Scratch;
use tidegate_store::{Clock, Penalties, Permits, Store};
use tidegate_telemetry::{Telemetry, Teller};
use tokio::sync::watch;

use crate::bounds::Bounds;
use crate::live::Live;
use crate::rounds::Rounds;
use crate::shut::Shut;
use crate::upstream::{Connector, Pools, Server};

/// What the cores share to decide with.
#[derive(Debug)]
pub(crate) struct Shared<S> {
    pub(crate) store: Arc<S>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) bans: Arc<Shut>,
    pub(crate) telemetry: Telemetry,
    pub(crate) penalties: Arc<Penalties>,
    pub(crate) permits: Arc<Permits>,
}

impl<S> Clone for Shared<S> {
    fn clone(&self) -> Self {
        let Self { store, clock, bans, telemetry, penalties, permits } = self;
        Self {
            store: Arc::clone(store),
            clock: Arc::clone(clock),
            bans: Arc::clone(bans),
            telemetry: telemetry.clone(),
            penalties: Arc::clone(penalties),
            permits: Arc::clone(permits),
        }
    }
}

/// The state of one core. Whatever is shared with others is behind an `Arc`.
#[derive(Debug)]
pub(crate) struct Core<S> {
    live: Arc<ArcSwap<Live>>,
    pub(crate) store: Arc<S>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) bans: Arc<Shut>,
    pub(crate) teller: Teller,
    pub(crate) penalties: Arc<Penalties>,
    pub(crate) permits: Arc<Permits>,
    pub(crate) pools: Rc<Pools>,
    pub(crate) rounds: Rc<Rounds>,
    pub(crate) bounds: Bounds,
    scratches: RefCell<Vec<Scratch>>,
    waiting: Cell<usize>,
    is_stopping: Cell<bool>,
    stop: watch::Receiver<bool>,
    /// What was in force when a request was last served.
    served: Cell<*const Live>,
}

impl<S: Store> Core<S> {
    pub(crate) fn new(
        live: Arc<ArcSwap<Live>>,
        shared: Shared<S>,
        connector: Connector,
        bounds: Bounds,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let Shared { store, clock, bans, telemetry, penalties, permits } = shared;
        Self {
            live,
            store,
            teller: telemetry.teller(Arc::clone(&clock)),
            clock,
            bans,
            penalties,
            permits,
            pools: Pools::new(connector),
            rounds: Rc::default(),
            bounds,
            scratches: RefCell::default(),
            waiting: Cell::new(0),
            is_stopping: Cell::new(false),
            stop,
            served: Cell::new(std::ptr::null()),
        }
    }

    /// What is in force. The first to see a new policy lets go of connections that nobody needs any more.
    pub(crate) fn live(&self) -> Arc<Live> {
        let live = self.live.load_full();
        if self.served.replace(Arc::as_ptr(&live)) != Arc::as_ptr(&live) {
            let is_used = |server: &Arc<Server>| {
                live.upstreams()
                    .iter()
                    .flat_map(|upstream| &upstream.servers)
                    .any(|used| Arc::ptr_eq(used, server))
            };
            self.pools.keep_only(is_used);
        }
        live
    }

    /// From now on every answer is the last of its connection.
    pub(crate) fn begin_stopping(&self) {
        self.is_stopping.set(true);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.get()
    }

    /// Turns true when it is to stop.
    pub(crate) fn stop(&self) -> watch::Receiver<bool> {
        self.stop.clone()
    }

    /// Lends room for one match; it comes back by itself.
    pub(crate) fn with_scratch(&self) -> LentScratch<'_, S> {
        let scratch = self.scratches.borrow_mut().pop().unwrap_or_default();
        LentScratch { core: self, scratch }
    }

    /// A place among those who wait; `None` if all are taken.
    pub(crate) fn begin_waiting(self: &Rc<Self>) -> Option<Waiting<S>> {
        let waiting = self.waiting.get();
        (waiting < self.bounds.waiting).then(|| {
            self.waiting.set(waiting + 1);
            Waiting(Rc::clone(self))
        })
    }
}

/// Room for one match.
#[derive(Debug)]
pub(crate) struct LentScratch<'c, S> {
    core: &'c Core<S>,
    pub(crate) scratch: Scratch,
}

impl<S> Drop for LentScratch<'_, S> {
    fn drop(&mut self) {
        self.core.scratches.borrow_mut().push(std::mem::take(&mut self.scratch));
    }
}

/// A request that is held until its turn comes.
#[derive(Debug)]
pub(crate) struct Waiting<S>(Rc<Core<S>>);

impl<S> Drop for Waiting<S> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}
