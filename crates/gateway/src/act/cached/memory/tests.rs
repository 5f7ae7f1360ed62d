use super::*;

const MAX: usize = 1 << 20;

fn response(memory: &ResponseMemory, length: usize) -> StoredResponse {
    StoredResponse {
        headers: HeaderMap::new(),
        body: Bytes::from(vec![0; length]),
        varying: Vec::new(),
        received: Timestamp::ZERO,
        generated: Timestamp::ZERO,
        fresh_for: TimeSpan::ZERO,
        allows_stale: true,
        version: memory.version(b"a"),
    }
}

fn key(number: u32) -> Box<[u8]> {
    number.to_be_bytes().into()
}

/// What the table says that it holds, counted again.
fn assert_consistent(memory: &ResponseMemory) {
    let table = memory.table();
    let bytes = |queue: &VecDeque<usize>| queue.iter().map(|slot| table.entries[*slot].size).sum::<usize>();
    assert_eq!(table.bytes, bytes(&table.probation) + bytes(&table.main));
    assert_eq!(table.probation_bytes, bytes(&table.probation));
    assert_eq!(table.index.len(), table.entries.len());
    assert_eq!(table.entries.len(), table.probation.len() + table.main.len());
    assert!(table.bytes <= MAX - MAX / PROBATION_PART, "{}", table.bytes);
}

#[test]
fn flood_of_responses_that_are_asked_for_once_displaces_none_that_is_used() {
    let memory = ResponseMemory::default();
    let store = |number: u32| memory.insert(key(number), response(&memory, 10_000), MAX);
    for number in 0..60 {
        store(number);
        assert!(memory.get(&key(number)).is_some(), "{number}");
    }
    for number in 1_000..3_000 {
        store(number);
        assert_consistent(&memory);
    }
    let left = (0..60).filter(|number| memory.get(&key(*number)).is_some()).count();
    assert_eq!(left, 60);
    // Responses that are no longer used give way to others that are used.
    for number in 3_000..4_000 {
        store(number);
        store(number);
        assert_consistent(&memory);
    }
    assert!((0..60).all(|number| memory.get(&key(number)).is_none()));
    assert!(memory.get(&key(3_999)).is_some());
}

#[test]
fn memory_is_bounded_whatever_the_sizes() {
    let memory = ResponseMemory::default();
    fastrand::seed(7);
    for _ in 0..3_000 {
        let length = fastrand::usize(..2 * ResponseMemory::largest(MAX));
        let number = fastrand::u32(..200);
        memory.insert(key(number), response(&memory, length), MAX);
        memory.get(&key(fastrand::u32(..200)));
        assert_consistent(&memory);
    }
    assert!(memory.table().entries.len() > 20);
    // A reload with a smaller memory removes the others at the next response.
    memory.insert(key(1), response(&memory, 10), MAX / 4);
    assert!(memory.table().bytes <= MAX / 4);
}

#[test]
fn change_of_a_resource_hides_responses_from_before_it_also_late_ones() {
    let memory = ResponseMemory::default();
    memory.insert(key(1), response(&memory, 10), MAX);
    let late = response(&memory, 10);
    memory.change(memory.version(b"b"));
    assert!(memory.get(&key(1)).is_some(), "another resource");
    memory.change(memory.version(b"a"));
    assert!(memory.get(&key(1)).is_none());
    memory.insert(key(1), late, MAX);
    assert!(memory.get(&key(1)).is_none(), "it was requested before the change");
    memory.insert(key(1), response(&memory, 10), MAX);
    assert!(memory.get(&key(1)).is_some());
}

#[test]
fn responses_that_are_being_received_share_a_part_of_the_memory() {
    let memory = ResponseMemory::default();
    assert!(memory.reserve(MAX / PROBATION_PART, MAX));
    assert!(!memory.reserve(1, MAX));
    memory.release(10);
    assert!(memory.reserve(10, MAX));
}
