//! A decision service in this process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_core::Timestamp;
use tidegate_limiter::Limiter;
use tidegate_listener::Listener;
use tidegate_policy::{ActivePolicy, Files, NoFiles, compile};
use tidegate_service::{Service, ServiceListener};
use tidegate_store::{Clock, ManualClock, MemoryStore};
use tidegate_telemetry::{MetricsReader, Protocol, Telemetry};
use tokio::sync::watch;

/// A decision service with one worker that runs until it is dropped. Time passes only with its clock.
pub(crate) struct TestService {
    pub(crate) limiter: Arc<Limiter<MemoryStore>>,
    pub(crate) clock: Arc<ManualClock>,
    telemetry: Telemetry,
    listeners: Vec<ServiceListener>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl TestService {
    /// Serves `policy` on all protocols, on free ports of the loopback address.
    pub(crate) fn start(policy: &str) -> Self {
        Self::start_with(policy, &NoFiles)
    }

    /// The same for a policy that refers to `files`.
    pub(crate) fn start_with(policy: &str, files: &impl Files) -> Self {
        let compiled = compile("policy.yaml", policy.as_bytes(), files).expect("a valid policy");
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
        let store = Arc::new(MemoryStore::with_cap(1 << 20));
        let (active, dyn_clock) = (ActivePolicy::new(compiled.plan), Arc::clone(&clock) as Arc<dyn Clock>);
        let limiter = Arc::new(Limiter::new(active, store, Arc::clone(&dyn_clock)).expect("few limits"));
        let telemetry = Telemetry::metrics_only(1, dyn_clock);
        let listener = |protocol| {
            let listener = Listener::bind("127.0.0.1:0", 1).expect("a free port");
            ServiceListener { protocol, listener }
        };
        let listeners = [Protocol::Grpc, Protocol::Http, Protocol::Resp].map(listener).to_vec();
        let (stop, stopping) = watch::channel(false);
        let service = Service::new(Arc::clone(&limiter), telemetry.clone());
        let threads = service.start(&listeners, &stopping, Duration::from_secs(1)).expect("a worker");
        Self { limiter, clock, telemetry, listeners, stop, threads }
    }

    /// Where a protocol is served.
    pub(crate) fn address(&self, protocol: Protocol) -> SocketAddr {
        let found = self.listeners.iter().find(|listener| listener.protocol == protocol);
        found.expect("every protocol has a listener").listener.address()
    }

    /// All metrics as text.
    pub(crate) fn metrics(&self) -> String {
        self.telemetry.exposition(MetricsReader::Scraper, self.clock.now()).into_text()
    }
}

impl Drop for TestService {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
