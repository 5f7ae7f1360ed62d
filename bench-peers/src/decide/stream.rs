//! The keys of requests, some at a time: a list of all of them would push the tables out of the caches, and a
//! server has the keys of the requests that it is about to decide in its cache.

use std::fmt::Write;

/// So many keys are written, untimed, and then decided, timed.
pub(crate) const CHUNK: usize = 4_096;

/// Bytes of a key.
const LENGTH: usize = 21;

/// Keys of 21 bytes, chosen evenly or in order.
#[derive(Debug)]
pub(crate) struct Stream {
    next: Next,
    keys: Vec<String>,
}

#[derive(Debug)]
enum Next {
    Random { rng: fastrand::Rng, keys: usize },
    InOrder(usize),
}

impl Stream {
    /// Every key, one after the other. Make all streams before any is used: their keys then lie in lines of their own,
    /// and no thread writes where another reads.
    pub(crate) fn in_order() -> Self {
        Self { next: Next::InOrder(0), keys: (0..CHUNK).map(|_| String::with_capacity(LENGTH)).collect() }
    }

    /// From now on any of so many keys, each as likely.
    pub(crate) fn shuffle(&mut self, keys: usize, seed: u64) {
        self.next = Next::Random { rng: fastrand::Rng::with_seed(seed), keys };
    }

    /// The next keys.
    pub(crate) fn next_chunk(&mut self) -> &[String] {
        for key in &mut self.keys {
            let number = match &mut self.next {
                Next::Random { rng, keys } => rng.usize(0..*keys),
                Next::InOrder(next) => {
                    *next += 1;
                    *next - 1
                }
            };
            key.clear();
            // Writing to a String does not fail.
            let _ = write!(key, "customer:{number:012}");
        }
        &self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_order_are_21_bytes_long_and_ascending() {
        let mut stream = Stream::in_order();
        assert_eq!(stream.next_chunk()[0], "customer:000000000000");
        let last = &stream.next_chunk()[CHUNK - 1];
        assert_eq!((last.as_str(), last.len()), ("customer:000000008191", LENGTH));
    }
}
