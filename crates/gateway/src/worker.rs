//! What one core has to serve requests with.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use tidegate_policy::Scratch;
use tidegate_store::{Clock, Penalties, Permits, Store};
use tidegate_telemetry::{Log, Telemetry, Teller};
use tokio::sync::watch;

use crate::ban_list::Shut;
use crate::conn::Watchdog;
use crate::resource_limits::ResourceLimits;
use crate::snapshot::Live;
use crate::told::Said;
use crate::upstream::response_timeout::Patience;
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
    live: RefCell<Cache<Arc<ArcSwap<Live>>, Arc<Live>>>,
    pub(crate) store: Arc<S>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) bans: Arc<Shut>,
    pub(crate) teller: Teller,
    pub(crate) log: Log,
    pub(crate) penalties: Arc<Penalties>,
    pub(crate) permits: Arc<Permits>,
    pub(crate) pools: Rc<Pools>,
    pub(crate) watchdog: Rc<Watchdog>,
    pub(crate) patience: Rc<Patience>,
    pub(crate) bounds: ResourceLimits,
    scratches: RefCell<Vec<Scratch>>,
    pub(crate) said: RefCell<Said>,
    waiting: Cell<usize>,
    is_stopping: Cell<bool>,
    stop: watch::Receiver<bool>,
    /// What was in force when a request was last served.
    served: RefCell<Rc<InForce>>,
}

/// What is in force, for the requests of one core: counting them is no other core's business.
#[derive(Debug)]
pub(crate) struct InForce(Arc<Live>);

impl Deref for InForce {
    type Target = Live;

    fn deref(&self) -> &Live {
        &self.0
    }
}

impl<S: Store> Core<S> {
    pub(crate) fn new(
        live: Arc<ArcSwap<Live>>,
        shared: Shared<S>,
        connector: Connector,
        bounds: ResourceLimits,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let Shared { store, clock, bans, telemetry, penalties, permits } = shared;
        Self {
            served: RefCell::new(Rc::new(InForce(live.load_full()))),
            live: RefCell::new(Cache::new(live)),
            store,
            teller: telemetry.teller(Arc::clone(&clock)),
            log: telemetry.log().clone(),
            clock,
            bans,
            penalties,
            permits,
            pools: Pools::new(connector, &bounds),
            watchdog: Rc::new(Watchdog::new(&bounds)),
            patience: Patience::new(bounds.answer),
            bounds,
            scratches: RefCell::default(),
            said: RefCell::default(),
            waiting: Cell::new(0),
            is_stopping: Cell::new(false),
            stop,
        }
    }

    /// What is in force. The first to see a new policy lets go of connections that nobody needs any more.
    pub(crate) fn live(&self) -> Rc<InForce> {
        let (mut live, mut served) = (self.live.borrow_mut(), self.served.borrow_mut());
        let live = live.load();
        if !Arc::ptr_eq(live, &served.0) {
            *served = Rc::new(InForce(Arc::clone(live)));
            let is_used = |server: &Arc<Server>| {
                live.upstreams()
                    .iter()
                    .flat_map(|upstream| &upstream.servers)
                    .any(|used| Arc::ptr_eq(used, server))
            };
            self.pools.keep_only(is_used);
        }
        Rc::clone(&served)
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
