//! What was charged up front and is settled later, by the response or by the body of the request.
//!
//! A reservation stands unless something settles it: who hangs up before the response, and whose upstream breaks off or
//! is too slow, has paid for what may have been done. Only what was sent to no server at all is given back.

use std::rc::Rc;

use http::header::HeaderName;
use http::{HeaderMap, Response, StatusCode};
use tidegate_core::{Check, Cost, Decision, Key, Limit, Refund, Role, RuleId, Timestamp};
use tidegate_policy::{Matched, Reservation, Settles, Statuses};
use tidegate_store::Store;

use crate::error::ServeError;
use crate::exclusion::Held;
use crate::http::request_body::Metering;
use crate::worker::Core;

/// A body of unknown length is charged whenever so many units of it have come: little enough that nobody gets far
/// beyond a limit by never ending, much enough that a store is not asked for every frame.
const CHARGED_AT_ONCE: u64 = 64;

/// What a request that may pass takes along.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// Given back when it has ended.
    pub(crate) held: Held,
    /// To be settled.
    pub(crate) reserved: Vec<Reserved>,
}

impl Passed {
    /// A request that holds only these.
    pub(crate) fn holding(held: Held) -> Self {
        Self { held, reserved: Vec::new() }
    }

    /// The same with what `decision` has reserved.
    pub(crate) fn reserving(mut self, matched: &Matched<'_>, decision: &Decision) -> Self {
        self.reserved =
            matched.reservations(decision).map(|reservation| Reserved::of(&reservation)).collect();
        self
    }
}

/// A reservation that waits for nobody's borrow.
#[derive(Debug)]
pub(crate) struct Reserved {
    rule: RuleId,
    client: Box<[u8]>,
    limit: Limit,
    cost: Cost,
    charged: Timestamp,
    by: By,
}

/// What settles it.
#[derive(Debug)]
enum By {
    Status(Box<Statuses>),
    Header(HeaderName),
    Body(u64),
}

impl By {
    fn as_settles(&self) -> Settles<'_> {
        match self {
            Self::Status(statuses) => Settles::Status(statuses),
            Self::Header(name) => Settles::Header(name),
            Self::Body(unit) => Settles::Body(*unit),
        }
    }
}

impl Reserved {
    fn of(reservation: &Reservation<'_>) -> Self {
        let Reservation { check, charged, settles } = reservation;
        let by = match settles {
            Settles::Status(statuses) => By::Status(Box::new(**statuses)),
            Settles::Header(name) => By::Header((*name).clone()),
            Settles::Body(unit) => By::Body(*unit),
        };
        Self {
            rule: check.key.rule,
            client: check.key.client.into(),
            limit: *check.limit,
            cost: check.cost,
            charged: *charged,
            by,
        }
    }

    fn is_by_body(&self) -> bool {
        matches!(self.by, By::Body(_))
    }

    fn key(&self) -> Key<'_> {
        Key::new(self.rule, &self.client)
    }

    /// Makes it cost `cost` in the end.
    async fn commit<S: Store>(&self, core: &Core<S>, cost: Cost) {
        let now = core.clock.now();
        // A store that does not answer keeps what it has; there is nobody to tell.
        if cost < self.cost {
            let cost = Cost::new(self.cost.get() - cost.get());
            let refund = Refund { key: self.key(), limit: &self.limit, cost, charged: self.charged };
            let _ = core.store.refund(&[refund], now).await;
        } else if cost > self.cost {
            self.charge(core, cost.get() - self.cost.get()).await;
        }
    }

    /// Charges `units` more, even into debt.
    async fn charge<S: Store>(&self, core: &Core<S>, units: u64) {
        let check = Check::new(self.key(), &self.limit).cost(Cost::new(units)).role(Role::Overage);
        let _ = core.store.decide(&[check], core.clock.now()).await;
    }
}

/// Settles what the answer of an upstream, or the want of one, says of `reserved`.
pub(crate) async fn settle<S: Store + 'static, B>(
    core: &Rc<Core<S>>,
    reserved: Vec<Reserved>,
    answer: &Result<Response<B>, ServeError>,
) {
    let commit = |reserved: &Reserved| match answer {
        Ok(response) => by_response(reserved, response.status(), response.headers()),
        // Nothing was sent to anybody.
        Err(ServeError::NoServer | ServeError::Unreachable | ServeError::Untrusted(_)) => Some(Cost::ZERO),
        Err(_) => None,
    };
    let commits: Vec<_> =
        reserved.into_iter().filter_map(|reserved| Some((commit(&reserved)?, reserved))).collect();
    if commits.is_empty() {
        return;
    }
    let core = Rc::clone(core);
    // In a task of its own: a client that hangs up now does not keep it from being done.
    let settling = tokio::task::spawn_local(async move {
        for (cost, reserved) in &commits {
            reserved.commit(&core, *cost).await;
        }
    });
    // It does not fail; and who asks next is to find it done.
    let _ = settling.await;
}

fn by_response(reserved: &Reserved, status: StatusCode, headers: &HeaderMap) -> Option<Cost> {
    reserved.by.as_settles().by_response(reserved.cost, status.as_u16(), headers)
}

/// What counts the body of a request, if its length was not known.
pub(crate) fn meter<S: Store + 'static>(
    core: &Rc<Core<S>>,
    reserved: &mut Vec<Reserved>,
) -> Option<Box<dyn Metering>> {
    if !reserved.iter().any(Reserved::is_by_body) {
        return None;
    }
    let (by_body, rest): (Vec<_>, Vec<_>) = reserved.drain(..).partition(Reserved::is_by_body);
    *reserved = rest;
    let open = by_body.into_iter().map(|reserved| (reserved.cost.get(), Rc::new(reserved))).collect();
    Some(Box::new(Meter { core: Rc::clone(core), open, bytes: 0 }))
}

/// Charges a body as it comes.
struct Meter<S: Store + 'static> {
    core: Rc<Core<S>>,
    /// How many units have been charged to each.
    open: Vec<(u64, Rc<Reserved>)>,
    bytes: u64,
}

impl<S: Store + 'static> std::fmt::Debug for Meter<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<S: Store + 'static> Meter<S> {
    /// Charges what has come since, where it is at least so much.
    fn charge(&mut self, at_least: u64) {
        for (charged, reserved) in &mut self.open {
            let units = reserved.by.as_settles().by_body(self.bytes).map_or(0, Cost::get);
            let more = units.saturating_sub(*charged);
            if more >= at_least {
                *charged = units;
                let (core, reserved) = (Rc::clone(&self.core), Rc::clone(reserved));
                tokio::task::spawn_local(async move { reserved.charge(&core, more).await });
            }
        }
    }
}

impl<S: Store + 'static> Metering for Meter<S> {
    fn saw(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.charge(CHARGED_AT_ONCE);
    }
}

impl<S: Store + 'static> Drop for Meter<S> {
    /// The body has ended, or nobody wants the rest of it.
    fn drop(&mut self) {
        self.charge(1);
    }
}
