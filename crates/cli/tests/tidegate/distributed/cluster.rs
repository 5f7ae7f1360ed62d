//! A cluster changes under load: failovers, moved slots and forgotten scripts.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_testkit::client::{LoadClock, LoadPlan, SteadyLoad};
use tidegate_testkit::process::RedisCluster;
use tidegate_testkit::wait::eventually_blocking;

use super::fleet::{FallbackStart, Fleet, FleetLimit};
use super::samples::{Samples, index};

/// Their counters are in slots of all primaries. Each sends more than its limit.
const CLIENTS: usize = 12;

fn client_of(number: usize) -> usize {
    number % CLIENTS
}

/// What happens to the cluster.
#[derive(Clone, Copy, Debug)]
enum ClusterChange {
    /// SIGKILL; its replica takes over.
    PrimaryKilled,
    /// `CLUSTER FAILOVER`.
    FailedOver,
    /// Slots move with their keys.
    SlotsMoved,
    /// `SCRIPT FLUSH` on all nodes.
    ScriptsFlushed,
}

const CHANGES: [ClusterChange; 4] = [
    ClusterChange::PrimaryKilled,
    ClusterChange::FailedOver,
    ClusterChange::SlotsMoved,
    ClusterChange::ScriptsFlushed,
];

impl ClusterChange {
    /// Makes the change and waits until the cluster has completed it.
    fn make(self, cluster: &mut RedisCluster, load: &SteadyLoad) {
        match self {
            Self::PrimaryKilled => {
                cluster.nodes[0].kill();
                eventually_blocking("the replica takes over", || cluster.primary_of(0, 2) == Some(3));
                load.wait_for_responses(50);
                cluster.nodes[0].restart();
            }
            Self::FailedOver => {
                assert_eq!(cluster.nodes[4].command(&["CLUSTER", "FAILOVER"]), "OK");
                eventually_blocking("the replica takes over", || cluster.primary_of(8_000, 2) == Some(4));
            }
            Self::SlotsMoved => move_slots(cluster, load),
            Self::ScriptsFlushed => {
                for node in &cluster.nodes {
                    assert_eq!(node.command(&["SCRIPT", "FLUSH", "SYNC"]), "OK");
                }
            }
        }
    }
}

/// Moves slots that contain keys from the last primary to that of slot 0.
fn move_slots(cluster: &RedisCluster, load: &SteadyLoad) {
    let (from, to) = (2, cluster.primary_of(0, 2).unwrap());
    let keys = cluster.nodes[from].command(&["KEYS", "tg:*"]);
    assert!(!keys.is_empty(), "the last primary has keys");
    let slot_of = |key: &str| cluster.nodes[from].command(&["CLUSTER", "KEYSLOT", key]).parse().unwrap();
    let slots: BTreeSet<u16> = keys.lines().map(slot_of).take(3).collect();
    for slot in slots {
        cluster.move_slot(slot, from, to, || load.wait_for_responses(4));
    }
}

/// A change and the windows in which it took place.
struct ChangeTimes {
    change: ClusterChange,
    began: Duration,
    ended: Duration,
}

/// A run: what clients saw, and when.
struct ClusterRun {
    samples: Samples,
    times: Vec<ChangeTimes>,
    /// When the gateways began to decide without a primary.
    fallbacks: Vec<FallbackStart>,
}

/// Makes `changes` one after the other, with `responses` before and after each.
fn run(changes: &[ClusterChange], limit: FleetLimit, plan: LoadPlan, responses: usize) -> ClusterRun {
    let clock = LoadClock::start();
    let mut cluster = RedisCluster::start();
    let fleet = Fleet::start(&cluster.url(), "fallback_share: 50%", limit);
    fleet.wait_until_complete();
    let (watch, load) = (fleet.watch(clock), fleet.load(plan, clock));
    let mut times = Vec::new();
    for change in changes {
        load.wait_for_responses(responses);
        let began = clock.now();
        change.make(&mut cluster, &load);
        fleet.wait_until_normal();
        times.push(ChangeTimes { change: *change, began, ended: clock.now() });
    }
    load.wait_for_responses(responses);
    fleet.wait_until_complete();
    ClusterRun { samples: Samples(load.finish()), times, fallbacks: watch.finish() }
}

/// Asserts what must hold on a machine of any speed.
fn check_outcome(change: ClusterChange) {
    let limit = FleetLimit { requests: 10, window: Duration::from_secs(1), algorithm: "fixed_window" };
    let plan = LoadPlan { connections: 2, interval: Duration::from_millis(20), client: client_of };
    let ClusterRun { samples, .. } = run(&[change], limit, plan, 100);
    assert_eq!(samples.failures(), 0);
    let most = samples.most(limit.window, |_| true);
    assert!(most <= limit.requests * 3 / 2, "{most} in one window");
}

#[test]
fn cluster_primary_killed_no_request_fails() {
    check_outcome(ClusterChange::PrimaryKilled);
}

#[test]
fn cluster_failed_over_by_hand_no_request_fails() {
    check_outcome(ClusterChange::FailedOver);
}

#[test]
fn cluster_slots_moved_no_request_fails() {
    check_outcome(ClusterChange::SlotsMoved);
}

#[test]
fn cluster_scripts_flushed_no_request_fails() {
    check_outcome(ClusterChange::ScriptsFlushed);
}

#[test]
#[ignore = "takes minutes: cargo xtask scorecard cluster"]
fn long_cluster_changes_fail_no_request_and_hold_limits() {
    let limit = FleetLimit { requests: 100, window: Duration::from_secs(2), algorithm: "fixed_window" };
    let plan = LoadPlan { connections: 4, interval: Duration::from_millis(10), client: client_of };
    let mut missed = Vec::new();
    for round in 1..=3 {
        let ClusterRun { samples, times, fallbacks } = run(&CHANGES, limit, plan, 4_000);
        for ChangeTimes { change, began, ended } in &times {
            let windows = index(*began, limit.window)..=index(*ended, limit.window) + 1;
            let most = samples.most(limit.window, |number| windows.contains(&number));
            let until = Samples(samples.0.iter().filter(|it| it.sent <= *ended).copied().collect());
            println!(
                "round {round} {:15} took {:.0?}: slowest {:.1?}, at most {most} of {} in a window",
                format!("{change:?}"),
                ended.saturating_sub(*began),
                until.slowest(*began),
                limit.requests
            );
        }
        let starts_in = |number| fallbacks.iter().any(|start| start.is_in(number, limit.window));
        let with_start = samples.most(limit.window, starts_in);
        let without = samples.most(limit.window, |number| !starts_in(number));
        let is_planned = |start: &&FallbackStart| {
            times.iter().any(|times| times.began <= start.before && start.after <= times.ended)
        };
        let unplanned = fallbacks.len() - fallbacks.iter().filter(is_planned).count();
        println!(
            "round {round} in total: {} requests, {} failed, at most {with_start} in a window in which a fallback began, {without} \
             in others; unplanned fallbacks {unplanned}",
            samples.0.len(),
            samples.failures()
        );
        let bars = [
            (samples.failures() == 0, "a request failed"),
            (with_start <= limit.requests * 3 / 2, "too much in a window in which a fallback began"),
            (without <= limit.requests, "too much in another window"),
        ];
        let failed = bars.into_iter().filter(|(is_met, _)| !is_met);
        missed.extend(failed.map(|(_, what)| format!("round {round}: {what}")));
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
