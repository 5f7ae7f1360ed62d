//! A gateway in this process. Everything that starts or calls a [`Gateway`] is here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::Body;
use http_body_util::Empty;
use tidegate_core::Timestamp;
use tidegate_gateway::{BreakerCommand, BreakerCommandError, BulkheadStatus, Gateway, UpstreamStatus};
use tidegate_limiter::{Limiter, WaitBounds};
use tidegate_listener::{Listener, ServerCertificate};
use tidegate_policy::{ActivePolicy, Ban, Bans, Subject, compile};
use tidegate_store::{Clock, MemoryStore, Penalties, Permits, SystemClock};
use tidegate_telemetry::{MetricsReader, Telemetry};
use tidegate_testkit::certificate::Certificate;
use tidegate_testkit::client::{CollectedResponse, RawClient, http1};
use tidegate_testkit::message::Response;
use tidegate_testkit::server::RecordingServer;
use tidegate_testkit::wait::soon;
use tokio::sync::watch;

pub(crate) use tidegate_gateway::{MinRate, ResourceLimits};
pub(crate) use tidegate_listener::CertificateResolver;

/// A gateway with one worker that runs until it is dropped.
pub(crate) struct TestGateway {
    pub(crate) address: SocketAddr,
    gateway: Gateway<MemoryStore>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl TestGateway {
    /// Serves a complete policy.
    pub(crate) fn start(policy: &str, limits: ResourceLimits) -> Self {
        Self::start_active(complete(policy, &[]), limits)
    }

    /// Serves a complete policy that refers to these files.
    pub(crate) fn with_files(policy: &str, files: &[(&str, &str)]) -> Self {
        Self::start_active(complete(policy, files), ResourceLimits::default())
    }

    /// Serves a complete policy over TLS, and returns where its certificate can be replaced.
    pub(crate) fn start_tls(
        certificate: &Certificate,
        policy: &str,
        limits: ResourceLimits,
    ) -> (Self, Arc<CertificateResolver>) {
        let Certificate { chain, key, .. } = certificate;
        let listener = any_port().with_tls(chain.as_bytes(), key.as_bytes()).expect("a certificate");
        let resolver = Arc::clone(listener.certificate().expect("TLS"));
        let gateway = gateway(complete(policy, &[]), limits);
        (Self::run(gateway, listener, Duration::ZERO), resolver)
    }

    /// Forwards everything to `servers`, with a limit of `requests` per hour for each client.
    pub(crate) fn with_limit(servers: &[&RecordingServer], requests: u32, limits: ResourceLimits) -> Self {
        let limit = format!("rate_limits: {{ default: {{ {} }} }}", hourly(requests));
        Self::start(&policy_before(servers, &limit), limits)
    }

    /// Forwards everything to `servers`; `rest` is the rest of the policy.
    pub(crate) fn before(servers: &[String], rest: &str) -> Self {
        Self::with(servers, rest, &[], ResourceLimits::default())
    }

    /// The same with files that the policy refers to.
    pub(crate) fn with(
        servers: &[String],
        rest: &str,
        files: &[(&str, &str)],
        limits: ResourceLimits,
    ) -> Self {
        Self::start_active(active(servers, rest, files), limits)
    }

    fn start_active(active: ActivePolicy, limits: ResourceLimits) -> Self {
        Self::draining(active, limits, Duration::ZERO)
    }

    /// Requests in progress when it stops get `drain` to end.
    pub(crate) fn draining(active: ActivePolicy, limits: ResourceLimits, drain: Duration) -> Self {
        Self::run(gateway(active, limits), any_port(), drain)
    }

    /// Reads time from `clock`.
    pub(crate) fn with_clock(clock: Arc<dyn Clock>, active: ActivePolicy, limits: ResourceLimits) -> Self {
        let telemetry = Telemetry::metrics_only(1, Arc::clone(&clock));
        Self::run(gateway_with(active, limits, clock, telemetry), any_port(), Duration::ZERO)
    }

    /// Serves a complete policy and reads time from `clock`.
    pub(crate) fn start_at(clock: Arc<dyn Clock>, policy: &str) -> Self {
        Self::with_clock(clock, complete(policy, &[]), ResourceLimits::default())
    }

    /// Serves a complete policy with the given number of workers.
    pub(crate) fn with_workers(workers: usize, policy: &str) -> Self {
        let listener = Listener::bind("127.0.0.1:0", workers).expect("a free port");
        Self::run(gateway(complete(policy, &[]), ResourceLimits::default()), listener, Duration::ZERO)
    }

    /// Reports to `telemetry`.
    pub(crate) fn with_telemetry(telemetry: Telemetry, active: ActivePolicy, limits: ResourceLimits) -> Self {
        let clock = Arc::new(SystemClock::new());
        Self::run(gateway_with(active, limits, clock, telemetry), any_port(), Duration::ZERO)
    }

    fn run(gateway: Gateway<MemoryStore>, listener: Listener, drain: Duration) -> Self {
        let address = listener.address();
        let (stop, stopping) = watch::channel(false);
        let threads = gateway.start(&[listener], &stopping, drain).expect("a core");
        Self { address, gateway, stop, threads }
    }

    /// Applies another complete policy.
    pub(crate) fn replace_policy(&self, policy: &str) {
        self.gateway.replace(complete(policy, &[])).expect("a policy that can be served");
    }

    /// Applies another policy that forwards everything to `servers`.
    pub(crate) fn replace(&self, servers: &[String], rest: &str) {
        self.gateway.replace(active(servers, rest, &[])).expect("a policy that can be served");
    }

    /// Replaces all bans that operators have made at run time.
    pub(crate) fn set_bans(&self, bans: Bans) {
        self.gateway.limiter().ban(bans);
    }

    /// Bans one subject without an end, as an operator would at run time.
    pub(crate) fn ban(&self, subject: &str) {
        let subject = Subject::parse(subject, 64).expect("a subject");
        let ban = Ban { subject, reason: String::new(), since: Timestamp::ZERO, until: None };
        self.set_bans(Bans::new([ban]));
    }

    pub(crate) fn penalties(&self) -> &Penalties {
        self.gateway.limiter().penalties()
    }

    pub(crate) fn permits(&self) -> &Permits {
        self.gateway.limiter().permits()
    }

    /// Concurrency permits that requests hold.
    pub(crate) fn permits_in_use(&self) -> u64 {
        self.permits().in_use()
    }

    /// The first upstream.
    pub(crate) fn upstream(&self) -> UpstreamStatus {
        self.gateway.upstream_status().swap_remove(0)
    }

    /// The bulkhead of the first upstream.
    pub(crate) fn bulkhead(&self) -> BulkheadStatus {
        self.upstream().bulkhead.expect("a bulkhead")
    }

    /// The bulkheads of routes.
    pub(crate) fn route_bulkheads(&self) -> Vec<(String, BulkheadStatus)> {
        self.gateway.route_status().into_iter().map(|status| (status.route, status.bulkhead)).collect()
    }

    /// Commands breakers.
    pub(crate) fn force_breaker(
        &self,
        upstream: &str,
        server: Option<&str>,
        command: BreakerCommand,
    ) -> Result<(), BreakerCommandError> {
        self.gateway.force_breaker(upstream, server, command)
    }

    /// Connections of clients.
    pub(crate) fn connections(&self) -> usize {
        self.gateway.connections()
    }

    /// All metrics, as a person reads them.
    pub(crate) fn metrics(&self) -> String {
        self.gateway.metrics(MetricsReader::OneShot).into_text()
    }

    /// The value of a series of the metrics.
    pub(crate) fn metric(&self, series: &str) -> u64 {
        let text = self.metrics();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {series} in\n{text}"))
    }

    /// The number of requests that wait or are delayed.
    pub(crate) fn waiting(&self) -> usize {
        self.gateway.limiter().waits().len()
    }

    /// Sets how many requests may wait or be delayed.
    pub(crate) fn bound_waits(&self, bounds: WaitBounds) {
        self.gateway.limiter().waits().set_bounds(bounds);
    }

    /// Stops it, and returns once requests in progress have ended. Other tasks of the test go on meanwhile.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        for thread in std::mem::take(&mut self.threads) {
            soon(tokio::task::spawn_blocking(|| thread.join())).await.unwrap().expect("no worker panics");
        }
    }

    /// A client that sends exact bytes.
    pub(crate) async fn client(&self) -> RawClient {
        RawClient::connect(self.address).await
    }

    /// A client that sends exact bytes from this address of the machine.
    pub(crate) async fn client_from(&self, source: [u8; 4]) -> RawClient {
        RawClient::connect_from(source.into(), self.address).await
    }

    /// The response to a request of exactly these bytes, over a connection of its own.
    pub(crate) async fn send_raw(&self, request: &str) -> Response {
        let mut client = self.client().await;
        client.send(request.as_bytes()).await;
        client.response().await.expect("a response")
    }

    /// The same for a GET of `path` that is written to the request as it is.
    pub(crate) async fn get_raw(&self, path: &str) -> Response {
        self.send_raw(&format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n\r\n")).await
    }

    /// The response to a GET of hyper's client.
    pub(crate) async fn get(&self, path: &str) -> CollectedResponse {
        self.get_with(path, &[]).await
    }

    /// The same with these headers.
    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> CollectedResponse {
        let mut request = Request::get(path).header("host", "test");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Empty::<Bytes>::new()).expect("a request")).await
    }

    /// The response to a request of hyper's client, over a connection of its own.
    pub(crate) async fn send<B>(&self, request: Request<B>) -> CollectedResponse
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let response = soon(http1(self.address).await.send_request(request)).await.expect("a response");
        CollectedResponse::of(response).await
    }
}

impl Drop for TestGateway {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "a worker has panicked");
        }
    }
}

fn gateway(active: ActivePolicy, limits: ResourceLimits) -> Gateway<MemoryStore> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let telemetry = Telemetry::metrics_only(1, Arc::clone(&clock));
    gateway_with(active, limits, clock, telemetry)
}

fn gateway_with(
    active: ActivePolicy,
    limits: ResourceLimits,
    clock: Arc<dyn Clock>,
    telemetry: Telemetry,
) -> Gateway<MemoryStore> {
    let store = Arc::new(MemoryStore::with_cap(1 << 20));
    let limiter = Limiter::new(active, store, clock).expect("limits that can be counted");
    let gateway = Gateway::builder(Arc::new(limiter)).resource_limits(limits).telemetry(telemetry);
    gateway.build().expect("a policy that can be served")
}

/// Limits with the proportions of the defaults, for a watchdog that ticks so often.
pub(crate) fn ticking(tick: Duration) -> ResourceLimits {
    ResourceLimits {
        head_timeout: 3 * tick,
        reader_window: 6 * tick,
        idle_timeout: 15 * tick,
        ..ResourceLimits::default()
    }
}

fn any_port() -> Listener {
    Listener::bind("127.0.0.1:0", 1).expect("a free port")
}

fn complete(policy: &str, files: &[(&str, &str)]) -> ActivePolicy {
    let files: BTreeMap<_, _> =
        files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect();
    let compiled = compile("policy.yaml", policy.as_bytes(), &files);
    ActivePolicy::new(compiled.unwrap_or_else(|problems| panic!("{problems}\n{policy}")).plan)
}

/// A policy that forwards everything to `servers`; `rest` is the rest of it.
pub(crate) fn active(servers: &[String], rest: &str, files: &[(&str, &str)]) -> ActivePolicy {
    let policy = format!(
        "upstreams: {{ api: {{ servers: [{}] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n{rest}",
        servers.join(", ")
    );
    complete(&policy, files)
}

/// A certificate as the gateway presents it.
pub(crate) fn presentable(certificate: &Certificate) -> ServerCertificate {
    let Certificate { chain, key, .. } = certificate;
    ServerCertificate::from_pem(chain.as_bytes(), key.as_bytes()).expect("a certificate")
}

/// A limit of `requests` per hour.
pub(crate) fn hourly(requests: u32) -> String {
    format!("requests: {requests}, window: 1h, algorithm: fixed_window")
}

/// The text of a policy that forwards everything to `servers`, with the settings of `more`.
pub(crate) fn policy_before(servers: &[&RecordingServer], more: &str) -> String {
    let servers: Vec<_> = servers.iter().map(|server| format!("http://{}", server.address)).collect();
    let servers = servers.join(", ");
    format!("upstreams: {{ app: {{ servers: [{servers}] }} }}\nroutes: [{{ upstream: app }}]\n{more}\n")
}
