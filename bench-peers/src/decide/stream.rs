//! The keys of requests. Of many keys, each is written into a string at hand, as a server parses them: a list
//! would push the tables out of the caches. Of few, a short list costs the contenders less.

/// Up to so many keys, requests are listed.
const LISTED: usize = 1_000;

/// Keys of 21 bytes, chosen evenly or in order.
#[derive(Debug)]
pub(crate) struct Stream {
    next: Next,
    key: String,
    /// `000` to `999`.
    digits: Vec<String>,
}

#[derive(Debug)]
enum Next {
    Random {
        rng: fastrand::Rng,
        keys: u64,
    },
    /// Few enough keys that a list of requests stays in the caches beside them.
    Listed {
        list: Vec<String>,
        next: usize,
    },
    InOrder(u64),
}

impl Stream {
    /// Any of so many keys, each as likely.
    pub(crate) fn random(keys: usize, seed: u64) -> Self {
        let mut stream = Self::new(Next::Random { rng: fastrand::Rng::with_seed(seed), keys: keys as u64 });
        if keys <= LISTED {
            let list = (0..1 << 12).map(|_| stream.next_key().clone()).collect();
            stream.next = Next::Listed { list, next: 0 };
        }
        stream
    }

    /// Every key, one after the other.
    pub(crate) fn in_order() -> Self {
        Self::new(Next::InOrder(0))
    }

    fn new(next: Next) -> Self {
        let digits = (0..1_000).map(|number| format!("{number:03}")).collect();
        Self { next, key: String::with_capacity(24), digits }
    }

    #[inline]
    pub(crate) fn next_key(&mut self) -> &String {
        if let Next::Listed { list, next } = &mut self.next {
            *next = (*next + 1) % list.len();
        } else {
            let mut key = std::mem::take(&mut self.key);
            self.write_key(&mut key);
            self.key = key;
        }
        match &self.next {
            Next::Listed { list, next } => &list[*next],
            _ => &self.key,
        }
    }

    #[inline]
    pub(crate) fn write_key(&mut self, key: &mut String) {
        let number = match &mut self.next {
            Next::Random { rng, keys } => rng.u64(0..*keys),
            Next::Listed { list, next } => {
                *next = (*next + 1) % list.len();
                key.clone_from(&list[*next]);
                return;
            }
            Next::InOrder(next) => {
                *next += 1;
                *next - 1
            }
        };
        key.clear();
        key.push_str("customer:000");
        for thousands in [1_000_000, 1_000, 1] {
            key.push_str(&self.digits[(number / thousands % 1_000) as usize]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_21_bytes_and_all_different() {
        let mut stream = Stream::in_order();
        assert_eq!(stream.next_key(), "customer:000000000000");
        let mut last = String::new();
        for _ in 0..12_345 {
            last = stream.next_key().clone();
        }
        assert_eq!((last.as_str(), last.len()), ("customer:000000012345", 21));
    }
}
