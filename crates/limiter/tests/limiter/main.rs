//! Tests of the limiter without a gateway.

mod charges;
mod parallel;
mod rules;
mod rulings;
mod shared_permits;
mod stores;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::{Cost, TimeSpan, Timestamp};
use tidegate_limiter::{Limiter, RuleCheck, Ruling};
use tidegate_policy::{ActivePolicy, Facts, RuleClient, Scratch, compile};
use tidegate_store::{Clock, ManualClock, MemoryStore, Store};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);

fn active(policy: &str) -> ActivePolicy {
    let secret = ("jwt.secret".to_owned(), b"a secret of more than sixteen bytes".to_vec());
    let files: BTreeMap<_, _> = [secret].into_iter().collect();
    let compiled = compile("test.yaml", policy.as_bytes(), &files);
    ActivePolicy::new(compiled.unwrap_or_else(|problems| panic!("{problems}\n{policy}")).plan)
}

/// A limiter with a manual clock.
struct Bench<S> {
    limiter: Limiter<S>,
    clock: Arc<ManualClock>,
}

impl Bench<MemoryStore> {
    fn new(policy: &str) -> Self {
        Self::on(policy, MemoryStore::with_cap(1 << 20))
    }
}

impl<S: Store + 'static> Bench<S> {
    fn on(policy: &str, store: S) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let limiter = Limiter::new(active(policy), Arc::new(store), Arc::clone(&clock) as Arc<dyn Clock>)
            .expect("a limiter");
        Self { limiter, clock }
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Applies `read` to the ruling on a request with these headers.
    async fn check<R>(
        &self,
        path: &str,
        headers: &[(&'static str, &str)],
        read: impl FnOnce(Ruling<'_>) -> R,
    ) -> R {
        let (policy, mut scratch) = (self.limiter.policy(), Scratch::default());
        let header = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a header value"))
        };
        let headers: HeaderMap = headers.iter().map(header).collect();
        let peer = [192, 0, 2, 1].into();
        let facts = Facts { method: "GET", host: Some("a.example"), path, headers: &headers, peer };
        read(self.limiter.check(&policy, &facts, &mut scratch, self.now()).await)
    }

    /// The description of the ruling on one rule.
    async fn rule(&self, rule: &str, client: &[u8], cost: Cost) -> String {
        let (policy, mut scratch) = (self.limiter.policy(), Scratch::default());
        let check = RuleCheck { rule, client: &RuleClient::from_key(client), cost };
        let ruling = self.limiter.check_rule(&policy, check, &mut scratch, self.now()).await;
        describe(&ruling)
    }

    /// The description of the ruling on a GET of `path`.
    async fn outcome(&self, path: &str) -> String {
        self.check(path, &[], |ruling| describe(&ruling)).await
    }
}

fn describe(ruling: &Ruling<'_>) -> String {
    match ruling {
        Ruling::Admitted(admitted) => match admitted.report.limits().primary() {
            Some(limit) => format!("admitted, {} left of {}", limit.remaining, limit.name),
            None => "admitted".to_owned(),
        },
        Ruling::Rejected(rejected) => {
            let after = rejected.retry_after.map(TimeSpan::as_secs_ceil);
            let limits = rejected.report.limits();
            let name = limits.primary().map_or("nothing", |limit| limit.name);
            format!("rejected by {name}: {:?}, {after:?}", rejected.reason)
        }
        Ruling::Banned => "banned".to_owned(),
        Ruling::Exempt(_) => "exempt".to_owned(),
        Ruling::NoRule => "no rule".to_owned(),
        Ruling::StoreFailed(failed) => format!("store failed, binding: {}", failed.is_binding),
    }
}
