//! Tests of the limiter without a gateway.

mod actions;
mod charges;
mod departures;
mod parallel;
mod rules;
mod rulings;
mod shared_permits;
mod stores;
mod waits;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::{Cost, Timestamp};
use tidegate_limiter::{
    Limiter, RefuseReason, RefuseRuling, RuleCheck, Ruling, ServeReason, ServeRuling, UnknownRule,
};
use tidegate_policy::{ActivePolicy, Facts, RuleClient, Scratch, compile};
use tidegate_store::{Clock, ManualClock, MemoryStore, Store};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);

fn active(policy: &str) -> ActivePolicy {
    let secret = ("jwt.secret".to_owned(), b"a secret of more than sixteen bytes".to_vec());
    let keys = ("keys.csv".to_owned(), b"key,tier\nfred,free\npaula,pro\nenno,enterprise\n".to_vec());
    let files: BTreeMap<_, _> = [secret, keys].into_iter().collect();
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
        let facts = Facts {
            method: "GET",
            host: Some("a.example"),
            path,
            headers: &headers,
            peer,
            body: tidegate_policy::BodyFacts::Unknown,
        };
        read(self.limiter.check(&policy, &facts, &mut scratch, self.now()).await)
    }

    /// The description of the ruling on one rule.
    async fn rule(&self, rule: &str, client: &[u8], cost: Cost) -> String {
        let (policy, mut scratch) = (self.limiter.policy(), Scratch::default());
        let check = RuleCheck { rule, client: &RuleClient::from_key(client), cost };
        match self.limiter.check_rule(&policy, check, &mut scratch, self.now()).await {
            Ok(ruling) => describe(&ruling),
            Err(UnknownRule) => "no rule".to_owned(),
        }
    }

    /// The description of the ruling on a GET of `path`.
    async fn outcome(&self, path: &str) -> String {
        self.check(path, &[], |ruling| describe(&ruling)).await
    }
}

fn describe(ruling: &Ruling<'_>) -> String {
    let limits = ruling.report().limits();
    let limit = limits.primary();
    match ruling {
        Ruling::Serve(serve) => match (serve.reason, limit) {
            (ServeReason::WithinLimits, Some(limit)) => {
                format!("admitted, {} left of {}", limit.remaining, limit.name)
            }
            (ServeReason::WithinLimits, None) => "admitted".to_owned(),
            (ServeReason::Exempt(_), _) => "exempt".to_owned(),
            (ServeReason::StoreFailed, _) => "store failed, binding: false".to_owned(),
        },
        Ruling::Refuse(refuse) => match refuse.reason {
            RefuseReason::Banned => "banned".to_owned(),
            RefuseReason::NotAllowed => "not allowed".to_owned(),
            RefuseReason::StoreUnavailable => "store failed, binding: true".to_owned(),
            reason => {
                let after = refuse.retry_after.map(|retry_after| retry_after.wait.as_secs_ceil());
                let name = limit.map_or("nothing", |limit| limit.name);
                format!("rejected by {name}: {reason:?}, {after:?}")
            }
        },
        Ruling::Act(act) => act.action().to_string(),
    }
}

fn served(ruling: Ruling<'_>) -> ServeRuling<'_> {
    match ruling {
        Ruling::Serve(serve) => serve,
        other => panic!("{other:?}"),
    }
}

fn refused(ruling: Ruling<'_>) -> RefuseRuling<'_> {
    match ruling {
        Ruling::Refuse(refuse) => refuse,
        other => panic!("{other:?}"),
    }
}
