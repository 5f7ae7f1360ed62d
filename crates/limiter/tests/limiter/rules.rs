//! Operations on rules by name.

use std::sync::{Arc, Mutex};

use tidegate_core::{Cost, CounterKey, Limit, RuleId, Spec, TimeSpan, Timestamp};
use tidegate_limiter::{Charge, ChargeUse, RuleCheck, Ruling, UnknownRule};
use tidegate_policy::{Ban, Bans, ClientName, RuleClient, Scratch, Subject};
use tidegate_store::{MemoryStore, Override};

use crate::{Bench, START, active, describe, served};

fn bans(subjects: &[&str]) -> Bans {
    let ban = |subject: &&str| Ban {
        subject: Subject::parse(subject, 64).expect("a subject"),
        reason: String::new(),
        since: START,
        until: None,
    };
    Bans::new(subjects.iter().map(ban))
}

impl Bench<MemoryStore> {
    fn client(&self, name: &str) -> RuleClient {
        let name = ClientName::of_identity(name).expect("a name");
        RuleClient::new(&name, &self.limiter.policy().matcher.plan().identities).expect("a client")
    }

    /// The rulings of a check and of a preview of a rule.
    async fn check_by_name(&self, rule: &str, client: &str) -> (String, String) {
        let (policy, client) = (self.limiter.policy(), self.client(client));
        let check = RuleCheck { rule, client: &client, cost: Cost::ONE };
        let (mut scratch, now) = (Scratch::default(), self.now());
        let told = |ruling: Result<Ruling<'_>, UnknownRule>| match ruling {
            Ok(ruling) => describe(&ruling),
            Err(UnknownRule) => "no rule".to_owned(),
        };
        let preview = told(self.limiter.preview_rule(&policy, check, &mut scratch, now).await);
        (told(self.limiter.check_rule(&policy, check, &mut scratch, now).await), preview)
    }

    /// Reserves `cost` units of the rule `default`. Returns the charge and when the request departs.
    async fn reserve(&self, client: &str, cost: u64) -> (Charge, Timestamp) {
        let (policy, client) = (self.limiter.policy(), self.client(client));
        let check = RuleCheck { rule: "default", client: &client, cost: Cost::new(cost) };
        let mut scratch = Scratch::default();
        let ruling = self.limiter.check_rule(&policy, check, &mut scratch, self.now()).await;
        let serve = served(ruling.expect("a rule"));
        let charge = serve.charge(&self.limiter, ChargeUse::Committed);
        (charge.expect("a charge"), self.now() + serve.delay)
    }

    /// Sets the final cost of a charge of the rule `default`. Returns whether the rest was refunded.
    async fn commit(&self, charge: Charge, cost: u64) -> bool {
        let committed = charge.commit(&self.limiter.policy(), &[("default", Cost::new(cost))]).await;
        committed.expect("the store works")
    }

    /// How long the next request of `client` is delayed.
    async fn delay(&self, client: &str) -> TimeSpan {
        let (policy, client) = (self.limiter.policy(), self.client(client));
        let check = RuleCheck { rule: "default", client: &client, cost: Cost::ONE };
        let mut scratch = Scratch::default();
        let ruling = self.limiter.preview_rule(&policy, check, &mut scratch, self.now()).await;
        served(ruling.expect("a rule")).delay
    }
}

const POLICY: &str = "
clients: { exempt: { networks: [198.51.100.0/24] } }
bans: { networks: [203.0.113.0/24] }
rate_limits:
  global: { requests: 100, window: 1h, algorithm: fixed_window }
  default: { requests: 100, window: 1h, algorithm: fixed_window }
";

#[tokio::test]
async fn check_rule_banned_client_is_rejected_under_every_rule() {
    let bench = Bench::new(POLICY);
    bench.limiter.ban(bans(&["user:bob", "api_key:stolen", "ip:2001:db8::7/128", "198.51.100.1"]));
    let banned = ("banned".to_owned(), "banned".to_owned());
    let all = [
        "user:bob",
        "api_key:stolen",
        "ip:203.0.113.9",
        "ip:::ffff:203.0.113.9",
        "ip:2001:db8::7",
        // A ban takes precedence over an exemption.
        "ip:198.51.100.1",
    ];
    for client in all {
        for rule in ["default", "global"] {
            assert_eq!(bench.check_by_name(rule, client).await, banned, "{rule} {client}");
        }
    }
    for client in ["user:bobby", "api_key:other", "ip:203.0.112.9", "ip:2001:db8::8", "tenant:bob"] {
        let (checked, preview) = bench.check_by_name("default", client).await;
        assert!(checked.starts_with("admitted") && preview.starts_with("admitted"), "{client}: {checked}");
    }
}

#[tokio::test]
async fn check_rule_client_outside_of_allow_is_rejected_and_one_without_address_is_not() {
    let bench = Bench::new(&format!("{POLICY}allow: {{ networks: [10.0.0.0/8, 203.0.113.0/24] }}\n"));
    let not_allowed = ("not allowed".to_owned(), "not allowed".to_owned());
    assert_eq!(bench.check_by_name("default", "ip:192.0.2.1").await, not_allowed);
    assert_eq!(bench.check_by_name("default", "ip:198.51.100.7").await, not_allowed, "an exempt client");
    assert_eq!(bench.check_by_name("default", "ip:203.0.113.9").await.0, "banned");
    for client in ["ip:10.1.2.3", "user:bob"] {
        assert!(bench.check_by_name("default", client).await.0.starts_with("admitted"), "{client}");
    }
}

#[tokio::test]
async fn check_rule_exempt_client_is_not_counted() {
    let bench = Bench::new(POLICY);
    for client in ["ip:198.51.100.7", "ip:198.51.100.8"] {
        assert_eq!(bench.check_by_name("default", client).await.0, "exempt", "{client}");
        assert_eq!(bench.check_by_name("global", client).await.1, "exempt", "{client}");
    }
    assert_eq!(bench.check_by_name("global", "user:eve").await.0, "admitted, 99 left of global");
    assert_eq!(bench.check_by_name("nothing", "ip:198.51.100.7").await.0, "no rule");
}

#[tokio::test]
async fn preview_of_a_locked_out_client_shows_the_lock_out_and_records_nothing() {
    let bench = Bench::new(
        "rate_limits: { default: { requests: 1, window: 10s, algorithm: fixed_window, penalty: { after: 2, for: 1h } } }",
    );
    let (checked, preview) = bench.check_by_name("default", "user:bob").await;
    assert_eq!((&*checked, &*preview), ("admitted, 0 left of default", "admitted, 1 left of default"));
    let limited = "rejected by default: Limit, Some(10)";
    let (policy, client) = (bench.limiter.policy(), bench.client("user:bob"));
    for _ in 0..3 {
        let check = RuleCheck { rule: "default", client: &client, cost: Cost::ONE };
        let mut scratch = Scratch::default();
        let ruling = bench.limiter.preview_rule(&policy, check, &mut scratch, bench.now()).await;
        assert_eq!(describe(&ruling.unwrap()), limited, "a preview is no violation");
    }
    assert_eq!(bench.check_by_name("default", "user:bob").await.0, limited);
    let locked_out = "rejected by default: LockOut, Some(3600)";
    assert_eq!(bench.check_by_name("default", "user:bob").await, (locked_out.to_owned(), limited.to_owned()));
    assert_eq!(bench.check_by_name("default", "user:bob").await.1, locked_out);
}

#[tokio::test]
async fn reset_rule_ends_the_lock_out_and_forgets_violations() {
    let bench = Bench::new(
        "rate_limits: { default: { requests: 1, window: 10s, algorithm: fixed_window, penalty: { after: 2, for: 1h } } }",
    );
    let lifted = Arc::new(Mutex::new(0));
    let count = Arc::clone(&lifted);
    bench.limiter.penalties().on_lift(Box::new(move |_| *count.lock().unwrap() += 1));
    let outcomes = async || {
        let mut outcomes = Vec::new();
        for _ in 0..3 {
            outcomes.push(bench.check_by_name("default", "user:bob").await.0);
        }
        outcomes
    };
    let first = outcomes().await;
    assert_eq!(first[2], "rejected by default: LockOut, Some(3600)");
    bench
        .limiter
        .reset_rule(&bench.limiter.policy(), ("default", bench.client("user:bob").key()))
        .await
        .unwrap();
    assert_eq!(outcomes().await, first, "as if the client were new");
    bench
        .limiter
        .reset_rule(&bench.limiter.policy(), ("default", bench.client("user:eve").key()))
        .await
        .unwrap();
    assert_eq!(*lifted.lock().unwrap(), 1, "only a lock-out that exists is lifted");
}

fn leaky(requests: u64) -> Bench<MemoryStore> {
    Bench::new(&format!(
        "rate_limits: {{ default: {{ requests: {requests}, window: 1s, algorithm: leaky_bucket, burst: 100, max_wait: 1h }} }}"
    ))
}

#[tokio::test]
async fn commit_part_of_a_leaky_charge_gives_the_rest_back_exactly() {
    // Intervals of whole ticks, and of fractions of one.
    for requests in [1, 10, 7, 30, 60] {
        let (bench, other) = (leaky(requests), leaky(requests));
        for (reserved, kept) in [(10, 4), (1, 0), (5, 5), (7, 1), (2, 1), (3, 0), (9, 8)] {
            let (reservation, _) = bench.reserve("user:bob", reserved).await;
            assert!(bench.commit(reservation, kept).await);
            if kept > 0 {
                let _ = other.reserve("user:bob", kept).await;
            }
            let delays = (bench.delay("user:bob").await, other.delay("user:bob").await);
            assert_eq!(delays.0, delays.1, "{requests} per second, {kept} of {reserved}");
            for clock in [&bench.clock, &other.clock] {
                clock.advance(TimeSpan::from_micros(123_457));
            }
        }
    }
}

#[tokio::test]
async fn commit_part_of_a_leaky_charge_before_later_ones_gives_nothing_back() {
    for requests in [1, 7, 30] {
        let bench = leaky(requests);
        let (first, _) = bench.reserve("user:bob", 10).await;
        let (last, _) = bench.reserve("user:bob", 6).await;
        let before = bench.delay("user:bob").await;
        assert!(!bench.commit(first, 4).await);
        assert_eq!(bench.delay("user:bob").await, before);
        assert!(bench.commit(last, 2).await);
        assert!(bench.delay("user:bob").await < before);
    }
}

#[tokio::test]
async fn refund_part_of_a_leaky_charge_says_that_nothing_was_refunded() {
    let bench = leaky(10);
    let (_, departure) = bench.reserve("user:bob", 10).await;
    let (policy, client) = (bench.limiter.policy(), bench.client("user:bob"));
    let refund = async |cost| {
        let check = RuleCheck { rule: "default", client: &client, cost: Cost::new(cost) };
        bench.limiter.refund_rule(&policy, check, Some(departure), bench.now()).await.unwrap()
    };
    assert!(!refund(4).await, "a part");
    assert_eq!(bench.delay("user:bob").await, TimeSpan::from_secs(1));
    assert!(refund(10).await, "all");
    assert_eq!(bench.delay("user:bob").await, TimeSpan::ZERO);
    assert!(!refund(10).await, "it is given back once");
}

#[tokio::test]
async fn refund_and_commit_of_charges_under_an_override_are_made() {
    for algorithm in ["token_bucket", "fixed_window", "sliding_window_counter", "sliding_window_log"] {
        let bench = Bench::new(&format!(
            "rate_limits: {{ default: {{ requests: 100, window: 1h, algorithm: {algorithm} }} }}"
        ));
        let (policy, client) = (bench.limiter.policy(), bench.client("user:bob"));
        let spec = Spec::new(50, TimeSpan::from_secs(3_600));
        let limit = Limit::new(algorithm.parse().unwrap(), spec).unwrap();
        let until = bench.now() + TimeSpan::from_secs(60);
        let key = CounterKey::new(RuleId::named("default"), client.key());
        bench.limiter.override_limit(key, Some(Override { limit, until }), bench.now()).await.unwrap();
        let refund = async |charged| {
            let check = RuleCheck { rule: "default", client: &client, cost: Cost::new(5) };
            bench.limiter.refund_rule(&policy, check, Some(charged), bench.now()).await.unwrap()
        };
        let (_, charged) = bench.reserve("user:bob", 5).await;
        assert!(!refund(charged).await, "{algorithm}: whether it was charged under the override is unknown");
        bench.clock.advance(TimeSpan::from_micros(1));
        let (_, charged) = bench.reserve("user:bob", 5).await;
        assert!(refund(charged).await, "{algorithm}");
        let (reservation, _) = bench.reserve("user:bob", 10).await;
        assert!(bench.commit(reservation, 1).await, "{algorithm}");
        let (reservation, _) = bench.reserve("user:bob", 10).await;
        assert!(bench.commit(reservation, 12).await, "{algorithm}: more is charged");
        // Another client has no override.
        let (reservation, _) = bench.reserve("user:eve", 10).await;
        assert!(bench.commit(reservation, 1).await, "{algorithm}");
        bench.clock.advance(TimeSpan::from_secs(130));
        let (_, charged) = bench.reserve("user:bob", 5).await;
        assert!(refund(charged).await, "{algorithm}: the override is over");
    }
}

#[tokio::test]
async fn refund_and_commit_after_a_reset_take_nothing_of_later_charges() {
    for algorithm in ["token_bucket", "fixed_window", "sliding_window_counter", "sliding_window_log"] {
        let bench = Bench::new(&format!(
            "rate_limits: {{ default: {{ requests: 100, window: 1h, algorithm: {algorithm} }} }}"
        ));
        let (policy, client) = (bench.limiter.policy(), bench.client("user:bob"));
        let remaining = async || {
            let check = RuleCheck { rule: "default", client: &client, cost: Cost::ONE };
            let mut scratch = Scratch::default();
            let ruling = bench.limiter.preview_rule(&policy, check, &mut scratch, bench.now()).await;
            served(ruling.expect("a rule")).report.limits()[0].remaining
        };
        let (early, charged) = bench.reserve("user:bob", 50).await;
        bench.clock.advance(TimeSpan::from_micros(1));
        bench.limiter.reset_rule(&policy, ("default", client.key())).await.unwrap();
        bench.clock.advance(TimeSpan::from_micros(1));
        let (late, _) = bench.reserve("user:bob", 40).await;
        let check = RuleCheck { rule: "default", client: &client, cost: Cost::new(50) };
        assert!(
            !bench.limiter.refund_rule(&policy, check, Some(charged), bench.now()).await.unwrap(),
            "{algorithm}"
        );
        assert!(!bench.commit(early, 0).await, "{algorithm}");
        assert_eq!(remaining().await, 60, "{algorithm}");
        assert!(bench.commit(late, 10).await, "{algorithm}");
        assert_eq!(remaining().await, 90, "{algorithm}");
    }
}

#[tokio::test]
async fn on_activation_listener_is_called_with_every_policy() {
    let bench = Bench::new("rate_limits: { default: { requests: 1, window: 1h } }");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    bench.limiter.on_activation(Box::new(move |policy| {
        sink.lock().unwrap().push(policy.matcher.plan().rate_limits.default.as_ref().unwrap().requests);
    }));
    for requests in [2, 3] {
        let policy = format!("rate_limits: {{ default: {{ requests: {requests}, window: 1h }} }}");
        bench.limiter.activate(bench.limiter.prepare(active(&policy)).unwrap());
    }
    assert_eq!(*seen.lock().unwrap(), [1, 2, 3]);
}
