use std::collections::HashMap;

use proptest::prelude::*;
use tidegate_core::{Algorithm, RuleId, Spec};

use super::*;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const BOUNDS: WaitBounds = WaitBounds { counter: 6, client: 4, total: 12 };

/// A queue whose signals are the numbers of requests.
type Queues = WaitQueues<u32>;

fn limit() -> Limit {
    Limit::new(Algorithm::TokenBucket, Spec::new(10, TimeSpan::from_secs(1))).expect("a limit")
}

fn key(counter: u8) -> OwnedKey {
    OwnedKey::from(CounterKey::new(RuleId::named("rule"), &[counter]))
}

fn after(millis: u64) -> Timestamp {
    START + TimeSpan::from_millis(millis)
}

/// A request for a unit of counter 0 of which one becomes available each 100 ms, the first at `turn`.
fn join(queues: &mut Queues, number: u32, client: u64, turn: Timestamp) -> Result<PlaceId, JoinError> {
    let request = RequestCase { number, client, turn, ..RequestCase::default() };
    request.join(queues)
}

#[derive(Clone, Copy)]
struct RequestCase {
    number: u32,
    counter: u8,
    client: u64,
    turn: Timestamp,
    max: TimeSpan,
    is_shared: bool,
}

impl Default for RequestCase {
    fn default() -> Self {
        let (turn, max) = (START, TimeSpan::from_secs(60));
        Self { number: 0, counter: 0, client: 0, turn, max, is_shared: true }
    }
}

impl RequestCase {
    fn join(self, queues: &mut Queues) -> Result<PlaceId, JoinError> {
        let (limit, key) = (limit(), key(self.counter));
        let request = WaitRequest {
            key: key.as_key(),
            limit: &limit,
            cost: Cost::ONE,
            client: self.client,
            is_shared: self.is_shared,
            turn: self.turn,
            expires: START + self.max,
            lock_outs: vec![OwnedKey::from(CounterKey::new(RuleId::named("penalty"), &[self.counter]))],
            signal: self.number,
        };
        queues.join(request, START)
    }
}

#[test]
fn place_behind_is_told_when_it_becomes_the_first() {
    let mut queues = Queues::new(BOUNDS);
    let [one, two, three] =
        [1, 2, 3].map(|number| join(&mut queues, number, number.into(), after(100)).expect("a place"));
    assert_eq!(queues.state(one), PlaceState::First { turn: after(100) });
    assert_eq!([two, three].map(|id| queues.state(id)), [PlaceState::Behind; 2]);
    assert_eq!(queues.turn_behind(key(0).as_key(), Cost::ONE), Some(after(400)));
    assert_eq!(queues.next_cost(one), Some(Cost::ONE));
    queues.set_turn(one, after(200));
    assert_eq!(queues.leave(one), Some(2));
    assert_eq!(queues.state(two), PlaceState::First { turn: after(200) });
    assert_eq!(queues.leave(three), None, "the first has not changed");
    assert_eq!((queues.next_cost(two), queues.leave(two)), (None, None));
    assert_eq!((queues.len(), queues.turn_behind(key(0).as_key(), Cost::ONE)), (0, None));
}

#[test]
fn request_whose_turn_cannot_come_in_time_does_not_join() {
    let mut queues = Queues::new(BOUNDS);
    let patient = RequestCase { max: TimeSpan::from_millis(250), turn: after(100), ..RequestCase::default() };
    for client in [1, 2] {
        assert!(RequestCase { client, ..patient }.join(&mut queues).is_ok());
    }
    let third = RequestCase { client: 3, ..patient };
    assert_eq!(third.join(&mut queues), Err(JoinError::TooLate(after(300))));
    let longer = RequestCase { max: TimeSpan::from_millis(300), ..third };
    assert!(longer.join(&mut queues).is_ok());
}

#[test]
fn first_place_whose_turn_moves_beyond_its_wait_is_over() {
    let mut queues = Queues::new(BOUNDS);
    let request = RequestCase { max: TimeSpan::from_millis(250), turn: after(100), ..RequestCase::default() };
    let id = request.join(&mut queues).expect("a place");
    queues.set_turn(id, after(251));
    assert_eq!(queues.state(id), PlaceState::Over);
}

#[test]
fn client_that_waits_leaves_the_second_half_of_the_time_at_a_shared_counter_to_others() {
    let mut queues = Queues::new(WaitBounds { counter: 100, client: 100, total: 100 });
    let request = RequestCase { max: TimeSpan::from_secs(1), turn: after(100), ..RequestCase::default() };
    let joined = (0..20).filter(|_| request.join(&mut queues).is_ok()).count();
    assert_eq!(joined, 5, "up to 500 ms");
    let other = RequestCase { client: 1, ..request };
    assert!(other.join(&mut queues).is_ok());
    let mut queues = Queues::new(WaitBounds { counter: 100, client: 100, total: 100 });
    let own = RequestCase { is_shared: false, ..request };
    assert_eq!((0..20).filter(|_| own.join(&mut queues).is_ok()).count(), 10, "nobody else uses the counter");
}

#[test]
fn lock_out_ends_the_waits_of_its_client_and_others_move_up() {
    let mut queues = Queues::new(BOUNDS);
    let one =
        RequestCase { number: 1, counter: 1, ..RequestCase::default() }.join(&mut queues).expect("a place");
    let two =
        RequestCase { number: 2, counter: 2, ..RequestCase::default() }.join(&mut queues).expect("a place");
    let locked = CounterKey::new(RuleId::named("penalty"), &[1]);
    assert_eq!(queues.lock_out(locked).to_vec(), [1]);
    assert_eq!(queues.state(one), PlaceState::Over);
    assert_eq!(queues.state(two), PlaceState::First { turn: START });
    assert!(queues.lock_out(locked).is_empty());
}

#[test]
fn end_refuses_those_whose_turn_comes_later() {
    let mut queues = Queues::new(BOUNDS);
    let ids: Vec<_> = (1..=4)
        .map(|number| join(&mut queues, number, number.into(), after(100)).expect("a place"))
        .collect();
    let delayed = [50, 500].map(|millis| queues.delay(9, after(millis), 9).expect("a place"));
    let told = queues.end_at(after(250));
    assert_eq!(told.to_vec(), [3, 4, 9], "the turns are at 100, 200, 300 and 400 ms");
    assert_eq!(queues.state(ids[1]), PlaceState::Behind);
    assert_eq!(queues.state(ids[2]), PlaceState::Over);
    assert_eq!(
        delayed.map(|id| queues.state(id)),
        [PlaceState::Delayed { turn: after(50) }, PlaceState::Over]
    );
    assert_eq!(join(&mut queues, 5, 5, after(100)), Err(JoinError::TooLate(after(300))));
    assert!(join(&mut queues, 5, 5, after(100)).is_err() && queues.delay(5, after(251), 5).is_err());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Join {
        counter: u8,
        client: u64,
    },
    /// The first of a queue departs.
    Depart {
        counter: u8,
    },
    /// Any place leaves.
    Leave(prop::sample::Index),
    Delay {
        client: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..3, 0_u64..5).prop_map(|(counter, client)| Step::Join { counter, client }),
        2 => (0_u8..3).prop_map(|counter| Step::Depart { counter }),
        1 => any::<prop::sample::Index>().prop_map(Step::Leave),
        1 => (0_u64..5).prop_map(|client| Step::Delay { client }),
    ]
}

/// The queues as lists.
#[derive(Default)]
struct Model {
    queues: HashMap<u8, Vec<PlaceId>>,
    clients: HashMap<PlaceId, u64>,
}

impl Model {
    fn queue(&mut self, counter: u8) -> &mut Vec<PlaceId> {
        self.queues.entry(counter).or_default()
    }

    fn accepts(&self, counter: Option<u8>, client: u64) -> bool {
        let waiting = counter.and_then(|counter| self.queues.get(&counter)).map_or(0, Vec::len);
        let of_client = self.clients.values().filter(|other| **other == client).count();
        waiting < BOUNDS.counter && of_client < BOUNDS.client as usize && self.clients.len() < BOUNDS.total
    }

    fn remove(&mut self, id: PlaceId) {
        self.clients.remove(&id);
        self.queues.values_mut().for_each(|queue| queue.retain(|other| *other != id));
    }
}

proptest! {
    /// First come, first served: only the first of the list departs, and whoever becomes the first is told. The bounds hold.
    #[test]
    fn queues_are_lists_of_which_only_the_first_departs(steps in proptest::collection::vec(step(), 1..200)) {
        let (mut queues, mut model, mut number) = (Queues::new(BOUNDS), Model::default(), 0);
        let mut signals = HashMap::new();
        for step in steps {
            let firsts = |model: &Model| -> HashMap<u8, PlaceId> {
                model.queues.iter().filter_map(|(counter, queue)| Some((*counter, *queue.first()?))).collect()
            };
            let before = firsts(&model);
            let leaving = match step {
                Step::Join { counter, client } => {
                    number += 1;
                    let request = RequestCase { number, counter, client, ..RequestCase::default() };
                    let joined = request.join(&mut queues);
                    prop_assert_eq!(joined.is_ok(), model.accepts(Some(counter), client));
                    if let Ok(id) = joined {
                        model.queue(counter).push(id);
                        model.clients.insert(id, client);
                        signals.insert(id, number);
                    }
                    None
                }
                Step::Delay { client } => {
                    let delayed = queues.delay(client, after(1), 0);
                    prop_assert_eq!(delayed.is_ok(), model.accepts(None, client));
                    if let Ok(id) = delayed {
                        model.clients.insert(id, client);
                    }
                    None
                }
                Step::Depart { counter } => model.queue(counter).first().copied(),
                Step::Leave(index) => {
                    let mut ids: Vec<_> = model.clients.keys().copied().collect();
                    ids.sort();
                    if ids.is_empty() { None } else { Some(*index.get(&ids)) }
                }
            };
            if let Some(id) = leaving {
                let told = queues.leave(id);
                model.remove(id);
                let after = firsts(&model);
                let moved = after.iter().find(|(counter, first)| before.get(*counter) != Some(*first));
                prop_assert_eq!(told, moved.map(|(_, first)| signals[first]));
            }
            prop_assert_eq!(queues.len(), model.clients.len());
            for queue in model.queues.values() {
                for (position, id) in queue.iter().enumerate() {
                    let is_first = matches!(queues.state(*id), PlaceState::First { .. });
                    prop_assert_eq!(is_first, position == 0);
                }
            }
        }
        let ids: Vec<_> = model.clients.keys().copied().collect();
        for id in ids {
            queues.leave(id);
        }
        prop_assert!(queues.queues.is_empty() && queues.clients.is_empty() && queues.lock_outs.is_empty());
    }
}
