//! Rulings on requests.

use tidegate_core::{Check, Cost, CounterKey, Limit, RuleId, Spec, TimeSpan, Timestamp};
use tidegate_limiter::Ruling;
use tidegate_policy::{Ban, Bans, Subject};

use crate::{Bench, START, active, describe, refused, served};

const HOURLY: &str = "rate_limits: { default: { requests: 2, window: 1h, algorithm: fixed_window } }";

#[tokio::test]
async fn check_beyond_limit_rejects_and_names_the_limit() {
    let bench = Bench::new(HOURLY);
    assert_eq!(bench.outcome("/").await, "admitted, 1 left of default");
    assert_eq!(bench.outcome("/").await, "admitted, 0 left of default");
    assert_eq!(bench.outcome("/").await, "rejected by default: Limit, Some(3600)");
    bench.clock.advance(TimeSpan::from_secs(3_600));
    assert_eq!(bench.outcome("/").await, "admitted, 1 left of default");
}

#[tokio::test]
async fn tiers_free_pro_and_enterprise_admit_100_1_000_and_10_000_an_hour() {
    let bench = Bench::new(
        "clients: { api_key: { header: X-API-Key }, tiers: { file: keys.csv, default: free } }\nrate_limits:\n  tiers:\n    \
         free: { requests: 100, window: 1h }\n    pro: { requests: 1_000, window: 1h }\n    enterprise: { requests: 10_000, \
         window: 1h }",
    );
    let headers = [&[("x-api-key", "fred")][..], &[("x-api-key", "paula")], &[("x-api-key", "enno")], &[]];
    let mut admitted = [0; 4];
    for (headers, count) in headers.into_iter().zip(&mut admitted) {
        while bench.check("/", headers, |ruling| matches!(ruling, Ruling::Serve(_))).await {
            *count += 1;
        }
    }
    assert_eq!(admitted, [100, 1_000, 10_000, 100], "a client without a key has the default tier");
}

#[tokio::test]
async fn check_several_limits_charges_all_or_none() {
    let bench = Bench::new(
        "rate_limits:\n  global: { requests: 5, window: 1h, algorithm: fixed_window }\n  endpoints: { /search: { requests: 1, \
         window: 1h, algorithm: fixed_window } }",
    );
    assert_eq!(bench.outcome("/search").await, "admitted, 0 left of endpoint:/search");
    for _ in 0..3 {
        assert_eq!(bench.outcome("/search").await, "rejected by endpoint:/search: Limit, Some(3600)");
    }
    assert_eq!(bench.outcome("/").await, "admitted, 3 left of global", "rejected requests were not charged");
    let limits = bench.check("/search", &[], |ruling| {
        let refuse = refused(ruling);
        assert_eq!(refuse.rule, Some(RuleId::named("endpoint:/search")));
        assert_eq!(refuse.report.violated().collect::<Vec<_>>(), ["endpoint:/search"]);
        refuse.report.limits().iter().map(|limit| limit.name.to_owned()).collect::<Vec<_>>()
    });
    assert_eq!(limits.await, ["global", "endpoint:/search"]);
}

#[tokio::test]
async fn check_banned_or_exempt_client_checks_no_limit() {
    let bench = Bench::new(&format!("{HOURLY}\nclients: {{ exempt: {{ networks: [192.0.2.0/24] }} }}"));
    for _ in 0..5 {
        assert_eq!(bench.outcome("/").await, "exempt");
    }
    let subject = Subject::parse("192.0.2.1", 64).unwrap();
    let until = Some(START + TimeSpan::from_secs(60));
    let ban = Ban { subject, reason: String::new(), since: START, until };
    bench.limiter.ban(Bans::new([ban]));
    assert_eq!(bench.outcome("/").await, "banned", "a ban overrides an exemption");
    bench.clock.advance(TimeSpan::from_secs(60));
    assert_eq!(bench.outcome("/").await, "exempt");
    let banned = Bench::new(&format!("{HOURLY}\nbans: {{ networks: [192.0.2.0/24] }}"));
    assert_eq!(banned.outcome("/").await, "banned");
}

#[tokio::test]
async fn check_locked_out_client_charges_nothing_and_returns_remaining_time() {
    let policy = "rate_limits: { default: { requests: 1, window: 10s, algorithm: fixed_window, penalty: { after: 2, for: 1m } } }";
    let bench = Bench::new(policy);
    assert_eq!(bench.outcome("/").await, "admitted, 0 left of default");
    assert_eq!(bench.outcome("/").await, "rejected by default: Limit, Some(10)");
    assert_eq!(bench.outcome("/").await, "rejected by default: LockOut, Some(60)");
    bench.clock.advance(TimeSpan::from_secs(30));
    assert_eq!(bench.outcome("/").await, "rejected by default: LockOut, Some(30)");
    bench.clock.advance(TimeSpan::from_secs(30));
    assert_eq!(bench.outcome("/").await, "admitted, 0 left of default", "nothing was charged meanwhile");
}

#[tokio::test]
async fn check_all_permits_taken_rejects_until_one_is_dropped() {
    let bench = Bench::new("rate_limits: { rules: [{ name: exports, per: [ip], concurrent: 1 }] }");
    let permits = bench.check("/", &[], |ruling| served(ruling).permits);
    let permits = permits.await;
    assert_eq!(bench.limiter.permits().in_use(), 1);
    assert_eq!(bench.outcome("/").await, "rejected by exports: Concurrency, Some(1)");
    drop(permits);
    assert_eq!(bench.outcome("/").await, "admitted");
    assert_eq!(bench.limiter.permits().in_use(), 0, "the ruling was dropped, and its permit with it");
}

#[tokio::test]
async fn check_rejected_by_several_limits_reports_the_one_that_sets_retry_after() {
    let bench = Bench::new(
        "rate_limits:\n  default: { requests: 2, window: 10s, algorithm: fixed_window }\n  endpoints: { /x: { requests: 1, \
         window: 1h, algorithm: fixed_window } }\n  rules: [{ name: exports, match: { path: /y }, per: [ip], concurrent: 1 }, \
         { name: login, match: { path: /z }, requests: 1, window: 5s, algorithm: fixed_window, penalty: { after: 1, for: 30s } }]",
    );
    let permits = bench.check("/y", &[], |ruling| served(ruling).permits).await;
    assert_eq!(bench.outcome("/x").await, "admitted, 0 left of default");
    assert_eq!(bench.outcome("/x").await, "rejected by endpoint:/x: Limit, Some(3600)");
    assert_eq!(
        bench.outcome("/y").await,
        "rejected by default: Limit, Some(10)",
        "longer than a permit is awaited"
    );
    drop(permits);
    bench.clock.advance(TimeSpan::from_secs(10));
    let permits = bench.check("/y", &[], |ruling| served(ruling).permits).await;
    assert_eq!(bench.outcome("/y").await, "rejected by exports: Concurrency, Some(1)");
    assert_eq!(bench.outcome("/z").await, "admitted, 0 left of default");
    assert_eq!(bench.outcome("/z").await, "rejected by login: LockOut, Some(30)");
    bench.clock.advance(TimeSpan::from_secs(25));
    assert_eq!(bench.outcome("/y").await, "rejected by exports: Concurrency, Some(1)");
    for _ in 0..2 {
        assert_eq!(bench.outcome("/").await.split(',').next(), Some("admitted"));
    }
    assert_eq!(bench.outcome("/z").await, "rejected by login: LockOut, Some(5)");
    drop(permits);
}

#[tokio::test]
async fn check_rules_in_shadow_mode_admits_and_lists_shadow_actions() {
    let bench = Bench::new(
        "rate_limits:\n  default: { requests: 1, window: 1h, algorithm: fixed_window, mode: shadow }\n  rules: [{ name: exports, \
         per: [ip], concurrent: 1, mode: shadow }]",
    );
    let first = bench.check("/", &[], |ruling| {
        let serve = served(ruling);
        (serve.permits, serve.report.shadow_actions().count())
    });
    let (_permits, shadow) = first.await;
    assert_eq!(shadow, 0);
    let second = bench.check("/", &[], |ruling| {
        let report = served(ruling).report;
        assert!(report.limits().is_empty(), "limits in shadow mode are not reported to clients");
        report.shadow_actions().map(|action| action.rule).collect::<Vec<_>>()
    });
    assert_eq!(second.await, [RuleId::named("exports"), RuleId::named("default")]);
}

#[tokio::test]
async fn check_locked_out_client_lists_no_shadow_actions() {
    let bench = Bench::new(
        "rate_limits:\n  default: { requests: 1, window: 10s, algorithm: fixed_window, penalty: { after: 1, for: 1m } }\n  global: \
         { requests: 1, window: 1h, algorithm: fixed_window, mode: shadow }",
    );
    let count = |ruling: Ruling<'_>| ruling.report().shadow_actions().count();
    let mut counts = Vec::new();
    for _ in 0..3 {
        counts.push(bench.check("/", &[], count).await);
    }
    assert_eq!(counts, [0, 1, 0], "admitted, rejected by the limit, locked out");
}

#[tokio::test]
async fn check_leaky_bucket_admits_with_delay() {
    let bench = Bench::new(
        "rate_limits: { default: { requests: 1, window: 1s, algorithm: leaky_bucket, burst: 3, max_wait: 5s } }",
    );
    for seconds in 0..3 {
        let delay = bench.check("/", &[], |ruling| served(ruling).delay);
        assert_eq!(delay.await, TimeSpan::from_secs(seconds));
    }
    assert!(bench.outcome("/").await.starts_with("rejected by default: Limit"));
}

#[tokio::test]
async fn check_rule_shares_counters_with_requests() {
    let bench = Bench::new(
        "rate_limits:\n  default: { requests: 3, window: 1h, algorithm: fixed_window }\n  global: { requests: 100, window: 1h, \
         algorithm: fixed_window }",
    );
    let client = bench.check("/", &[], |ruling| served(ruling).report.client().to_vec());
    let client = client.await;
    let two = bench.rule("default", &client, Cost::new(2)).await;
    assert_eq!(two, "admitted, 0 left of default");
    let one = bench.rule("default", &client, Cost::ONE).await;
    assert_eq!(one, "rejected by default: Limit, Some(3600)");
    for client in [&b"ann"[..], b"bob"] {
        assert!(bench.rule("global", client, Cost::new(10)).await.starts_with("admitted"));
    }
    let all = bench.rule("global", b"eve", Cost::ZERO).await;
    assert_eq!(all, "admitted, 79 left of global", "all clients together");
    assert_eq!(bench.rule("nothing", &client, Cost::ONE).await, "no rule");
}

#[tokio::test]
async fn check_limits_counts_by_the_supplied_limit() {
    let bench = Bench::new(HOURLY);
    let limit =
        Limit::new(tidegate_core::Algorithm::TokenBucket, Spec::new(3, TimeSpan::from_secs(60))).unwrap();
    let check = Check::new(CounterKey::new(RuleId::named("throttle"), b"ann"), &limit);
    let mut left = Vec::new();
    for _ in 0..4 {
        let decision = bench.limiter.check_limits(&[check], bench.now()).await.unwrap();
        left.push((decision.passes(), decision.outcomes[0].remaining));
    }
    assert_eq!(left, [(true, 2), (true, 1), (true, 0), (false, 0)]);
}

#[tokio::test]
async fn activate_replaces_the_policy_and_keeps_the_counters() {
    let bench = Bench::new(HOURLY);
    let before = bench.limiter.policy();
    assert_eq!(bench.outcome("/").await, "admitted, 1 left of default");
    let wider = "rate_limits: { default: { requests: 5, window: 1h, algorithm: fixed_window } }";
    let prepared = bench.limiter.prepare(active(wider)).unwrap();
    assert_eq!(bench.outcome("/").await, "admitted, 0 left of default", "nothing has changed yet");
    bench.limiter.activate(prepared);
    assert_eq!(bench.outcome("/").await, "admitted, 2 left of default");
    assert_eq!(before.matcher.plan().rate_limits.default.as_ref().unwrap().requests, 2);
    assert_eq!(bench.now(), Timestamp::from_secs(1_800_000_000));
}

#[tokio::test]
async fn expired_token_counts_its_user_and_locks_nobody_out() {
    /// Tokens of one user, without and with `exp`.
    const OLD: &str = "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4ifQ.e6DKsshciTsQeTEBx-EQsgYCQrefw7DpTVxue2PLJ8c";
    const VALID: &str = "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjQwMDAwMDAwMDB9.IozyuP8J7ZT9__NFGk3Z_Xq-KKNzOxIljPKaFCeJlXc";
    let bench = Bench::new(
        "
clients: { identify_by: [user, ip], user: { jwt: { secret_file: jwt.secret } } }
rate_limits: { default: { requests: 2, window: 1m, algorithm: fixed_window, penalty: { after: 2, for: 1h } } }",
    );
    let outcome =
        async |token| bench.check("/", &[("authorization", token)], |ruling| describe(&ruling)).await;
    assert_eq!(outcome(OLD).await, "admitted, 1 left of default");
    assert_eq!(outcome(VALID).await, "admitted, 0 left of default");
    for _ in 0..5 {
        assert_eq!(outcome(OLD).await, "rejected by default: Limit, Some(60)");
    }
    assert_eq!(outcome(VALID).await, "rejected by default: Limit, Some(60)");
    assert_eq!(outcome(VALID).await, "rejected by default: LockOut, Some(3600)");
    assert_eq!(outcome(OLD).await, "rejected by default: LockOut, Some(3600)", "of the same user");
}
