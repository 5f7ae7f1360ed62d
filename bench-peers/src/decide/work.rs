//! The work of every contender, and its bars.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Serialize;

use super::contender::{Contender, Rate, Way};
use super::stream::{CHUNK, Stream};
use crate::clocks::thread_time;

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) name: &'static str,
    pub(crate) keys: usize,
    pub(crate) rate: Rate,
    pub(crate) way: Way,
    pub(crate) threads: usize,
    /// How many times faster than governor as it comes, and than governor with a faster hasher.
    pub(crate) bars: (f64, Option<f64>),
    /// What the peers took elsewhere, ns per decision: governor, governor with foldhash.
    pub(crate) elsewhere: (&'static str, &'static str),
}

const ONE: usize = 1;
const THOUSAND: usize = 1_000;
const MILLION: usize = 1_000_000;

const fn work(name: &'static str, keys: usize, way: Way, threads: usize) -> Work {
    Work { name, keys, rate: Rate::Generous, way, threads, bars: (0.0, None), elsewhere: ("–", "–") }
}

/// Works with the same number of keys and the same rate stand together: they share their tables.
pub(crate) const WORKS: [Work; 12] = [
    Work {
        bars: (1.5, Some(1.1)),
        elsewhere: ("33", "23"),
        ..work("1 k keys, one by one", THOUSAND, Way::OneByOne, 1)
    },
    Work {
        bars: (2.5, Some(1.5)),
        elsewhere: ("30", "27"),
        ..work("1 k keys, one by one", THOUSAND, Way::OneByOne, 2)
    },
    Work {
        bars: (5.0, Some(2.5)),
        elsewhere: ("409–460", "227"),
        ..work("1 M keys, one by one", MILLION, Way::OneByOne, 1)
    },
    Work {
        bars: (5.0, Some(2.5)),
        elsewhere: ("208", "145"),
        ..work("1 M keys, one by one", MILLION, Way::OneByOne, 2)
    },
    Work { bars: (12.0, Some(6.0)), ..work("1 M keys, batches of 16", MILLION, Way::Batches, 1) },
    Work { bars: (12.0, Some(6.0)), ..work("1 M keys, batches of 16", MILLION, Way::Batches, 2) },
    Work { bars: (4.5, Some(2.2)), ..work("1 M keys, four checks a decision", MILLION, Way::FourChecks, 1) },
    Work { bars: (4.5, Some(2.2)), ..work("1 M keys, four checks a decision", MILLION, Way::FourChecks, 2) },
    Work {
        bars: (2.0, None),
        elsewhere: ("63", "71"),
        ..work("one hot key, all allowed", ONE, Way::OneByOne, 2)
    },
    Work {
        bars: (5.0, None),
        elsewhere: ("30", "–"),
        rate: Rate::Stingy,
        ..work("one hot key, all refused", ONE, Way::OneByOne, 2)
    },
    Work { bars: (5.0, None), ..work("10 M keys, one by one", 10 * MILLION, Way::OneByOne, 1) },
    Work { bars: (5.0, None), ..work("10 M keys, one by one", 10 * MILLION, Way::OneByOne, 2) },
];

impl Work {
    /// With the number of threads, which distinguishes works.
    pub(crate) fn full_name(&self) -> String {
        let Self { name, threads, .. } = self;
        format!("{name}, {threads} thread{}", if *threads == 1 { "" } else { "s" })
    }
}

/// As many threads as a work has at most.
pub(crate) const THREADS: usize = 2;

/// So many requests a thread and round.
const REQUESTS: usize = 1 << 20;

/// Lets threads go together, within nanoseconds: what is timed is timed while all of them decide.
struct Gate {
    threads: usize,
    arrived: AtomicUsize,
}

impl Gate {
    fn wait(&self) {
        let before = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (before / self.threads + 1) * self.threads;
        while self.arrived.load(Ordering::Acquire) < all {
            spin_loop();
        }
    }
}

/// Shows every key once.
pub(crate) fn fill(contender: &dyn Contender, keys: usize) {
    let mut stream = Stream::in_order();
    for first in (0..keys).step_by(CHUNK) {
        contender.run(Way::OneByOne, &stream.next_chunk()[..CHUNK.min(keys - first)]);
    }
}

/// Nanoseconds per check, of the thread that took longest, over the checks of all.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct CheckTime {
    pub(crate) wall: f64,
    /// Without the time in which other processes had the core, or the thread slept.
    pub(crate) processor: f64,
}

/// All threads at once.
#[expect(clippy::cast_precision_loss, reason = "a figure to read, not to compute with")]
pub(crate) fn race(
    work: &Work,
    contender: &dyn Contender,
    streams: &mut [Stream],
    round: u64,
) -> anyhow::Result<CheckTime> {
    let gate = Gate { threads: work.threads, arrived: AtomicUsize::new(0) };
    let race_one = |thread: usize, stream: &mut Stream| {
        stream.shuffle(work.keys, round * 2 + thread as u64);
        let (mut passed, mut wall, mut processor) = (0, Duration::ZERO, Duration::ZERO);
        for _ in 0..REQUESTS / CHUNK {
            let keys = stream.next_chunk();
            gate.wait();
            let (processor_start, start) = (thread_time(), Instant::now());
            passed += contender.run(work.way, keys);
            wall += start.elapsed();
            processor += thread_time().saturating_sub(processor_start);
        }
        (passed, wall, processor)
    };
    let ends: Vec<_> = thread::scope(|scope| {
        let race_one = &race_one;
        let streams = streams.iter_mut().take(work.threads).enumerate();
        let racers: Vec<_> =
            streams.map(|(thread, stream)| scope.spawn(move || race_one(thread, stream))).collect();
        racers.into_iter().filter_map(|racer| racer.join().ok()).collect()
    });
    let requests = (REQUESTS * work.threads) as u64;
    let passed: u64 = ends.iter().map(|(passed, ..)| passed).sum();
    let expected = if work.rate == Rate::Generous { requests } else { 0 };
    ensure!(passed == expected, "{}: {passed} of {requests} passed, not {expected}", contender.name());
    let per_check =
        |longest: Option<Duration>| longest.unwrap_or_default().as_nanos() as f64 / requests as f64;
    Ok(CheckTime {
        wall: per_check(ends.iter().map(|(_, wall, _)| *wall).max()),
        processor: per_check(ends.iter().map(|(.., processor)| *processor).max()),
    })
}
