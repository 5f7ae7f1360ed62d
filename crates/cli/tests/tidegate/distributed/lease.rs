//! A gateway that has leased units is stopped past the end of its leases, or killed.

use std::time::Duration;

use tidegate_testkit::client::{LoadClock, LoadPlan, SteadyLoad};
use tidegate_testkit::process::RedisServer;

use super::fleet::{Fleet, FleetLimit};
use super::samples::{Samples, index};

/// What happens to the first gateway, the holder of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HolderFault {
    /// SIGSTOP, and SIGCONT when its leases have expired.
    Stopped,
    /// SIGKILL.
    Killed,
}

/// How a run proceeds.
#[derive(Clone, Copy)]
struct LeasePlan {
    limit: FleetLimit,
    load: LoadPlan,
    /// Responses until the fault.
    before: usize,
    /// How long the holder is away. Longer than its leases last.
    away: Duration,
    /// Responses after that.
    after: usize,
}

struct LeaseRun {
    samples: Samples,
    began: Duration,
    clock: LoadClock,
    fleet: Fleet,
    _redis: RedisServer,
}

fn one_client(_: usize) -> usize {
    0
}

/// Runs a load through the fault.
fn run(fault: HolderFault, plan: LeasePlan) -> LeaseRun {
    let clock = LoadClock::start();
    let redis = RedisServer::start();
    let fleet = Fleet::start(&redis.url(), STORE, plan.limit);
    fleet.wait_until_complete();
    let window = plan.limit.window;
    // The load begins with a window, so that the holder has units of it when it fails.
    clock.wait_until(window * u32::try_from(index(clock.now(), window) + 1).unwrap());
    let load = fleet.load(plan.load, clock);
    load.wait_for_responses(plan.before);
    let began = clock.now();
    let holder = &fleet.gateways[0].server;
    holder.signal(if fault == HolderFault::Killed { "-KILL" } else { "-STOP" });
    clock.wait_until(began + plan.away);
    if fault == HolderFault::Stopped {
        holder.signal("-CONT");
    }
    load.wait_for_responses(plan.after);
    let samples = Samples(load.finish());
    LeaseRun { samples, began, clock, fleet, _redis: redis }
}

impl LeaseRun {
    /// Failed requests, except those to a holder that was killed.
    fn failures(&self, fault: HolderFault) -> usize {
        let lives = |server: usize| fault == HolderFault::Stopped || server != 0;
        let living = self.samples.0.iter().filter(|sample| lives(sample.server)).copied();
        Samples(living.collect()).failures()
    }

    /// The fewest units that were admitted in one of the complete windows that the holder was away for, with the responses in
    /// that window. A window without enough responses to use up the limit shows nothing and is left out.
    fn fewest_alone(&self, plan: &LeasePlan) -> (u64, usize) {
        let FleetLimit { requests, window, .. } = plan.limit;
        let (first, last) = (index(self.began, window) + 1, index(self.began + plan.away, window));
        let counts = self.samples.admitted(window);
        let in_window = |number: u128| {
            let answered = self.samples.0.iter().filter(|it| it.status.is_some());
            let responses = answered.filter(|it| index(it.received, window) == number).count();
            (counts.get(&(number, 0)).copied().unwrap_or(0), responses)
        };
        let is_full = |(_, responses): &(u64, usize)| *responses as u64 >= requests * 3 / 2;
        (first..last).map(in_window).filter(is_full).min().expect("a window with enough responses")
    }

    /// Lets the bucket drain, and returns how many of `burst` requests at once are admitted, all by the second gateway. Adds
    /// them to the samples.
    fn burst(&mut self, limit: FleetLimit) -> usize {
        // Leases of buckets last for at most 10 s.
        self.clock.wait(limit.window + Duration::from_secs(10));
        let plan = LoadPlan { connections: 1, interval: Duration::ZERO, client: one_client };
        let load = SteadyLoad::start(&[&self.fleet.gateways[1].server.address], plan, self.clock);
        load.wait_for_responses(usize::try_from(limit.requests).unwrap());
        let burst = load.finish();
        let count = burst.iter().filter(|sample| sample.is_admitted()).count();
        self.samples.0.extend(burst);
        count
    }
}

/// With a long timeout no call fails on a slow machine, so that leases alone decide.
const STORE: &str = "coordination: lease, timeout: 1s";

const LOAD: LoadPlan = LoadPlan { connections: 4, interval: Duration::from_millis(20), client: one_client };

/// A bucket of 120 units that refills by ten per second; leases last for 2 s.
const BUCKET: FleetLimit =
    FleetLimit { requests: BUCKET_BURST as u64, window: Duration::from_secs(12), algorithm: "token_bucket" };
const BUCKET_BURST: u32 = 120;
const BUCKET_RATE: f64 = 10.0;

fn window(algorithm: &'static str) -> FleetLimit {
    FleetLimit { requests: 200, window: Duration::from_secs(2), algorithm }
}

#[test]
fn lease_holder_stopped_past_expiry_admits_nothing_in_excess() {
    let limit = FleetLimit { window: Duration::from_secs(3), ..BUCKET };
    let plan = LeasePlan { limit, load: LOAD, before: 20, away: Duration::from_millis(2_500), after: 200 };
    let run = run(HolderFault::Stopped, plan);
    assert_eq!(run.failures(HolderFault::Stopped), 0);
    let excess = run.samples.excess(0, BUCKET_BURST, 40.0);
    assert!(excess <= 0.0, "{excess} units in excess");
}

#[test]
fn lease_holder_killed_units_return_with_the_next_window() {
    let limit = window("fixed_window");
    let plan = LeasePlan { limit, load: LOAD, before: 20, away: Duration::from_secs(4), after: 50 };
    let run = run(HolderFault::Killed, plan);
    assert_eq!(run.failures(HolderFault::Killed), 0);
    let most = run.samples.most(limit.window, |_| true);
    assert!(most <= limit.requests, "{most} in one window");
    let (alone, _) = run.fewest_alone(&plan);
    assert!(alone > limit.requests / 2, "the other gateway gets more than its share");
}

/// Runs a fault with leases of windows, and prints its figures. Returns the bars that were missed.
fn measure_window(algorithm: &'static str, fault: HolderFault) -> Vec<&'static str> {
    let limit = window(algorithm);
    let plan = LeasePlan { limit, load: LOAD, before: 120, away: Duration::from_secs(7), after: 2_000 };
    let run = run(fault, plan);
    let (failures, most) = (run.failures(fault), run.samples.most(limit.window, |_| true));
    let in_first = run.samples.most(limit.window, |it| it == index(run.began, limit.window));
    let (alone, responses) = run.fewest_alone(&plan);
    println!(
        "{algorithm} {fault:?}: {} requests, {failures} failed, at most {most} of {} in a window, {in_first} in that of the fault, \
         at least {alone} in those after it (of {responses} responses)",
        run.samples.0.len(),
        limit.requests
    );
    let bars = [
        (failures == 0, "a request failed"),
        (most <= limit.requests, "excess"),
        (alone >= limit.requests * 9 / 10, "units did not return with the next window"),
    ];
    bars.into_iter().filter(|(is_met, _)| !is_met).map(|(_, what)| what).collect()
}

/// The same with leases of a bucket.
fn measure_bucket(fault: HolderFault) -> Vec<&'static str> {
    let plan =
        LeasePlan { limit: BUCKET, load: LOAD, before: 40, away: Duration::from_secs(5), after: 1_000 };
    let mut run = run(fault, plan);
    let failures = run.failures(fault);
    if fault == HolderFault::Stopped {
        run.fleet.wait_until_complete();
    }
    let burst = run.burst(BUCKET);
    let excess = run.samples.excess(0, BUCKET_BURST, BUCKET_RATE).max(0.0);
    println!(
        "token_bucket {fault:?}: {} requests, {failures} failed, {excess:.1} units in excess, burst of {burst} of {} after expiry",
        run.samples.0.len(),
        BUCKET.requests
    );
    let bars = [
        (failures == 0, "a request failed"),
        (excess <= 0.0, "excess"),
        (burst as u64 >= BUCKET.requests * 9 / 10, "units did not return after expiry"),
    ];
    bars.into_iter().filter(|(is_met, _)| !is_met).map(|(_, what)| what).collect()
}

#[test]
#[ignore = "takes minutes: cargo xtask scorecard lease"]
fn long_lease_holder_faults_cause_no_excess_and_strand_no_units() {
    let mut missed = Vec::new();
    for fault in [HolderFault::Stopped, HolderFault::Killed] {
        for algorithm in ["fixed_window", "sliding_window_counter"] {
            missed.extend(measure_window(algorithm, fault).into_iter().map(|what| (algorithm, fault, what)));
        }
        missed.extend(measure_bucket(fault).into_iter().map(|what| ("token_bucket", fault, what)));
    }
    assert!(missed.is_empty(), "{missed:?}");
}
