//! A decision service in this process.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_core::Timestamp;
use tidegate_limiter::Limiter;
use tidegate_listener::Listener;
use tidegate_policy::{ActivePolicy, EnvoyFile, EnvoyLimits, Files, NoFiles, compile};
use tidegate_service::{Service, ServiceListener};
use tidegate_store::{Clock, ManualClock, MemoryStore};
use tidegate_telemetry::{
    Log, LogReceiver, LogSampling, Metrics, MetricsReader, Protocol, Telemetry, Tracer,
};
use tokio::sync::watch;

/// A decision service with one worker that runs until it is dropped. Time passes only with its clock.
pub(crate) struct TestService {
    pub(crate) limiter: Arc<Limiter<MemoryStore>>,
    pub(crate) clock: Arc<ManualClock>,
    telemetry: Telemetry,
    listeners: Vec<ServiceListener>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    service: Service<MemoryStore>,
}

impl TestService {
    /// Serves `policy` on all protocols, on free ports of the loopback address.
    pub(crate) fn start(policy: &str) -> Self {
        Self::start_with_files(policy, &NoFiles)
    }

    /// Serves an Envoy configuration, and a policy without limits.
    pub(crate) fn start_envoy(config: &str) -> Self {
        let service = Self::start("rate_limits: {}");
        service.apply_envoy(config);
        service
    }

    /// Like [`start`](Self::start) with files that the policy refers to.
    pub(crate) fn start_with_files(policy: &str, files: &dyn Files) -> Self {
        Self::start_traced(policy, files, Tracer::off())
    }

    /// The same with traces.
    pub(crate) fn start_traced(policy: &str, files: &dyn Files, tracer: Tracer) -> Self {
        Self::start_with_telemetry(policy, files, |clock| {
            Telemetry::metrics_only(1, clock).with_tracer(tracer)
        })
    }

    /// Serves `policy` and returns the lines of its log.
    pub(crate) fn start_logged(policy: &str, sampling: LogSampling) -> (Self, LogReceiver) {
        let mut receiver = None;
        let service = Self::start_with_telemetry(policy, &NoFiles, |clock| {
            let (log, lines) = Log::into_channel(Arc::clone(&clock));
            log.set_sampling(sampling);
            receiver = Some(lines);
            Telemetry::new(Metrics::new(1, clock.now()), log)
        });
        (service, receiver.expect("a log"))
    }

    fn start_with_telemetry(
        policy: &str,
        files: &dyn Files,
        telemetry: impl FnOnce(Arc<dyn Clock>) -> Telemetry,
    ) -> Self {
        let compiled = compile("policy.yaml", policy.as_bytes(), files).expect("a valid policy");
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
        let store = Arc::new(MemoryStore::with_cap(1 << 20));
        let (active, dyn_clock) = (ActivePolicy::new(compiled.plan), Arc::clone(&clock) as Arc<dyn Clock>);
        let limiter = Arc::new(Limiter::new(active, store, Arc::clone(&dyn_clock)).expect("few limits"));
        let telemetry = telemetry(dyn_clock);
        let listener = |protocol| {
            let listener = Listener::bind("127.0.0.1:0", 1).expect("a free port");
            ServiceListener { protocol, listener }
        };
        let listeners = [Protocol::Grpc, Protocol::Http, Protocol::Resp].map(listener).to_vec();
        let (stop, stopping) = watch::channel(false);
        let service = Service::new(Arc::clone(&limiter), telemetry.clone());
        let threads = service.start(&listeners, &stopping, Duration::from_secs(1)).expect("a worker");
        Self { limiter, clock, telemetry, listeners, stop, threads, service }
    }

    /// Replaces the policy, as a reload does.
    pub(crate) fn apply_policy(&self, policy: &str, files: &dyn Files) {
        let compiled = compile("policy.yaml", policy.as_bytes(), files).expect("a valid policy");
        let prepared = self.limiter.prepare(ActivePolicy::new(compiled.plan)).expect("few limits");
        self.limiter.activate(prepared);
    }

    /// Replaces the Envoy configuration; `---` separates its files.
    pub(crate) fn apply_envoy(&self, config: &str) {
        let file = |(number, text): (usize, &str)| EnvoyFile {
            name: format!("{number}.yaml"),
            bytes: text.as_bytes().to_vec(),
        };
        let files: Vec<_> = config.split("\n---\n").enumerate().map(file).collect();
        let limits = EnvoyLimits::compile(&files).unwrap_or_else(|problems| panic!("{problems}"));
        self.service.apply_envoy_limits(limits).expect("few limits");
    }

    /// Stops the service, without waiting.
    pub(crate) fn begin_stop(&self) {
        self.stop.send_replace(true);
    }

    /// Where a protocol is served.
    pub(crate) fn address(&self, protocol: Protocol) -> SocketAddr {
        let found = self.listeners.iter().find(|listener| listener.protocol == protocol);
        found.expect("every protocol has a listener").listener.address()
    }

    /// All metrics as text.
    pub(crate) fn metrics(&self) -> String {
        let mut page = self.telemetry.exposition(MetricsReader::Scraper, self.clock.now());
        self.telemetry.metrics().write_open_connections(&mut page, 0);
        page.into_text()
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

/// The stored inputs of a fuzz target.
pub(crate) fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files = std::fs::read_dir(folder).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    let files: Vec<_> = files.collect();
    assert!(files.len() > 50, "{} files", files.len());
    files
}
