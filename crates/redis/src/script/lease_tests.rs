//! The fast path of `lease.lua` against its general path, and both against the algorithms in Rust: random requests, the same
//! replies.

use std::num::NonZeroU32;

use fastrand::Rng;
use redis::{Connection, Value};
use tidegate_core::{
    Algorithm, Cost, CounterKey, Limit, Outcome, RuleId, Spec, TimeSpan, Timestamp, Verdict,
};
use tidegate_testkit::process::RedisServer;

use super::lease::{SOURCE, decode, encode};
use crate::key::{KeyName, KeyNames};
use crate::lease::{LeaseAction, LeaseReply, LeaseRequest, LeaseStatus};
use crate::nodes::NodeId;
use crate::operation::{Operation, OperationReply};

const START: Timestamp = Timestamp::from_secs(1_699_999_980);
const FAST: &str = "if kind == ACQUIRE and";

/// What a node knows of its lease.
#[derive(Clone, Copy, Default)]
struct HeldLease {
    epoch: u64,
    granted: u64,
    spent: u64,
}

/// A random history of one counter.
struct History {
    random: Rng,
    key: KeyName,
    limits: [Limit; 2],
    nodes: [HeldLease; 3],
    sequence: u64,
    now: Timestamp,
}

impl History {
    fn new(mut random: Rng, key: KeyName) -> Self {
        let algorithms = [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingCounter];
        let algorithm = *random.choice(&algorithms).unwrap();
        let window = TimeSpan::from_millis(*random.choice(&[700, 5_000, 60_000]).unwrap());
        let requests = *random.choice(&[1, 7, 100, 1_000_000]).unwrap();
        let limits = [requests, 2 * requests].map(|requests| Spec::new(requests, window));
        let limits = limits.map(|spec| Limit::new(algorithm, spec).unwrap());
        Self { random, key, limits, nodes: [HeldLease::default(); 3], sequence: 0, now: START }
    }

    /// The next request and the node that makes it. Few are anything but the usual request for units.
    fn next(&mut self) -> (LeaseRequest, usize) {
        let Self { random, .. } = self;
        let capacity = self.limits[0].capacity();
        self.now = self.now
            + TimeSpan::from_micros(match random.u32(0..8) {
                0 => random.u64(0..30_000_000),
                1 => 0,
                _ => random.u64(0..300_000),
            });
        self.sequence += random.u64(1..3);
        let node = random.usize(..3);
        let held = &mut self.nodes[node];
        held.spent += random.u64(0..=held.granted - held.spent);
        if random.u32(0..3) == 0 {
            held.granted = random.u64(held.spent..=held.granted);
        }
        let rare = random.u32(0..40);
        let least = random.u64(0..=2 + capacity / 8);
        let action = match rare {
            0 => LeaseAction::Reset,
            1 => LeaseAction::Override { until: self.now + TimeSpan::from_secs(random.u64(0..3)) },
            2 => LeaseAction::Peek { cost: 1 },
            _ => LeaseAction::Acquire {
                node: NodeId(1 + node as u64),
                sequence: if rare == 3 { self.sequence / 2 } else { self.sequence },
                epoch: if rare == 4 { self.sequence / 2 } else { held.epoch },
                spent: held.spent,
                granted: held.granted,
                want: least + random.u64(0..=capacity),
                least,
                nodes: NonZeroU32::new(random.u32(1..4)).unwrap(),
                debt: if rare == 5 { random.u64(0..=capacity) } else { 0 },
            },
        };
        let limit = Some(self.limits[usize::from(matches!(rare, 1 | 6))]);
        (LeaseRequest { key: self.key.clone(), limit, action }, node)
    }

    /// What the state of a reply means for some costs.
    fn waits(&self, reply: &LeaseReply) -> Option<[Outcome; 3]> {
        let limit = self.limits.iter().find(|limit| limit.capacity() == reply.capacity)?;
        let state = limit.state_from_numbers(reply.occupied?);
        let costs = [1, limit.capacity().div_ceil(2), limit.capacity()];
        Some(costs.map(|cost| limit.evaluate(&state, reply.now, Cost::new(cost))))
    }

    /// Compares the times and units of a reply with those that Rust computes from its state. Returns whether there was a wait.
    fn assert_as_in_rust(&self, request: &LeaseRequest, reply: &LeaseReply) -> bool {
        let Some(limit) = self.limits.iter().find(|limit| limit.capacity() == reply.capacity) else {
            return false;
        };
        let Some(state) = reply.occupied.map(|numbers| limit.state_from_numbers(numbers)) else {
            return false;
        };
        let unused = limit.evaluate(&state, reply.now, Cost::ZERO);
        assert_eq!(
            (reply.available, reply.reset_after),
            (unused.remaining, unused.reset_after),
            "{request:?}"
        );
        let LeaseAction::Acquire { least, .. } = request.action else { return false };
        let expected = match limit.evaluate(&state, reply.now, Cost::new(least)).verdict {
            Verdict::NotUntil { retry_after } if reply.granted < least => retry_after,
            _ => TimeSpan::ZERO,
        };
        assert_eq!(reply.retry_after, expected, "{request:?}");
        expected > TimeSpan::ZERO
    }

    fn apply(&mut self, node: usize, reply: &LeaseReply) {
        let held = &mut self.nodes[node];
        if reply.status != LeaseStatus::Done || self.random.u32(0..20) == 0 {
            // The reply is lost.
        } else if reply.epoch == held.epoch {
            held.granted += reply.granted;
        } else {
            *held = HeldLease { epoch: reply.epoch.max(held.epoch), granted: reply.granted, spent: 0 };
        }
    }
}

/// The two paths may describe one state by different windows.
fn without_states(replies: Vec<LeaseReply>) -> Vec<LeaseReply> {
    replies.into_iter().map(|reply| LeaseReply { occupied: None, ..reply }).collect()
}

fn call(connection: &mut Connection, source: &str, operation: &Operation, now: Timestamp) -> Value {
    let call = encode(&[operation], Some(now)).unwrap();
    let mut command = redis::cmd("EVAL");
    command.arg(source).arg(call.keys.len());
    for argument in call.keys.iter().chain(&call.arguments) {
        command.arg(argument.as_slice());
    }
    command.query(connection).unwrap()
}

fn memory_of(connection: &mut Connection) -> Vec<i64> {
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(connection).unwrap();
    keys.iter().map(|key| redis::cmd("STRLEN").arg(key).query(connection).unwrap()).collect()
}

#[test]
fn fast_path_of_leases_replies_as_the_general_path_and_as_rust() {
    assert!(SOURCE.contains(FAST));
    let general = SOURCE.replace(FAST, "if false and");
    let servers = [RedisServer::start(), RedisServer::start()];
    let mut connections =
        servers.each_ref().map(|server| redis::Client::open(server.url()).unwrap().get_connection().unwrap());
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let names = KeyNames::new("tg:", b"secret");
    let (mut granted, mut waits_in_rust) = (0, 0);
    for number in 0..60 {
        let key = names.lease(CounterKey::new(RuleId::named("default"), &u64::to_le_bytes(number)));
        let mut history = History::new(Rng::with_seed(seed.wrapping_add(number)), key);
        for step in 0..60 {
            let count = history.random.usize(1..4);
            let (requests, nodes): (Vec<_>, Vec<_>) = (0..count).map(|_| history.next()).unzip();
            let operation = Operation::Lease(requests);
            let [one, other] = &mut connections;
            let reply = call(one, SOURCE, &operation, history.now);
            let expected = call(other, &general, &operation, history.now);
            let decode = |reply| decode(&[&operation], reply).unwrap().remove(0);
            let (OperationReply::Leases(replies), OperationReply::Leases(expected)) =
                (decode(&reply), decode(&expected))
            else {
                panic!("leases expected");
            };
            let waits = |replies: &[LeaseReply]| -> Vec<_> {
                replies.iter().map(|reply| history.waits(reply)).collect()
            };
            assert_eq!(waits(&replies), waits(&expected), "seed {seed}, counter {number}, step {step}");
            let Operation::Lease(requests) = &operation else { unreachable!() };
            for (request, reply) in requests.iter().zip(&replies) {
                waits_in_rust += u32::from(history.assert_as_in_rust(request, reply));
            }
            let [replies, expected] = [replies, expected].map(without_states);
            assert_eq!(replies, expected, "seed {seed}, counter {number}, step {step}: {operation:?}");
            for (node, reply) in nodes.into_iter().zip(&replies) {
                history.apply(node, reply);
                granted += reply.granted;
            }
        }
    }
    assert!(granted > 0 && waits_in_rust > 0);
    let [mut one, mut other] = connections.map(|mut connection| memory_of(&mut connection));
    one.sort_unstable();
    other.sort_unstable();
    assert_eq!(one, other, "seed {seed}: the entries have different lengths");
}
