//! Requests that pass, but not yet: a leaky bucket's queue.

use std::rc::Rc;

use tidegate_core::{Cost, Decision, Key, Limit, Refund, RuleId, Span, Timestamp};
use tidegate_policy::Matched;
use tidegate_store::Store;

use crate::error::ServeError;
use crate::worker::Core;

/// Holds a request for `wait`. If its client leaves meanwhile, what was charged is given back.
pub(crate) async fn until_its_turn<S: Store + 'static>(
    core: &Rc<Core<S>>,
    matched: &Matched<'_>,
    decision: &Decision,
    wait: Span,
) -> Result<(), ServeError> {
    // Dropping it gives back what was charged.
    let mut charged = Charged::of(core, matched, decision);
    let Some(_waiting) = core.begin_waiting() else { return Err(ServeError::TooManyWaiting) };
    tokio::time::sleep(wait.into()).await;
    charged.refunds.clear();
    Ok(())
}

/// What a request was charged, given back when it is dropped.
struct Charged<S: Store + 'static> {
    core: Rc<Core<S>>,
    refunds: Vec<Owed>,
}

/// A refund that waits for nobody's borrow.
struct Owed {
    rule: RuleId,
    client: Vec<u8>,
    limit: Limit,
    cost: Cost,
    charged: Timestamp,
}

impl<S: Store + 'static> Charged<S> {
    fn of(core: &Rc<Core<S>>, matched: &Matched<'_>, decision: &Decision) -> Self {
        let owed = |refund: &Refund<'_>| Owed {
            rule: refund.key.rule,
            client: refund.key.client.to_vec(),
            limit: *refund.limit,
            cost: refund.cost,
            charged: refund.charged,
        };
        let refunds = decision.refunds(matched.checks()).iter().map(owed).collect();
        Self { core: Rc::clone(core), refunds }
    }
}

impl<S: Store + 'static> Drop for Charged<S> {
    fn drop(&mut self) {
        let refunds = std::mem::take(&mut self.refunds);
        if refunds.is_empty() {
            return;
        }
        let core = Rc::clone(&self.core);
        tokio::task::spawn_local(async move {
            let refunds: Vec<_> = refunds
                .iter()
                .map(|owed| Refund {
                    key: Key::new(owed.rule, &owed.client),
                    limit: &owed.limit,
                    cost: owed.cost,
                    charged: owed.charged,
                })
                .collect();
            // A store that does not answer keeps what it has: too much is refused, never too little.
            let _ = core.store.refund(&refunds, core.clock.now()).await;
        });
    }
}
