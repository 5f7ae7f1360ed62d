use std::sync::Arc;

use proptest::prelude::*;
use tidegate_core::{BreakerConfig, BreakerState, CallOutcome, SlowCalls, WindowLength};
use tidegate_policy::{BreakerPlan, BreakerScope, EjectPlan, ResiliencePlan};
use tidegate_store::{Clock, ManualClock};

use super::*;
use crate::upstream::server::UpstreamGroup;
use crate::upstream::server::tests::{URLS, group};

const START: Timestamp = Timestamp::from_secs(1_700_000_000);
const ATTACKER: ClientId = ClientId(1);
const VICTIM: ClientId = ClientId(2);
const OTHER: ClientId = ClientId(3);
const SERVERS: usize = 2;

#[test]
fn client_id_is_an_ipv4_address_or_an_ipv6_network() {
    let id = |peer: &str| ClientId::new(&Addresses::default(), peer.parse().unwrap());
    assert_ne!(id("192.0.2.1"), id("192.0.2.2"));
    assert_eq!(id("192.0.2.1"), id("::ffff:192.0.2.1"));
    assert_eq!(id("2001:db8:1:2::1"), id("2001:db8:1:2:ffff::9"));
    assert_ne!(id("2001:db8:1:2::1"), id("2001:db8:1:3::1"));
}

#[test]
fn success_of_another_client_is_remembered_for_five_to_ten_seconds() {
    let successes = RecentSuccesses::default();
    let has_other = |client, seconds| successes.has_other(client, START + TimeSpan::from_secs(seconds));
    assert!(!has_other(ATTACKER, 0), "nobody has succeeded");
    successes.record(VICTIM, START);
    assert!((0..=5).all(|seconds| has_other(ATTACKER, seconds)));
    assert!(!has_other(ATTACKER, 10));
    assert!(!has_other(VICTIM, 0), "its own success does not count");
    successes.record(OTHER, START);
    assert!(has_other(VICTIM, 0));
    let early = START - TimeSpan::from_secs(60);
    assert!(successes.has_other(ATTACKER, early), "a request that takes long");
    successes.record(ATTACKER, early);
    assert!(!successes.has_other(VICTIM, START + TimeSpan::from_secs(10)), "an old success is not a new one");
}

fn count(shares: &FailureShares, client: ClientId, in_a_row: u32, has_others: bool) -> bool {
    shares.count(client, Thresholds { in_a_row: Some(in_a_row), window: None }, has_others)
}

#[test]
fn client_counts_for_half_of_the_failures_in_a_row_and_two_clients_for_all() {
    for most in 1..=9_u32 {
        let shares = FailureShares::default();
        let failures = |client, has_others| {
            (0..most * 3).map(|_| u32::from(count(&shares, client, most, has_others))).sum::<u32>()
        };
        assert_eq!(failures(ATTACKER, true), most / 2);
        assert_eq!(failures(VICTIM, true), most - most / 2, "two halves");
        shares.end_streak();
        assert_eq!(failures(ATTACKER, true), most / 2);
        assert_eq!(failures(ATTACKER, false), most * 3, "it is alone");
    }
}

#[test]
fn clients_beyond_the_room_of_the_table_count_too() {
    let shares = FailureShares::default();
    assert!((0..100).all(|client| count(&shares, ClientId(client), 5, true)));
    assert!(shares.lock().clients.len() <= MAX_CLIENTS);
}

/// What a client does, at which server, and the time until then.
#[derive(Clone, Copy, Debug)]
struct Call {
    outcome: CallOutcome,
    is_slow: bool,
    server: usize,
    wait: TimeSpan,
    is_connect_error: bool,
}

const FAILURE: Call = Call {
    outcome: CallOutcome::Failure,
    is_slow: false,
    server: 0,
    wait: TimeSpan::ZERO,
    is_connect_error: false,
};

struct Target {
    group: UpstreamGroup,
    clock: Arc<ManualClock>,
}

impl Target {
    fn new(config: BreakerConfig, scope: BreakerScope, eject_after: u32) -> Self {
        let eject = EjectPlan { after: eject_after, ..EjectPlan::default() };
        let breaker = Some(BreakerPlan { config, scope });
        let plan = ResiliencePlan { breaker, eject: Some(eject), ..ResiliencePlan::default() };
        let (group, clock) = group(&URLS[..SERVERS], plan);
        Self { group, clock }
    }

    fn call(&self, client: ClientId, call: Call) {
        let counts_fully = call.is_connect_error;
        let evidence = Evidence { client, at: self.clock.now(), counts_fully };
        let permit = self.group.resilience.breakers.try_acquire(call.server, client);
        if call.is_slow {
            self.clock.advance(TimeSpan::from_secs(2));
        }
        if let Ok(Some(permit)) = permit {
            let has_others = || self.group.serves_others(call.server, evidence);
            permit.record(call.outcome, counts_fully, has_others);
        }
        self.group.record_outcome(call.server, call.outcome, evidence);
    }

    /// Other clients succeed at all servers.
    fn serve_others(&self) {
        for (client, server) in
            [VICTIM, OTHER].into_iter().flat_map(|client| (0..SERVERS).map(move |s| (client, s)))
        {
            let call = Call { outcome: CallOutcome::Success, server, ..FAILURE };
            self.call(client, call);
        }
    }

    fn is_unharmed(&self) -> bool {
        let breakers = &self.group.resilience.breakers;
        let own = (0..SERVERS).filter_map(|server| breakers.of_server(server));
        let is_closed = own.chain(breakers.shared()).all(|breaker| breaker.state() == BreakerState::Closed);
        let now = self.clock.now();
        is_closed && self.group.servers.iter().all(|server| server.ejected_for(now).is_none())
    }
}

prop_compose! {
    fn config()(
        failures in proptest::option::of(1_u32..8),
        failure_rate in proptest::option::of(1_u32..=100),
        slow_rate in proptest::option::of(1_u32..=100),
        window in prop_oneof![(1_u64..20).prop_map(|seconds| WindowLength::Time(TimeSpan::from_secs(seconds))), (30_u32..60).prop_map(WindowLength::Calls)],
        min_calls in 1_u32..30,
    ) -> BreakerConfig {
        let slow = slow_rate.map(|rate| SlowCalls { over: TimeSpan::from_secs(2), rate: Ratio::from_percent(rate) });
        let failure_rate = failure_rate.map(Ratio::from_percent);
        let failures = failures.or((failure_rate.is_none() && slow.is_none()).then_some(5));
        BreakerConfig { failures, failure_rate, slow, window, min_calls, ..BreakerConfig::default() }
    }
}

prop_compose! {
    fn call()(
        has_failed in prop::bool::weighted(0.8),
        is_slow in prop::bool::weighted(0.3),
        server in 0..SERVERS,
        millis in prop_oneof![Just(0_u64), 0_u64..3_000],
    ) -> Call {
        let outcome = if has_failed { CallOutcome::Failure } else { CallOutcome::Success };
        Call { outcome, is_slow, server, wait: TimeSpan::from_millis(millis), ..FAILURE }
    }
}

fn scope() -> impl Strategy<Value = BreakerScope> {
    prop_oneof![Just(BreakerScope::Server), Just(BreakerScope::Upstream)]
}

#[test]
fn client_whose_probe_is_slow_leaves_the_next_one_to_others() {
    let over = TimeSpan::from_secs(1);
    let slow = Some(SlowCalls { over, rate: Ratio::from_percent(50) });
    let config =
        BreakerConfig { failures: Some(1), slow, open_jitter: Ratio::ZERO, ..BreakerConfig::default() };
    let target = Target::new(config, BreakerScope::Upstream, 100);
    target.call(VICTIM, Call { is_connect_error: true, ..FAILURE });
    target.clock.advance(config.open_for);
    target.call(ATTACKER, Call { outcome: CallOutcome::Success, is_slow: true, ..FAILURE });
    assert!(!target.is_unharmed());
    target.clock.advance(config.open_for);
    let breakers = &target.group.resilience.breakers;
    assert!(breakers.try_acquire(0, ATTACKER).is_err());
    assert!(breakers.try_acquire(0, VICTIM).is_ok());
}

#[test]
fn failures_of_a_client_that_raised_the_threshold_before_leave_the_breaker_to_others() {
    let window = WindowLength::Time(TimeSpan::from_secs(10));
    let failure_rate = Some(Ratio::from_percent(50));
    let config = BreakerConfig { failures: None, failure_rate, window, ..BreakerConfig::default() };
    let target = Target::new(config, BreakerScope::Upstream, 100);
    let calls = |client, outcome, count| {
        (0..count).for_each(|_| target.call(client, Call { outcome, ..FAILURE }));
    };
    target.serve_others();
    calls(ATTACKER, CallOutcome::Success, 200);
    target.clock.advance(TimeSpan::from_secs(8));
    target.serve_others();
    calls(ATTACKER, CallOutcome::Failure, 200);
    target.clock.advance(TimeSpan::from_secs(4));
    calls(VICTIM, CallOutcome::Success, 20);
    calls(OTHER, CallOutcome::Success, 20);
    calls(OTHER, CallOutcome::Failure, 1);
    assert!(target.is_unharmed(), "one failure of another client");
    for client in 10..40 {
        calls(ClientId(client), CallOutcome::Failure, 10);
    }
    assert!(!target.is_unharmed(), "many clients fail");
}

#[test]
fn client_that_fails_most_is_not_forgotten_when_many_others_fail_now_and_then() {
    let failure_rate = Some(Ratio::from_percent(50));
    let config = BreakerConfig { failures: None, failure_rate, ..BreakerConfig::default() };
    let target = Target::new(config, BreakerScope::Upstream, 100);
    let call = |client, outcome| target.call(ClientId(client), Call { outcome, ..FAILURE });
    for turn in 0..200 {
        (0..20).for_each(|client| call(1_000 + client, CallOutcome::Success));
        call(10_000 + turn, CallOutcome::Failure);
        // The table is full when it begins.
        let failures = if turn < 50 { 0 } else { 40 };
        (0..failures).for_each(|_| call(ATTACKER.0, CallOutcome::Failure));
        target.clock.advance(TimeSpan::from_millis(500));
        assert!(target.is_unharmed(), "{turn}");
    }
}

#[test]
fn client_leaves_half_of_the_retries_to_others_also_when_many_others_retry() {
    let shares = FailureShares::default();
    let budget = |left| {
        let window = Some(WindowThreshold::of_budget(left, START));
        Thresholds { in_a_row: None, window }
    };
    (100..150).for_each(|client| assert!(shares.count(ClientId(client), budget(1_000), true)));
    let mut left: u64 = 100;
    for client in 200..300 {
        for _ in 0..10 {
            left -= u64::from(shares.count(ATTACKER, budget(left), true));
        }
        shares.count(ClientId(client), budget(left), true);
    }
    assert!(left >= 49, "{left}");
}

proptest! {
    #[test]
    fn one_client_never_opens_a_breaker_or_ejects_a_server_while_others_succeed(
        config in config(),
        scope in scope(),
        eject_after in 1_u32..8,
        calls in prop::collection::vec(call(), 1..200),
    ) {
        let target = Target::new(config, scope, eject_after);
        target.serve_others();
        let mut served = target.clock.now();
        for call in calls {
            target.clock.advance(call.wait);
            if target.clock.now().since(served) >= MEMORY {
                target.serve_others();
                served = target.clock.now();
            }
            target.call(ATTACKER, call);
            prop_assert!(target.is_unharmed(), "{call:?}");
        }
    }

    #[test]
    fn client_that_is_alone_opens_a_breaker_with_as_many_failures_as_it_takes(
        failures in 1_u32..8,
        scope in scope(),
    ) {
        let config = BreakerConfig { failures: Some(failures), ..BreakerConfig::default() };
        let target = Target::new(config, scope, 100);
        target.serve_others();
        target.clock.advance(TimeSpan::from_secs(10));
        for _ in 0..failures {
            prop_assert!(target.is_unharmed());
            target.call(ATTACKER, FAILURE);
        }
        prop_assert!(!target.is_unharmed());
    }

    #[test]
    fn connect_errors_of_one_client_open_a_breaker_although_others_have_succeeded(
        failures in 1_u32..8,
        scope in scope(),
    ) {
        let config = BreakerConfig { failures: Some(failures), ..BreakerConfig::default() };
        let target = Target::new(config, scope, 100);
        target.serve_others();
        for _ in 0..failures {
            prop_assert!(target.is_unharmed());
            target.call(ATTACKER, Call { is_connect_error: true, ..FAILURE });
        }
        prop_assert!(!target.is_unharmed());
    }
}
