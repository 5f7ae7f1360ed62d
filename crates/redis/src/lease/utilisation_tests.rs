//! How much of a limit three nodes use, with a network that takes no time.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate_core::{Algorithm, Cost, CounterState, Limit, Role, Spec, TimeSpan, Timestamp};
use tidegate_store::SystemClock;
use tidegate_testkit::process::RedisServer;

use super::block::{ContactReason, LeaseBlock, RequestOrigin};
use super::request::{LeaseReply, LeaseRequest};
use crate::config::{RedisConfig, TimeSource};
use crate::endpoint::Endpoint;
use crate::key::KeyName;
use crate::link::Link;
use crate::nodes::NodeId;
use crate::operation::{Operation, OperationReply};

const START: Timestamp = Timestamp::from_secs(1_699_999_980);
/// A live store looks at a counter this often.
const SETTLEMENT: TimeSpan = TimeSpan::from_millis(320);

/// Three nodes and one counter.
struct Fleet {
    link: Link,
    key: KeyName,
    limit: Limit,
    nodes: [LeaseBlock; 3],
    sequence: u64,
    requests: u64,
}

impl Fleet {
    async fn contact(&mut self, node: usize, reason: ContactReason, now: Timestamp) {
        self.sequence += 1;
        let (sequence, id) = (self.sequence, NodeId(1 + node as u64));
        let origin = RequestOrigin { node: id, sequence, nodes: NonZeroU32::new(3).unwrap() };
        let Some(action) = self.nodes[node].request(origin, reason, now) else { return };
        let request = LeaseRequest { key: self.key.clone(), limit: Some(self.limit), action };
        let replies = self.link.call(Operation::Lease(vec![request]), now).await.unwrap();
        let OperationReply::Leases(replies) = replies else { panic!("{replies:?}") };
        self.nodes[node].receive(sequence, &replies[0], now);
        self.requests += 1;
    }

    async fn decide(&mut self, node: usize, now: Timestamp) -> bool {
        if self.nodes[node].must_ask(Cost::ONE, now) {
            self.contact(node, ContactReason::Decision { cost: 1 }, now).await;
        }
        let passes = self.nodes[node].decide(Cost::ONE, Role::Binding, now).verdict.is_pass();
        if let Some(reason) = self.nodes[node].reason_to_ask(1, now) {
            self.contact(node, reason, now).await;
        }
        passes
    }

    /// Looks at the counter of each node as a live store does.
    async fn settle(&mut self, settled: &mut Timestamp, now: Timestamp) {
        if now.since(*settled) < SETTLEMENT {
            return;
        }
        *settled = now;
        for node in 0..3 {
            if self.nodes[node].is_due(now) {
                self.contact(node, ContactReason::Settlement, now).await;
            }
        }
    }

    /// Requests at a constant rate per second, in turn to each node, for ten seconds: how many are admitted, and how many
    /// the algorithm itself admits.
    async fn run(&mut self, rate: u64) -> (u64, u64) {
        let (mut admitted, mut ideal, mut excess) = (0, 0, 0);
        let (mut state, mut replayed) = (CounterState::default(), CounterState::default());
        let mut settled = START;
        for request in 0..10 * rate {
            let now = START + TimeSpan::from_micros(request * 1_000_000 / rate);
            self.settle(&mut settled, now).await;
            ideal += u64::from(self.limit.step(&mut state, now, Cost::ONE).verdict.is_pass());
            if self.decide(usize::try_from(request % 3).unwrap(), now).await {
                admitted += 1;
                excess += u64::from(!self.limit.step(&mut replayed, now, Cost::ONE).verdict.is_pass());
            }
        }
        assert_eq!(excess, 0, "{rate} per second");
        (admitted, ideal)
    }
}

fn fleet(server: &RedisServer, name: &str, limit: Limit) -> Fleet {
    let config = RedisConfig {
        time: TimeSource::Caller,
        timeout: Duration::from_secs(5),
        ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap())
    };
    let link = Link::new(config, std::sync::Arc::new(SystemClock::new()));
    let key = link.names().internal("utilisation", name);
    let nodes = [(); 3].map(|()| LeaseBlock::new(limit, 0));
    Fleet { link, key, limit, nodes, sequence: 0, requests: 0 }
}

#[tokio::test]
async fn new_bucket_drains_while_its_first_blocks_are_spent() {
    let server = RedisServer::start();
    let limit = Limit::new(Algorithm::TokenBucket, Spec::new(100, TimeSpan::from_secs(2))).unwrap();
    let (mut admitted, mut ideal) = (0, 0);
    // 50 units per second, and requests at twice that rate or more.
    for rate in [100, 130, 200, 500] {
        let mut fleet = fleet(&server, &rate.to_string(), limit);
        let (passed, possible) = fleet.run(rate).await;
        println!("{rate} per second: {passed} of {possible}, {} requests to Redis", fleet.requests);
        admitted += passed;
        ideal += possible;
    }
    assert!(admitted * 1_000 >= ideal * 995, "{admitted} of {ideal}");
}

/// Three nodes spend all of 300 units: first 100 each, then 150, 100 and 50. A request that is rejected is repeated, because the last
/// units may be with another node until that settles.
#[tokio::test]
async fn leases_of_three_nodes_with_100_each_follow_demand_to_150_100_and_50() {
    let server = RedisServer::start();
    let limit = Limit::new(Algorithm::FixedWindow, Spec::new(300, TimeSpan::from_secs(60))).unwrap();
    let (mut fleet, mut settled) = (fleet(&server, "demand", limit), START);
    for (minute, turns, demand) in
        [(0, [0, 1, 2, 0, 1, 2], [100, 100, 100]), (1, [0, 1, 0, 2, 0, 1], [150, 100, 50])]
    {
        let mut admitted = [0; 3];
        let mut now = START;
        for turn in 0..580_u64 {
            now = START + TimeSpan::from_millis(minute * 60_000 + turn * 100);
            fleet.settle(&mut settled, now).await;
            let node = turns[usize::try_from(turn % 6).unwrap()];
            if admitted[node] < demand[node] {
                admitted[node] += u64::from(fleet.decide(node, now).await);
            }
        }
        assert_eq!(admitted, demand);
        for node in 0..3 {
            assert!(!fleet.decide(node, now).await, "the limit of 300 is reached");
        }
    }
}

#[test]
fn counter_whose_request_has_no_reply_is_kept_until_it_is_settled() {
    let minute = TimeSpan::from_secs(60);
    let limit = Limit::new(Algorithm::FixedWindow, Spec::new(100, minute)).unwrap();
    let origin = RequestOrigin { node: NodeId(1), sequence: 2, nodes: NonZeroU32::MIN };
    let mut block = LeaseBlock::new(limit, 1);
    assert!(block.request(origin, ContactReason::Decision { cost: 1 }, START).is_some());
    block.give_up(2);
    let later = START + TimeSpan::from_secs(1);
    assert!(block.is_due(later) && !block.is_idle(later), "Redis may have granted units");
    let again = RequestOrigin { sequence: 3, ..origin };
    assert!(block.request(again, ContactReason::Settlement, later).is_some());
    block.receive(3, &LeaseReply { now: later, life: minute, ..LeaseReply::default() }, later);
    assert!(block.is_idle(later + minute) && !block.is_due(later));
}

#[test]
fn units_whose_release_was_not_sent_are_released_by_the_next_request() {
    let day = TimeSpan::from_secs(86_400);
    let limit = Limit::new(Algorithm::FixedWindow, Spec::new(100, day)).unwrap();
    let origin = RequestOrigin { node: NodeId(1), sequence: 2, nodes: NonZeroU32::MIN };
    for reason in [ContactReason::Settlement, ContactReason::Close] {
        let mut block = LeaseBlock::new(limit, 1);
        assert!(block.request(origin, ContactReason::Decision { cost: 1 }, START).is_some());
        let reply = LeaseReply {
            now: START,
            epoch: 2,
            granted: 50,
            life: day,
            capacity: 100,
            ..LeaseReply::default()
        };
        block.receive(2, &reply, START);
        // Nothing is requested for a while: a settlement releases everything too.
        let mut later = START;
        for sequence in 3..100 {
            later = later + TimeSpan::from_secs(20);
            if block.request(RequestOrigin { sequence, ..origin }, reason, later).is_some() {
                block.take_back(sequence);
                break;
            }
        }
        assert_eq!(block.units(later), 0, "{reason:?}");
        assert!(block.is_due(later) && block.must_close(later) && !block.is_idle(later), "{reason:?}");
        let again = RequestOrigin { sequence: 100, ..origin };
        assert!(block.request(again, ContactReason::Settlement, later).is_some(), "{reason:?}");
        block.receive(100, &LeaseReply { now: later, life: day, ..LeaseReply::default() }, later);
        assert!(!block.is_due(later) && !block.must_close(later), "{reason:?}");
    }
}
