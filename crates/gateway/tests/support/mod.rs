//! A gateway in this process, upstreams that record what they get, and clients that send what they like.

mod client;
mod message;
mod upstream;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Timestamp;
use tidegate_gateway::{Gateway, Listener, ResourceLimits};
use tidegate_limiter::Limiter;
use tidegate_policy::{Active, Ban, Bans, Subject, compile};
use tidegate_store::{Clock, MemoryStore, SystemClock};
use tidegate_telemetry::{Reader, Telemetry};
use tokio::sync::watch;

pub(crate) use client::Client;
pub(crate) use message::{Request, Response, read_request, read_response_to};
pub(crate) use upstream::{Act, Upstream, ok};

/// Nothing here takes longer unless it hangs.
const DEADLINE: Duration = Duration::from_secs(10);

/// Waits for `event`, and fails if it never comes.
pub(crate) async fn within<F: Future>(what: &str, event: F) -> F::Output {
    tokio::time::timeout(DEADLINE, event).await.unwrap_or_else(|late| panic!("{what}: {late}"))
}

/// Asks again until `holds`, and fails if it never does.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let asking = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(what, asking).await;
}

/// A gateway that serves until it is dropped.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    gateway: Gateway<MemoryStore>,
    stop: watch::Sender<bool>,
}

impl Served {
    pub(crate) fn start(policy: &str, bounds: ResourceLimits) -> Self {
        Self::at(&Listener::bind("127.0.0.1:0", 1).expect("a free port"), policy, bounds)
    }

    /// Serves a policy that refers to these files.
    pub(crate) fn with_files(policy: &str, files: &[(&str, &str)]) -> Self {
        let listener = Listener::bind("127.0.0.1:0", 1).expect("a free port");
        Self::serve(&listener, policy, files, ResourceLimits::default())
    }

    pub(crate) fn at(listener: &Listener, policy: &str, bounds: ResourceLimits) -> Self {
        Self::serve(listener, policy, &[], bounds)
    }

    fn serve(listener: &Listener, policy: &str, files: &[(&str, &str)], bounds: ResourceLimits) -> Self {
        let files: BTreeMap<_, _> =
            files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect();
        let compiled = compile("test.yaml", policy.as_bytes(), &files)
            .unwrap_or_else(|problems| panic!("{problems}\n{policy}"));
        let store = Arc::new(MemoryStore::with_cap(1 << 20));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let telemetry = Telemetry::counting(1, Arc::clone(&clock));
        let limiter = Limiter::new(Active::new(compiled.plan), store, clock).expect("a limiter");
        let gateway = Gateway::builder(Arc::new(limiter))
            .telemetry(telemetry)
            .resource_limits(bounds)
            .build()
            .expect("a gateway");
        let (stop, stopping) = watch::channel(false);
        gateway.start(std::slice::from_ref(listener), &stopping, Duration::ZERO).expect("a core");
        Self { address: listener.address(), gateway, stop }
    }

    /// In front of `upstreams`, with so many requests an hour for each client.
    pub(crate) fn before(upstreams: &[&Upstream], requests: u32, bounds: ResourceLimits) -> Self {
        Self::start(
            &policy(upstreams, &format!("rate_limits: {{ default: {{ {} }} }}", hourly(requests))),
            bounds,
        )
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// The answer to one request over a connection of its own.
    pub(crate) async fn ask(&self, request: &str) -> Response {
        let mut client = self.client().await;
        client.send(request.as_bytes()).await;
        client.response().await.expect("an answer")
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n\r\n")).await
    }

    /// Bans one subject, as an operator would at run time.
    pub(crate) fn ban(&self, subject: &str) {
        let subject = Subject::parse(subject, 64).expect("a subject");
        let ban = Ban { subject, reason: String::new(), since: Timestamp::ZERO, until: None };
        self.gateway.limiter().ban(Bans::new([ban]));
    }

    /// The value of a series of the metrics.
    pub(crate) fn counted(&self, series: &str) -> u64 {
        let page = self.gateway.page(Reader::Person).into_text();
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {series} in\n{page}"))
    }

    pub(crate) fn connections(&self) -> usize {
        self.gateway.connections()
    }

    /// Concurrency permits that requests hold.
    pub(crate) fn permits_in_use(&self) -> u64 {
        self.gateway.limiter().permits().taken()
    }

    /// The value of a metric's series.
    pub(crate) fn metric(&self, series: &str) -> u64 {
        let text = self.gateway.page(Reader::Person).into_text();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().expect("a number")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

pub(crate) fn hourly(requests: u32) -> String {
    format!("requests: {requests}, window: 1h, algorithm: fixed_window")
}

/// A policy that routes everything to `upstreams`, and says `more`.
pub(crate) fn policy(upstreams: &[&Upstream], more: &str) -> String {
    let servers: Vec<_> = upstreams.iter().map(|upstream| format!("http://{}", upstream.address)).collect();
    let servers = servers.join(", ");
    format!("upstreams: {{ app: {{ servers: [{servers}] }} }}\nroutes: [{{ upstream: app }}]\n{more}\n")
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
