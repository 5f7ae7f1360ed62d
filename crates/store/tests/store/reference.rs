//! The reference store under the conformance suite, and under two threads.

use pollster::block_on;
use tidegate_core::{Algorithm, Check, Key, Limit, Role, RuleId, Span, Spec, Timestamp};
use tidegate_store::conformance::{Suite, two_threads_admit_exactly_the_ideal};
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

#[test]
fn two_threads_together_admit_exactly_the_ideal() {
    for &algorithm in Algorithm::ALL {
        two_threads_admit_exactly_the_ideal(&ReferenceStore::new(), algorithm);
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
