//! Redis fails in every way while clients send requests.

use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_testkit::client::{LoadClock, LoadPlan};
use tidegate_testkit::process::{RedisOptions, RedisServer};
use tidegate_testkit::server::{FaultProxy, ProxyMode};

use super::fleet::{FallbackStart, Fleet, FleetLimit};
use super::samples::{Samples, index};

/// One client exceeds its limit fourfold; ten others stay within the part of it that a node admits without Redis.
const QUIET_CLIENTS: usize = 10;
/// The part of a limit that both gateways together admit without Redis, in percent.
const FALLBACK_PERCENT: u64 = 50;
/// Every request is answered within this time.
const MAX_LATENCY: Duration = Duration::from_millis(100);
/// Redis decides again within this time after it has returned.
const MAX_RETURN: Duration = Duration::from_secs(1);

fn client_of(number: usize) -> usize {
    if number.is_multiple_of(2) { 0 } else { 1 + number / 2 % QUIET_CLIENTS }
}

/// How Redis fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// SIGKILL; started again with what it had written.
    Killed,
    /// SIGSTOP, SIGCONT.
    Stopped,
    /// `DEBUG SLEEP`.
    Busy,
    /// Every connection is reset.
    Reset,
    /// The network loses everything.
    Blackholed,
    /// 200 ms more in each direction.
    Slow,
    /// The gateways start before Redis.
    Absent,
}

const OUTAGES: [Outage; 7] = [
    Outage::Killed,
    Outage::Stopped,
    Outage::Busy,
    Outage::Reset,
    Outage::Blackholed,
    Outage::Slow,
    Outage::Absent,
];

/// A Redis behind a proxy.
struct FailingRedis {
    redis: RedisServer,
    proxy: FaultProxy,
    outage: Outage,
    busy: Option<JoinHandle<()>>,
}

impl FailingRedis {
    fn start(outage: Outage) -> Self {
        let mut arguments = vec!["--enable-debug-command", "local"];
        if outage == Outage::Killed {
            arguments.extend(["--appendonly", "yes", "--appendfsync", "always"]);
        }
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        let redis = RedisServer::with(&RedisOptions { arguments, ..RedisOptions::default() });
        let proxy = FaultProxy::start_in_thread(redis.address());
        Self { redis, proxy, outage, busy: None }
    }

    /// The URL through the proxy where the network fails, without it where Redis does.
    fn url(&self) -> String {
        match self.outage {
            Outage::Reset | Outage::Blackholed | Outage::Slow => format!("redis://{}", self.proxy.address()),
            Outage::Killed | Outage::Stopped | Outage::Busy | Outage::Absent => self.redis.url(),
        }
    }

    fn fail(&mut self, time: Duration) {
        match self.outage {
            Outage::Killed | Outage::Absent => self.redis.kill(),
            Outage::Stopped => self.redis.stop(),
            Outage::Busy => {
                let mut client = std::process::Command::new("redis-cli");
                client.args(["-u", &self.redis.url(), "DEBUG", "SLEEP", &time.as_secs_f64().to_string()]);
                self.busy = Some(std::thread::spawn(move || {
                    let output = client.output().unwrap();
                    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "OK");
                }));
            }
            Outage::Reset => self.proxy.set(ProxyMode::Reset),
            Outage::Blackholed => self.proxy.set(ProxyMode::Blackhole),
            Outage::Slow => self.proxy.set(ProxyMode::Delay(Duration::from_millis(200))),
        }
    }

    /// Ends the outage. Redis responds when this returns.
    fn recover(&mut self) {
        match self.outage {
            Outage::Killed | Outage::Absent => self.redis.restart(),
            Outage::Stopped => self.redis.resume(),
            Outage::Busy => self.busy.take().unwrap().join().unwrap(),
            Outage::Reset | Outage::Blackholed | Outage::Slow => self.proxy.set(ProxyMode::Pass),
        }
    }
}

/// A run: what clients saw, and when.
struct OutageRun {
    samples: Samples,
    /// When the gateways began to decide without Redis, whether planned or not.
    fallbacks: Vec<FallbackStart>,
    began: Duration,
    /// Redis was back.
    ended: Duration,
    /// Both gateways used it again.
    returned: Duration,
}

/// How a run proceeds.
struct OutagePlan {
    limit: FleetLimit,
    load: LoadPlan,
    /// Responses before, during and after the outage.
    responses: usize,
    /// The outage lasts at least so long.
    time: Duration,
    /// The part of a window after which the outage begins, or ends if it began before the gateways, in percent; at any time if
    /// `None`.
    phase: Option<u32>,
}

/// Runs a load through an outage.
fn run(outage: Outage, plan: &OutagePlan) -> OutageRun {
    let clock = LoadClock::start();
    let mut redis = FailingRedis::start(outage);
    let is_absent = outage == Outage::Absent;
    if is_absent {
        redis.fail(plan.time);
    }
    let store = format!("fallback_share: {FALLBACK_PERCENT}%");
    let fleet = Fleet::start(&redis.url(), &store, plan.limit);
    if !is_absent {
        fleet.wait_until_complete();
    }
    let (watch, mut began) = (fleet.watch(clock), clock.now());
    let load = fleet.load(plan.load, clock);
    if !is_absent {
        load.wait_for_responses(plan.responses);
        plan.wait_for_phase(clock);
        began = clock.now();
        redis.fail(plan.time);
    }
    fleet.wait_until_fallback();
    // A busy Redis returns by itself, and the time to the return counts from that moment.
    if outage != Outage::Busy {
        load.wait_for_responses(plan.responses);
        clock.wait_until(began + plan.time);
    }
    if is_absent {
        plan.wait_for_phase(clock);
    }
    redis.recover();
    let ended = clock.now();
    fleet.wait_until_normal();
    let returned = clock.now();
    load.wait_for_responses(plan.responses);
    let samples = Samples(load.finish());
    fleet.wait_until_complete();
    OutageRun { samples, fallbacks: watch.finish(), began, ended, returned }
}

impl OutagePlan {
    /// Waits until the part of the next window has passed.
    fn wait_for_phase(&self, clock: LoadClock) {
        let Some(percent) = self.phase else { return };
        let window = self.limit.window;
        let next = u32::try_from(index(clock.now(), window) + 1).unwrap();
        clock.wait_until(window * next + window * percent / 100);
    }
}

/// Asserts what must hold on a machine of any speed: an outage may begin in any window.
fn check_outcome(outage: Outage) {
    let limit = FleetLimit { requests: 40, window: Duration::from_secs(1), algorithm: "fixed_window" };
    let load = LoadPlan { connections: 2, interval: Duration::from_millis(25), client: client_of };
    let time = Duration::from_secs(1);
    let OutageRun { samples, began, .. } =
        run(outage, &OutagePlan { limit, load, responses: 100, time, phase: None });
    assert_eq!(samples.failures(), 0);
    let most = samples.most(limit.window, |_| true);
    assert!(most <= limit.requests * (100 + FALLBACK_PERCENT) / 100, "{most} in one window");
    let admitted_meanwhile =
        samples.0.iter().filter(|sample| sample.is_admitted() && sample.sent > began).count();
    assert!(admitted_meanwhile > 0);
}

#[test]
fn outage_redis_killed_gateways_respond_within_the_bound() {
    check_outcome(Outage::Killed);
}

#[test]
fn outage_redis_stopped_gateways_respond_within_the_bound() {
    check_outcome(Outage::Stopped);
}

#[test]
fn outage_redis_busy_gateways_respond_within_the_bound() {
    check_outcome(Outage::Busy);
}

#[test]
fn outage_connections_reset_gateways_respond_within_the_bound() {
    check_outcome(Outage::Reset);
}

#[test]
fn outage_network_blackholed_gateways_respond_within_the_bound() {
    check_outcome(Outage::Blackholed);
}

#[test]
fn outage_network_slow_gateways_respond_within_the_bound() {
    check_outcome(Outage::Slow);
}

#[test]
fn outage_redis_absent_at_start_gateways_respond_within_the_bound() {
    check_outcome(Outage::Absent);
}

/// Runs an outage that begins at this part of a window, and prints its figures. Returns the bars that were missed.
fn measure(outage: Outage, phase: u32) -> Vec<String> {
    let limit = FleetLimit { requests: 200, window: Duration::from_secs(2), algorithm: "fixed_window" };
    let load = LoadPlan { connections: 4, interval: Duration::from_millis(10), client: client_of };
    let time = Duration::from_secs(if outage == Outage::Busy { 2 } else { 3 });
    let plan = OutagePlan { limit, load, responses: 2_400, time, phase: Some(phase) };
    let OutageRun { samples, fallbacks, began, ended, returned } = run(outage, &plan);
    let (failures, slowest) = (samples.failures(), samples.slowest(began));
    let starts_in = |number| fallbacks.iter().any(|start| start.is_in(number, limit.window));
    let with_start = samples.most(limit.window, starts_in);
    let without = samples.most(limit.window, |number| !starts_in(number));
    let unplanned = fallbacks.iter().filter(|start| start.before < began || start.after > ended).count();
    let quiet_rejected = samples.0.iter().filter(|sample| sample.client > 0 && !sample.is_admitted()).count();
    println!(
        "{:10} at {phase:2} %: {} requests, {failures} failed, slowest {slowest:.1?} (p99 {:.1?} before, {:.1?} during), at most \
         {with_start} in the window of the outage, {without} of {} in others, {quiet_rejected} rejected within the limit, back \
         after {:.0?}; unplanned fallbacks {unplanned}",
        format!("{outage:?}").to_lowercase(),
        samples.0.len(),
        samples.p99(Duration::ZERO..began),
        samples.p99(began..ended),
        limit.requests,
        returned.saturating_sub(ended),
    );
    let bars = [
        (failures == 0, "a request failed"),
        (slowest <= MAX_LATENCY, "a response took longer than 100 ms"),
        (
            with_start <= limit.requests * (100 + FALLBACK_PERCENT) / 100,
            "too much in the window of the outage",
        ),
        (without <= limit.requests, "too much in another window"),
        (returned.saturating_sub(ended) <= MAX_RETURN, "Redis was not used within 1 s of its return"),
    ];
    let missed = bars.into_iter().filter(|(is_met, _)| !is_met);
    missed.map(|(_, what)| format!("{outage:?} at {phase} %: {what}")).collect()
}

#[test]
#[ignore = "takes minutes: cargo xtask scorecard outage"]
fn long_outage_ladder_meets_every_bar() {
    let missed: Vec<_> = OUTAGES
        .into_iter()
        .flat_map(|outage| [5, 50, 95].map(|phase| measure(outage, phase)))
        .flatten()
        .collect();
    assert!(missed.is_empty(), "{missed:#?}");
}
