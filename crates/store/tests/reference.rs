//! The reference store under the conformance suite, and under two threads.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests speak through their names and fail by panicking")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use pollster::block_on;
use tidegate_core::{Algorithm, Check, Cost, Key, Limit, Role, RuleId, Span, Spec, Timestamp};
use tidegate_store::conformance::Suite;
use tidegate_store::{ReferenceStore, Store};

const START: Timestamp = Timestamp::from_secs(1_700_000_000);

#[test]
fn passes_the_conformance_suite() {
    let suite = Suite { algorithms: Algorithm::ALL, seed: fastrand::u64(..), traces: 200, steps: 400 };
    let coverage = block_on(suite.run(&ReferenceStore::new()));
    println!("seed {}: {coverage:?}", suite.seed);
}

#[test]
fn each_algorithm_alone_passes_the_conformance_suite() {
    for algorithms in Algorithm::ALL.chunks(1) {
        block_on(Suite { algorithms, seed: 7, traces: 40, steps: 400 }.run(&ReferenceStore::new()));
    }
}

/// Two threads fight over two counters, naming them in opposite order; time stands still, so exactly the
/// smaller limit passes, and the larger one is charged for exactly what passed.
#[test]
fn two_threads_together_admit_exactly_the_ideal() {
    for &algorithm in Algorithm::ALL {
        let limit_of = |requests| Limit::new(algorithm, Spec::new(requests, Span::from_secs(3_600))).unwrap();
        let (narrow, wide) = (limit_of(5_000), limit_of(8_000));
        let store = ReferenceStore::new();
        let checks = [
            Check::new(Key::new(RuleId::named("narrow"), b"client"), &narrow),
            Check::new(Key::new(RuleId::named("wide"), b""), &wide),
        ];
        let mut reversed = checks;
        reversed.reverse();
        let passed = AtomicU64::new(0);
        thread::scope(|scope| {
            for checks in [&checks, &reversed] {
                let (store, passed) = (&store, &passed);
                scope.spawn(move || {
                    for _ in 0..4_000 {
                        if block_on(store.decide(checks, START)).unwrap().passes() {
                            passed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let ideal = narrow.capacity();
        assert_eq!(passed.into_inner(), ideal, "{algorithm}");
        let left = block_on(store.peek(&[checks[1].cost(Cost::ZERO)], START)).unwrap();
        assert_eq!(left.outcomes[0].remaining, wide.capacity() - ideal, "{algorithm}: nothing is lost");
    }
}

#[test]
fn an_advisory_check_is_charged_until_it_is_full_and_refuses_nobody() {
    let limit = Limit::new(Algorithm::FixedWindow, Spec::new(2, Span::from_secs(60))).unwrap();
    let wide = Limit::new(Algorithm::FixedWindow, Spec::new(5, Span::from_secs(60))).unwrap();
    let store = ReferenceStore::new();
    let shadow = Check::new(Key::new(RuleId::named("shadow"), b"a"), &limit).role(Role::Advisory);
    let binding = Check::new(Key::new(RuleId::named("binding"), b"a"), &wide);
    let decisions: Vec<_> =
        (0..6).map(|_| block_on(store.decide(&[shadow, binding], START)).unwrap()).collect();
    let passes: Vec<_> = decisions.iter().map(tidegate_core::Decision::passes).collect();
    assert_eq!(passes, [true, true, true, true, true, false]);
    let would_refuse: Vec<_> = decisions.iter().map(|one| !one.outcomes[0].verdict.is_pass()).collect();
    assert_eq!(would_refuse, [false, false, true, true, true, true]);
}

#[test]
#[ignore = "long: cargo xtask scorecard equivalence"]
fn long_equivalence() {
    let suite = Suite { algorithms: Algorithm::ALL, seed: fastrand::u64(..), traces: 20_000, steps: 500 };
    println!("reference store: seed {}", suite.seed);
    println!("reference store: {:?}, 0 mismatches", block_on(suite.run(&ReferenceStore::new())));
}
