//! How long a rejected request has to wait, for its own cost.

use tidegate_core::{Check, Cost, CounterKey, CounterState, Limit, TimeSpan, Timestamp, Verdict};
use tidegate_store::{Override, Store};
use tidegate_testkit::process::RedisServer;

use super::{LEASED, RULE, START, limit, nodes};

const MINUTE: TimeSpan = TimeSpan::from_secs(60);

struct WaitCase {
    /// The units that are spent before, and when, in seconds.
    spent: &'static [(u64, u64)],
    /// The costs of the requests that are rejected then. Later ones are larger or smaller than those before.
    rejected: &'static [u64],
}

const CASES: [WaitCase; 4] = [
    WaitCase { spent: &[(0, 10)], rejected: &[1, 4, 10, 2] },
    // Units of the lease are left.
    WaitCase { spent: &[(0, 8)], rejected: &[5, 3, 9, 10] },
    // In a sliding window, those of the window before count too.
    WaitCase { spent: &[(0, 6), (65, 5)], rejected: &[1, 3, 7, 10] },
    WaitCase { spent: &[(0, 6), (65, 3)], rejected: &[4, 6, 10, 5] },
];

fn wait(verdict: Verdict) -> Option<TimeSpan> {
    match verdict {
        Verdict::Pass { .. } => None,
        Verdict::NotUntil { retry_after } => Some(retry_after),
        Verdict::Never => panic!("every cost fits the limit"),
    }
}

/// Spends, and compares the waits of rejected costs with those of the algorithm itself.
async fn assert_waits(store: &impl Store, check: Check<'_>, applies: &Limit, case: &WaitCase) {
    let (mut state, mut now) = (CounterState::default(), START);
    for (second, units) in case.spent {
        now = START + TimeSpan::from_secs(*second);
        for _ in 0..*units {
            let expected = applies.step(&mut state, now, Cost::ONE).verdict.is_pass();
            assert_eq!(store.decide(&[check], now).await.unwrap().passes(), expected);
        }
    }
    for cost in case.rejected {
        let cost = Cost::new(*cost);
        let Some(expected) = wait(applies.evaluate(&state, now, cost).verdict) else { continue };
        let decision = store.decide(&[check.cost(cost)], now).await.unwrap();
        assert_eq!(
            wait(decision.verdict),
            Some(expected),
            "{}: {:?}, {cost:?}",
            applies.algorithm(),
            case.spent
        );
    }
}

#[tokio::test]
async fn rejection_says_when_its_own_cost_fits_whatever_was_rejected_before() {
    let server = RedisServer::start();
    let store = &nodes(&server, 1)[0];
    for algorithm in LEASED {
        let limit = limit(algorithm, 10, MINUTE);
        for (number, case) in CASES.iter().enumerate() {
            // A bucket does not drain while its units are leased.
            if algorithm == LEASED[0] && case.spent.len() > 1 {
                continue;
            }
            let client = format!("{algorithm} {number}");
            let check = Check::new(CounterKey::new(RULE, client.as_bytes()), &limit);
            assert_waits(store, check, &limit, case).await;
        }
    }
}

#[tokio::test]
async fn rejection_under_an_override_says_when_its_own_cost_fits() {
    let server = RedisServer::start();
    let store = &nodes(&server, 1)[0];
    for algorithm in LEASED {
        let [own, other] = [5, 10].map(|requests| limit(algorithm, requests, MINUTE));
        let key = CounterKey::new(RULE, algorithm.name().as_bytes());
        let until = Timestamp::from_secs(START.as_micros() / 1_000_000 + 3_600);
        store.override_limit(key, Some(Override { limit: other, until }), START).await.unwrap();
        assert_waits(store, Check::new(key, &own), &other, &CASES[0]).await;
    }
}
