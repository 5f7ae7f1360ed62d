//! A constant number of requests per second, with the time and the status of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Connection;
use crate::wait::eventually_blocking;

/// How a [`SteadyLoad`] sends.
#[derive(Clone, Copy, Debug)]
pub struct LoadPlan {
    /// Connections to each server, with one thread each.
    pub connections: usize,
    /// The time between two requests on one connection. Requests that are late because of a slow response are not sent later.
    pub interval: Duration,
    /// The client that sends a request, by the number of the request on its connection.
    pub client: fn(usize) -> usize,
}

/// One request and its response. Times are since the UNIX epoch, on a monotonic clock that was set once.
#[derive(Clone, Copy, Debug)]
pub struct LoadSample {
    /// The index of the server's address.
    pub server: usize,
    /// The client that sent it, with the API key `client-N`.
    pub client: usize,
    /// When it was sent.
    pub sent: Duration,
    /// When its response was complete, or failed.
    pub received: Duration,
    /// The status; `None` if there was no response.
    pub status: Option<u16>,
}

impl LoadSample {
    /// The time from the request to the response.
    pub fn latency(&self) -> Duration {
        self.received.saturating_sub(self.sent)
    }

    /// Whether the request was admitted.
    pub fn is_admitted(&self) -> bool {
        self.status == Some(200)
    }
}

/// The time since the UNIX epoch: set once, then monotonic.
#[derive(Clone, Copy, Debug)]
pub struct LoadClock {
    started: Instant,
    wall: Duration,
}

impl LoadClock {
    /// A clock that starts at the current wall time.
    #[expect(clippy::disallowed_methods, reason = "requests to other processes are measured in real time")]
    pub fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
        Self { started: Instant::now(), wall }
    }

    /// The current time.
    pub fn now(&self) -> Duration {
        self.wall + self.started.elapsed()
    }

    /// Blocks until `time`.
    pub fn wait_until(&self, time: Duration) {
        std::thread::sleep(time.saturating_sub(self.now()));
    }

    /// Blocks for `time`.
    pub fn wait(&self, time: Duration) {
        self.wait_until(self.now() + time);
    }
}

/// Threads that send requests until they are told to finish.
#[derive(Debug)]
pub struct SteadyLoad {
    progress: Arc<Progress>,
    threads: Vec<JoinHandle<Vec<LoadSample>>>,
}

#[derive(Debug, Default)]
struct Progress {
    is_over: AtomicBool,
    responses: AtomicUsize,
}

impl SteadyLoad {
    /// Starts to send GETs to all `addresses`.
    pub fn start(addresses: &[&str], plan: LoadPlan, clock: LoadClock) -> Self {
        let progress = Arc::new(Progress::default());
        let mut threads = Vec::new();
        let total = u32::try_from(addresses.len() * plan.connections).expect("few connections");
        let first = clock.now();
        for (server, address) in addresses.iter().enumerate() {
            for _ in 0..plan.connections {
                // The connections take turns within an interval.
                let number = u32::try_from(threads.len()).expect("few connections");
                let due = first + plan.interval * number / total;
                let (address, progress) = ((*address).to_owned(), Arc::clone(&progress));
                let sender = LoadSender { address, server, plan, clock };
                threads.push(std::thread::spawn(move || sender.run(due, &progress)));
            }
        }
        Self { progress, threads }
    }

    /// Waits for this many more responses.
    pub fn wait_for_responses(&self, count: usize) {
        let responses = || self.progress.responses.load(Ordering::Relaxed);
        let enough = responses() + count;
        eventually_blocking("responses to a steady load", || responses() >= enough);
    }

    /// Waits for the responses that are due, and returns everything in the order of the responses.
    pub fn finish(self) -> Vec<LoadSample> {
        self.progress.is_over.store(true, Ordering::Relaxed);
        let samples = self.threads.into_iter().map(|thread| thread.join().expect("a load thread"));
        let mut samples: Vec<_> = samples.flatten().collect();
        samples.sort_by_key(|sample| sample.received);
        samples
    }
}

/// What one thread sends.
struct LoadSender {
    address: String,
    server: usize,
    plan: LoadPlan,
    clock: LoadClock,
}

impl LoadSender {
    fn run(&self, mut due: Duration, progress: &Progress) -> Vec<LoadSample> {
        let (mut samples, mut connection) = (Vec::new(), None);
        for number in 0.. {
            self.clock.wait_until(due);
            if progress.is_over.load(Ordering::Relaxed) {
                break;
            }
            let client = (self.plan.client)(number);
            let sent = self.clock.now();
            let status = self.send(&mut connection, client);
            let received = self.clock.now();
            samples.push(LoadSample { server: self.server, client, sent, received, status });
            progress.responses.fetch_add(1, Ordering::Relaxed);
            due = (due + self.plan.interval).max(received);
        }
        samples
    }

    /// Sends a request over the connection, or over a new one after a failure.
    fn send(&self, connection: &mut Option<Connection>, client: usize) -> Option<u16> {
        let mut open = connection.take().or_else(|| Connection::open(&self.address).ok())?;
        let response = open.get(&format!("X-API-Key: client-{client}\r\n")).ok()?;
        *connection = Some(open);
        Some(response.status)
    }
}
