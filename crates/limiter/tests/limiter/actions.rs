//! Which action takes the place of a rejection, and what is charged.

use http::HeaderMap;
use tidegate_core::{ActionKind, ActionSet, Check, Cost, CounterKey, RuleId, TimeSpan};
use tidegate_limiter::{ActRuling, ChargeUse, CheckContext, RuleCheck, Ruling};
use tidegate_policy::{Facts, RuleClient, Scratch};
use tidegate_store::{MemoryStore, Store};

use crate::{Bench, describe, refused};

/// Each action with its YAML.
const ACTIONS: [(ActionKind, &str); 5] = [
    (ActionKind::Reject, "reject"),
    (ActionKind::Wait, "{ wait: 2h }"),
    (ActionKind::Degrade, "degrade"),
    (ActionKind::Slow, "{ slow: { from: 10%, max: 1s } }"),
    (ActionKind::Borrow, "{ borrow: { units: 3, repay: 2 } }"),
];
const EVERY_ACTION: ActionSet = ActionSet::of(&ActionKind::ALL);

/// A rule in a case.
#[derive(Clone, Copy, Debug)]
struct RuleCase {
    action: ActionKind,
    is_shadow: bool,
    is_exceeded: bool,
}

impl RuleCase {
    /// The action that the rule demands of an interface that performs `performed`.
    fn demanded(self, performed: ActionSet) -> Option<ActionKind> {
        let kind = match self.action {
            ActionKind::Slow | ActionKind::Borrow => ActionKind::Reject,
            kind if performed.contains(kind) => kind,
            _ => ActionKind::Reject,
        };
        (self.is_exceeded && !self.is_shadow).then_some(kind)
    }

    fn is_slowed(self, performed: ActionSet) -> bool {
        let slows = self.action == ActionKind::Slow && performed.contains(ActionKind::Slow);
        slows && !self.is_shadow && !self.is_exceeded
    }
}

impl Bench<MemoryStore> {
    async fn remaining(&self, rule: &str) -> u64 {
        let policy = self.limiter.policy();
        let limits = &policy.matcher.plan().rate_limits;
        let limit = limits.iter().find(|limit| limit.name == rule).expect("the rule").limit;
        let key = CounterKey::new(RuleId::named(rule), b"");
        let check = Check::new(key, &limit).cost(Cost::ZERO);
        let peeked = self.limiter.store().peek(&[check], self.now()).await.expect("a decision");
        peeked.outcomes[0].remaining
    }

    async fn act<R>(&self, performs: ActionSet, read: impl FnOnce(Ruling<'_>) -> R) -> R {
        let (policy, mut scratch, headers) = (self.limiter.policy(), Scratch::default(), HeaderMap::new());
        let peer = [192, 0, 2, 1].into();
        let facts = Facts {
            method: "GET",
            host: Some("a.example"),
            path: "/",
            headers: &headers,
            peer,
            body: tidegate_policy::BodyFacts::Unknown,
        };
        let context = CheckContext { now: self.now(), performs };
        read(self.limiter.check(&policy, &facts, &mut scratch, context).await)
    }

    /// Uses up a rule.
    async fn exceed(&self, rule: &str) {
        let left = self.remaining(rule).await;
        let (policy, mut scratch) = (self.limiter.policy(), Scratch::default());
        let check = RuleCheck { rule, client: &RuleClient::from_key(b""), cost: Cost::new(left) };
        let ruling = self.limiter.check_rule(&policy, check, &mut scratch, self.now()).await;
        assert!(matches!(ruling, Ok(Ruling::Serve(_))));
    }
}

fn policy(rules: [(&RuleCase, &str); 2]) -> String {
    let rule = |(name, (case, action)): (&str, (&RuleCase, &str))| {
        let mode = if case.is_shadow { "shadow" } else { "enforce" };
        format!(
            "    - {{ name: {name}, per: everybody, requests: 5, window: 1h, algorithm: token_bucket, mode: {mode}, on_exceed: {action} }}\n"
        )
    };
    let rules: String = ["a", "b"].into_iter().zip(rules).map(rule).collect();
    format!("rate_limits:\n  rules:\n{rules}")
}

/// What a ruling is: the action that takes the place of the rejection, or the rejection; and the delay.
fn outcome(ruling: &Ruling<'_>) -> (Option<ActionKind>, TimeSpan) {
    match ruling {
        Ruling::Serve(serve) => (None, serve.delay),
        Ruling::Refuse(_) => (Some(ActionKind::Reject), TimeSpan::ZERO),
        Ruling::Act(act) => (Some(act.action().kind()), act.delay),
    }
}

#[tokio::test]
async fn ruling_of_each_pair_of_actions_charges_what_the_table_says() {
    let flags = [(false, false), (false, true), (true, false), (true, true)];
    for (one, one_text) in ACTIONS {
        for (other, other_text) in ACTIONS {
            for (shadow_a, shadow_b) in flags {
                for (exceeded_a, exceeded_b) in flags {
                    for performed in [EVERY_ACTION, ActionSet::NONE] {
                        let a = RuleCase { action: one, is_shadow: shadow_a, is_exceeded: exceeded_a };
                        let b = RuleCase { action: other, is_shadow: shadow_b, is_exceeded: exceeded_b };
                        check_pair([(&a, one_text), (&b, other_text)], performed).await;
                    }
                }
            }
        }
    }
}

async fn check_pair(rules: [(&RuleCase, &str); 2], performed: ActionSet) {
    let bench = Bench::new(&policy(rules));
    let [(a, _), (b, _)] = rules;
    for (rule, case) in [("a", a), ("b", b)] {
        if case.is_exceeded {
            bench.exceed(rule).await;
        }
    }
    let before = [bench.remaining("a").await, bench.remaining("b").await];
    let demanded = [a, b].into_iter().filter_map(|case| case.demanded(performed)).min();
    let charges = !matches!(demanded, Some(ActionKind::Reject | ActionKind::Cached | ActionKind::Wait));
    let is_slowed = charges && [a, b].iter().any(|case| case.is_slowed(performed));
    let case = format!("{rules:?}, {performed:?}");

    let (action, delay) = bench.act(performed, |ruling| outcome(&ruling)).await;
    assert_eq!((action, !delay.is_zero()), (demanded, is_slowed), "{case}");
    let after = [bench.remaining("a").await, bench.remaining("b").await];
    let left = |before: u64, case: &RuleCase| before - u64::from(charges && !case.is_exceeded);
    assert_eq!(after, [left(before[0], a), left(before[1], b)], "{case}");

    // An action that cannot be performed: nothing stays charged.
    let refuse = |ruling: Ruling<'_>| match ruling {
        Ruling::Act(act) => Some(describe(&Ruling::Refuse(ActRuling::refuse(*act, &bench.limiter)))),
        _ => None,
    };
    if let Some(refusal) = bench.act(performed, refuse).await {
        assert!(refusal.starts_with("rejected by"), "{refusal}: {case}");
        assert_eq!([bench.remaining("a").await, bench.remaining("b").await], after, "{case}");
    }
}

#[tokio::test]
async fn degraded_request_is_reported_and_its_charge_is_refunded_like_any_other() {
    let bench = Bench::new(
        "rate_limits:\n  default: { requests: 5, window: 1h, algorithm: token_bucket }\n  rules:\n    \
         - { name: cheap, per: everybody, requests: 1, window: 1h, algorithm: token_bucket, on_exceed: degrade }\n",
    );
    bench.exceed("cheap").await;
    let charge = bench
        .act(EVERY_ACTION, |ruling| {
            let limits = ruling.report().limits();
            let recorded = ruling.recorded(&limits);
            assert_eq!(recorded.action.map(|action| action.kind), Some(ActionKind::Degrade));
            assert_eq!(limits.primary().map(|limit| (limit.name, limit.remaining)), Some(("cheap", 0)));
            let Ruling::Act(act) = &ruling else { panic!("{ruling:?}") };
            act.charge(&bench.limiter, ChargeUse::Refundable)
        })
        .await;
    let left = || async {
        let admitted = bench.act(EVERY_ACTION, |ruling| ruling.report().limits()[0].remaining);
        admitted.await
    };
    assert_eq!(left().await, 3, "two requests are charged");
    drop(charge);
    assert_eq!(left().await, 3, "one of them was refunded");
}

#[tokio::test]
async fn degraded_request_is_no_violation_and_a_refused_one_is() {
    let bench = Bench::new(
        "rate_limits:\n  default: { requests: 1, window: 1h, algorithm: token_bucket, on_exceed: degrade, \
         penalty: { after: 2, for: 1h } }\n",
    );
    for _ in 0..6 {
        bench.act(EVERY_ACTION, |ruling| assert!(!matches!(ruling, Ruling::Refuse(_)))).await;
    }
    for expected in ["Limit", "LockOut"] {
        let refused = bench.act(EVERY_ACTION, |ruling| match ruling {
            Ruling::Act(act) => format!("{:?}", act.refuse(&bench.limiter).reason),
            ruling => panic!("{ruling:?}"),
        });
        assert_eq!(refused.await, expected);
    }
    let locked_out = bench.act(EVERY_ACTION, |ruling| format!("{:?}", refused(ruling).reason)).await;
    assert_eq!(locked_out, "LockOut", "also for an interface that performs the action");
}

#[tokio::test]
async fn rule_in_shadow_mode_counts_the_action_it_would_have_had() {
    for (action, expected) in [
        ("reject", ActionKind::Reject),
        ("degrade", ActionKind::Degrade),
        ("{ slow: { from: 10%, max: 1s } }", ActionKind::Reject),
    ] {
        let bench = Bench::new(&format!(
            "rate_limits: {{ global: {{ requests: 1, window: 1h, algorithm: token_bucket, mode: shadow, on_exceed: {action} }} }}"
        ));
        let mut counted = Vec::new();
        for _ in 0..2 {
            let kinds = |ruling: Ruling<'_>| -> Vec<_> {
                ruling.report().shadow_actions().map(|action| action.kind).collect()
            };
            counted.extend(bench.act(EVERY_ACTION, kinds).await);
        }
        counted.retain(|kind| *kind != ActionKind::Slow);
        assert_eq!(counted, [expected], "{action}");
    }
}

#[tokio::test]
async fn units_that_a_bucket_lends_are_named_and_repaid() {
    let bench = Bench::new(
        "rate_limits: { global: { requests: 10, window: 1s, algorithm: token_bucket, burst: 30, \
         on_exceed: { borrow: { units: 20, repay: 2 } } } }",
    );
    let mut kinds = Vec::new();
    for _ in 0..51 {
        kinds.push(
            bench
                .act(ActionSet::NONE, |ruling| {
                    let limits = ruling.report().limits();
                    let recorded = ruling.recorded(&limits);
                    (matches!(ruling, Ruling::Serve(_)), recorded.action.map(|action| action.kind))
                })
                .await,
        );
    }
    let expected = |index: usize| match index {
        0..30 => (true, None),
        30..50 => (true, Some(ActionKind::Borrow)),
        _ => (false, None),
    };
    assert_eq!(kinds, (0..51).map(expected).collect::<Vec<_>>());
    assert_eq!(bench.remaining("global").await, 0);
    bench.clock.advance(TimeSpan::from_secs(4));
    assert_eq!(bench.remaining("global").await, 20, "everything borrowed is repaid, at twice the price");
    bench.clock.advance(TimeSpan::from_secs(3));
    assert_eq!(bench.remaining("global").await, 50, "(burst + 40) units at 10 per second");
}
