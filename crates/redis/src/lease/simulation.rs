//! A deterministic simulation: the node logic and the real script, under loss, duplication, reordering, crashes, stopped
//! nodes and skewed clocks. One seed gives one trace.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tidegate_core::{
    Algorithm, Cost, CounterKey, CounterState, Limit, Refund, Role, RuleId, Spec, TimeSpan, Timestamp,
};
use tidegate_store::SystemClock;
use tidegate_testkit::process::RedisServer;

use super::block::{ContactReason, LeaseBlock, RequestOrigin};
use super::request::{LeaseAction, LeaseReply, LeaseRequest, LeaseStatus};
use crate::config::{RedisConfig, TimeSource};
use crate::endpoint::Endpoint;
use crate::key::KeyName;
use crate::link::Link;
use crate::nodes::NodeId;
use crate::operation::{Operation, OperationReply};

const START: Timestamp = Timestamp::from_secs(1_699_999_980);
/// The longest time a request or a reply travels.
const LATENCY: u64 = 30_000;
/// A node waits this long for a reply.
const TIMEOUT: TimeSpan = TimeSpan::from_millis(20);

/// A node: its counter, and a clock that is wrong and runs at its own speed.
struct SimulatedNode {
    id: NodeId,
    block: LeaseBlock,
    sequence: u64,
    skew: i64,
    /// Parts per million.
    drift: i64,
    /// The pending request: its number and when it was sent, in local time.
    waiting: Option<(u64, Timestamp)>,
    /// Stopped until then, in real time.
    stopped: Timestamp,
}

impl SimulatedNode {
    fn new(random: &mut Rng, limit: Limit) -> Self {
        Self {
            id: NodeId(random.u64(1..1 << 53)),
            block: LeaseBlock::new(limit, 1),
            sequence: 1,
            skew: random.i64(-5_000_000..=5_000_000),
            drift: random.i64(-2_000..=2_000),
            waiting: None,
            stopped: START,
        }
    }

    fn local(&self, real: Timestamp) -> Timestamp {
        let elapsed = i64::try_from(real.since(START).as_micros()).unwrap();
        let local = elapsed + elapsed * self.drift / 1_000_000 + self.skew;
        Timestamp::from_micros(START.as_micros().checked_add_signed(local).unwrap())
    }
}

/// Something that travels.
enum Message {
    Request {
        node: usize,
        id: NodeId,
        sequence: u64,
        action: LeaseAction,
    },
    Reply {
        node: usize,
        id: NodeId,
        sequence: u64,
        reply: LeaseReply,
    },
    /// The number of the spend.
    Refund {
        node: usize,
        id: NodeId,
        spend: usize,
    },
}

/// An admitted request.
struct Spend {
    node: NodeId,
    /// The store time, as the node estimated it.
    at: Timestamp,
    real: Timestamp,
    refund: RefundState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RefundState {
    None,
    /// Redis was asked for it.
    Sent,
    Done,
}

/// Counts of what happened, so that a trace that tests nothing is noticed.
#[derive(Debug, Default)]
struct Coverage {
    admitted: u64,
    lost: u64,
    duplicated: u64,
    ignored: u64,
    crashes: u64,
    stops: u64,
    resumed_with_units: u64,
    refunds_here: u64,
    refunds_in_redis: u64,
}

struct Simulation {
    random: Rng,
    link: Arc<Link>,
    key: KeyName,
    limit: Limit,
    now: Timestamp,
    nodes: Vec<SimulatedNode>,
    network: VecDeque<(Timestamp, Message)>,
    spends: Vec<Spend>,
    coverage: Coverage,
    refunds: bool,
}

impl Simulation {
    fn travel(&mut self, build: impl Fn() -> Message) {
        let copies = match self.random.u32(0..20) {
            0 => 0,
            1 | 2 => 2,
            _ => 1,
        };
        self.coverage.lost += u64::from(copies == 0);
        self.coverage.duplicated += u64::from(copies == 2);
        for _ in 0..copies {
            // Most messages are fast; some are overtaken by many others.
            let latency = if self.random.u32(0..10) == 0 {
                self.random.u64(0..20 * LATENCY)
            } else {
                self.random.u64(0..LATENCY / 4)
            };
            self.network.push_back((self.now + TimeSpan::from_micros(latency), build()));
        }
    }

    fn contact(&mut self, node: usize, reason: ContactReason) {
        let now = self.now;
        let simulated = &mut self.nodes[node];
        simulated.sequence += 1;
        let (sequence, id, local) = (simulated.sequence, simulated.id, simulated.local(now));
        let origin = RequestOrigin { node: id, sequence, nodes: NonZeroU32::new(3).unwrap() };
        if let Some(action) = simulated.block.request(origin, reason, local) {
            simulated.waiting = Some((sequence, local));
            self.travel(|| Message::Request { node, id, sequence, action });
        }
    }

    /// A client's request arrives at a node.
    fn arrive(&mut self, node: usize) {
        let now = self.now;
        let simulated = &mut self.nodes[node];
        let local = simulated.local(now);
        if simulated.block.must_ask(Cost::ONE, local) {
            if !simulated.block.is_pending() {
                self.contact(node, ContactReason::Decision { cost: 1 });
            }
            return;
        }
        if simulated.block.decide(Cost::ONE, Role::Binding, local).verdict.is_pass() {
            let at = simulated.block.store_time(local);
            let node = simulated.id;
            self.spends.push(Spend { node, at, real: now, refund: RefundState::None });
            self.coverage.admitted += 1;
        }
        if let Some(reason) = simulated.block.reason_to_ask(1, local) {
            self.contact(node, reason);
        }
    }

    /// A request of the node that was admitted lately is refunded.
    fn refund(&mut self, node: usize) {
        let latest = self.spends.len().saturating_sub(200);
        let number = self.random.usize(latest..=self.spends.len());
        let simulated = &mut self.nodes[node];
        let (id, local) = (simulated.id, simulated.local(self.now));
        let is_wanted = |spend: &&mut Spend| spend.node == id && spend.refund == RefundState::None;
        let Some(spend) = self.spends.get_mut(number).filter(is_wanted) else { return };
        let key = CounterKey::new(RuleId::named("simulation"), b"");
        let refund = Refund { key, limit: &self.limit, cost: Cost::ONE, charged: spend.at };
        if simulated.block.refund(&refund, local) == 0 {
            spend.refund = RefundState::Done;
            self.coverage.refunds_here += 1;
        } else {
            spend.refund = RefundState::Sent;
            // It is sent once, and may be lost.
            if self.random.u32(0..20) > 0 {
                let latency = TimeSpan::from_micros(self.random.u64(0..10 * LATENCY));
                self.network.push_back((self.now + latency, Message::Refund { node, id, spend: number }));
            }
        }
    }

    async fn deliver(&mut self, message: Message) {
        match message {
            Message::Refund { node, id, spend } => {
                let action = LeaseAction::Refund { node: id, units: 1, charged: self.spends[spend].at };
                let request = LeaseRequest { key: self.key.clone(), limit: Some(self.limit), action };
                self.link.call(Operation::Lease(vec![request]), self.now).await.unwrap();
                self.spends[spend].refund = RefundState::Done;
                self.coverage.refunds_in_redis += 1;
                if self.nodes[node].id == id {
                    self.nodes[node].block.end_rejection();
                }
            }
            Message::Request { node, id, sequence, action } => {
                let request = LeaseRequest { key: self.key.clone(), limit: Some(self.limit), action };
                let replies = self.link.call(Operation::Lease(vec![request]), self.now).await.unwrap();
                let OperationReply::Leases(replies) = replies else { panic!("{replies:?}") };
                let reply = replies[0];
                self.coverage.ignored += u64::from(reply.status == LeaseStatus::Ignored);
                self.travel(|| Message::Reply { node, id, sequence, reply });
            }
            Message::Reply { node, id, sequence, reply } => {
                let simulated = &mut self.nodes[node];
                // The connection of a node that crashed or waits no longer is closed.
                if simulated.id == id && simulated.waiting.is_some_and(|(waiting, _)| waiting == sequence) {
                    let local = simulated.local(self.now);
                    simulated.block.receive(sequence, &reply, local);
                    simulated.waiting = None;
                }
            }
        }
    }

    /// Time-outs, settlements and faults of a node.
    fn tend(&mut self, node: usize) {
        let (now, limit) = (self.now, self.limit);
        let simulated = &mut self.nodes[node];
        let local = simulated.local(now);
        if let Some((sequence, sent)) = simulated.waiting
            && local.since(sent) > TIMEOUT
        {
            simulated.block.give_up(sequence);
            simulated.waiting = None;
        }
        match self.random.u32(0..2_000) {
            0 => {
                self.nodes[node] = SimulatedNode::new(&mut self.random, limit);
                self.coverage.crashes += 1;
            }
            1 => {
                self.nodes[node].stopped = now + TimeSpan::from_millis(self.random.u64(100..15_000));
                self.coverage.stops += 1;
            }
            2 => self.nodes[node].block.forget(),
            // What a node does that stops. It continues: the law holds without the end of its process, too.
            3 if self.nodes[node].block.must_close(local) && !self.nodes[node].block.is_pending() => {
                self.contact(node, ContactReason::Close);
            }
            _ if self.nodes[node].block.is_due(local) => self.contact(node, ContactReason::Settlement),
            _ => {}
        }
    }

    async fn step(&mut self, gap: u64) {
        self.now = self.now + TimeSpan::from_micros(self.random.u64(0..=2 * gap));
        while let Some(due) = self.network.iter().position(|(at, message)| {
            *at <= self.now
                && !matches!(message, Message::Reply { node, .. } if self.nodes[*node].stopped > self.now)
        }) {
            let (_, message) = self.network.remove(due).unwrap();
            self.deliver(message).await;
        }
        let node = self.random.usize(0..self.nodes.len());
        if self.nodes[node].stopped > self.now {
            return;
        }
        if self.nodes[node].stopped > START {
            let local = self.nodes[node].local(self.now);
            self.coverage.resumed_with_units += u64::from(self.nodes[node].block.has_expired(local));
            self.nodes[node].stopped = START;
        }
        self.tend(node);
        self.arrive(node);
        if self.refunds && self.random.u32(0..3) == 0 {
            self.refund(node);
        }
    }

    /// The units that do not fit when all are replayed, by the node's estimate of the store time or by the real time. What was
    /// refunded was never charged.
    fn excess(&self) -> [usize; 2] {
        let mut excess = [0, 0];
        for (by, excess) in excess.iter_mut().enumerate() {
            let kept = self.spends.iter().filter(|spend| spend.refund != RefundState::Done);
            let mut times: Vec<_> = kept.map(|spend| if by == 0 { spend.at } else { spend.real }).collect();
            times.sort_unstable();
            let mut state = CounterState::default();
            for at in times {
                *excess += usize::from(!self.limit.step(&mut state, at, Cost::ONE).verdict.is_pass());
            }
        }
        excess
    }
}

async fn simulate(server: &RedisServer, seed: u64, steps: u32) -> Coverage {
    let mut random = Rng::with_seed(seed);
    let config = RedisConfig {
        time: TimeSource::Caller,
        timeout: Duration::from_secs(5),
        ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap())
    };
    let link = Arc::new(Link::new(config, Arc::new(SystemClock::new())));
    let algorithm =
        *random.choice(&[Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingCounter]).unwrap();
    let requests = *random.choice(&[1, 3, 20, 100, 1_000]).unwrap();
    let window = TimeSpan::from_millis(*random.choice(&[500, 2_000, 10_000, 60_000]).unwrap());
    let limit = Limit::new(algorithm, Spec::new(requests, window)).unwrap();
    let key = link.names().internal("simulation", &seed.to_string());
    let nodes = (0..3).map(|_| SimulatedNode::new(&mut random, limit)).collect();
    link.wait_until_connected().await;
    let refunds = random.bool();
    let mut simulation = Simulation {
        refunds,
        random,
        link,
        key,
        limit,
        now: START,
        nodes,
        network: VecDeque::new(),
        spends: Vec::new(),
        coverage: Coverage::default(),
    };
    let gap = (window.as_micros() / requests / 3).clamp(200, 20_000);
    for _ in 0..steps {
        simulation.step(gap).await;
    }
    assert_eq!(simulation.excess(), [0, 0], "seed {seed}: {algorithm} {requests} per {window:?}");
    simulation.coverage
}

async fn simulate_many(seeds: u64, steps: u32) {
    let server = RedisServer::start();
    let first = fastrand::u64(..1 << 40);
    let mut total = Coverage::default();
    for seed in first..first + seeds {
        let coverage = simulate(&server, seed, steps).await;
        total.admitted += coverage.admitted;
        total.lost += coverage.lost;
        total.duplicated += coverage.duplicated;
        total.ignored += coverage.ignored;
        total.crashes += coverage.crashes;
        total.stops += coverage.stops;
        total.resumed_with_units += coverage.resumed_with_units;
        total.refunds_here += coverage.refunds_here;
        total.refunds_in_redis += coverage.refunds_in_redis;
    }
    println!("seeds {first} to {}, 0 violations: {total:?}", first + seeds - 1);
    assert!(total.admitted > 0 && total.lost > 0 && total.ignored > 0 && total.crashes > 0, "{total:?}");
    assert!(total.refunds_here > 0 && total.refunds_in_redis > 0, "{total:?}");
}

#[tokio::test]
async fn lease_protocol_under_faults_admits_nothing_in_excess() {
    simulate_many(30, 3_000).await;
}

#[tokio::test]
#[ignore = "long: cargo xtask scorecard lease"]
async fn long_lease_simulation() {
    simulate_many(1_000, 10_000).await;
}
