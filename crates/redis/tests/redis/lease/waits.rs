//! How long a rejected request has to wait, for its own cost.

use tidegate_core::{Check, Cost, CounterKey, CounterState, Limit, TimeSpan, Timestamp, Verdict};
use tidegate_store::{Override, Store};
use tidegate_testkit::process::RedisServer;

use super::{LEASED, RULE, START, limit, nodes};

const MINUTE: TimeSpan = TimeSpan::from_secs(60);

/// What is spent before, and the costs of the requests that are rejected then. Later costs are larger or smaller than those before.
const CASES: [(&[(u64, u64)], &[u64]); 4] = [
    (&[(0, 10)], &[1, 4, 10, 2]),
    // Units of the lease are left.
    (&[(0, 8)], &[5, 3, 9, 10]),
    // In a sliding window, those of the window before count too.
    (&[(0, 6), (65, 5)], &[1, 3, 7, 10]),
    (&[(0, 6), (65, 3)], &[4, 6, 10, 5]),
];

fn wait(verdict: Verdict) -> Option<TimeSpan> {
    match verdict {
        Verdict::Pass { .. } => None,
        Verdict::NotUntil { retry_after } => Some(retry_after),
        Verdict::Never => panic!("every cost fits the limit"),
    }
}

/// Spends, and compares the waits of rejected costs with those of the algorithm itself.
async fn assert_waits(store: &impl Store, check: Check<'_>, applies: &Limit, case: usize) {
    let (spent, costs) = CASES[case];
    let (mut state, mut now) = (CounterState::default(), START);
    for (second, units) in spent {
        now = START + TimeSpan::from_secs(*second);
        for _ in 0..*units {
            let expected = applies.step(&mut state, now, Cost::ONE).verdict.is_pass();
            assert_eq!(store.decide(&[check], now).await.unwrap().passes(), expected);
        }
    }
    for cost in costs {
        let cost = Cost::new(*cost);
        let Some(expected) = wait(applies.evaluate(&state, now, cost).verdict) else { continue };
        let decision = store.decide(&[check.cost(cost)], now).await.unwrap();
        assert_eq!(wait(decision.verdict), Some(expected), "{}: case {case}, {cost:?}", applies.algorithm());
    }
}

#[tokio::test]
async fn rejection_says_when_its_own_cost_fits_whatever_was_rejected_before() {
    let server = RedisServer::start();
    let store = &nodes(&server, 1)[0];
    for algorithm in LEASED {
        let limit = limit(algorithm, 10, MINUTE);
        for case in 0..CASES.len() {
            // A bucket does not drain while its units are leased.
            if algorithm == LEASED[0] && CASES[case].0.len() > 1 {
                continue;
            }
            let client = format!("{algorithm} {case}");
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
        assert_waits(store, Check::new(key, &own), &other, 0).await;
    }
}
