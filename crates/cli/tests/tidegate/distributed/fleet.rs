//! Two gateways with one Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_testkit::client::{LoadClock, LoadPlan, SteadyLoad, request};
use tidegate_testkit::process::PolicyFile;
use tidegate_testkit::server::echo;
use tidegate_testkit::wait::eventually_blocking;

use super::samples::index;
use crate::serve::admin::AdminGateway;

/// The time between two questions to a gateway.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// The gateways, each with its own policy file and state.
pub(super) struct Fleet {
    pub(super) gateways: [AdminGateway; 2],
}

/// The limit of each client: `requests` per `window`.
#[derive(Clone, Copy, Debug)]
pub(super) struct FleetLimit {
    pub(super) requests: u64,
    pub(super) window: Duration,
    pub(super) algorithm: &'static str,
}

impl Fleet {
    /// Starts the gateways. `store` has keys of the policy's `store` besides the URL.
    pub(super) fn start(url: &str, store: &str, limit: FleetLimit) -> Self {
        let FleetLimit { requests, window, algorithm } = limit;
        let gateway = || {
            let policy = PolicyFile::new(&format!(
                "upstreams: {{ api: {{ servers: ['http://{}'] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n\
                 admin: {{ listen: '127.0.0.1:0' }}\n\
                 clients: {{ identify_by: [api_key, ip], api_key: {{ verify: none }} }}\n\
                 store: {{ url: '{url}', secret_file: store.secret, nodes: 2, {store} }}\n\
                 rate_limits: {{ default: {{ requests: {requests}, window: {}s, algorithm: {algorithm} }} }}\n",
                echo(),
                window.as_secs()
            ));
            std::fs::write(policy.beside("store.secret"), "the secret of all nodes").unwrap();
            AdminGateway::serve(policy)
        };
        Self { gateways: [gateway(), gateway()] }
    }

    /// Starts a steady load on both gateways.
    pub(super) fn load(&self, plan: LoadPlan, clock: LoadClock) -> SteadyLoad {
        let addresses = self.gateways.each_ref().map(|gateway| gateway.server.address.as_str());
        SteadyLoad::start(&addresses, plan, clock)
    }

    /// Waits until Redis decides on both gateways.
    pub(super) fn wait_until_normal(&self) {
        self.wait_for("both gateways use Redis", |store| store["mode"] == "normal");
    }

    /// Waits until Redis decides on both gateways and each knows the other.
    pub(super) fn wait_until_complete(&self) {
        let is_complete = |store: &serde_json::Value| store["mode"] == "normal" && store["nodes"] == 2;
        self.wait_for("both gateways use Redis and know each other", is_complete);
    }

    /// Waits until both gateways decide without Redis.
    pub(super) fn wait_until_fallback(&self) {
        self.wait_for("both gateways are in fallback", |store| store["mode"] == "fallback");
    }

    fn wait_for(&self, what: &str, is_there: impl Fn(&serde_json::Value) -> bool) {
        eventually_blocking(what, || self.gateways.iter().all(|gateway| is_there(&store_of(gateway))));
    }

    /// Starts to observe when the gateways stop using Redis.
    pub(super) fn watch(&self, clock: LoadClock) -> FallbackWatch {
        let is_over = Arc::new(AtomicBool::new(false));
        let watch = |gateway: &AdminGateway| {
            let (admin, token) = (gateway.admin.clone(), gateway.token.clone());
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || watch_fallback(&admin, &token, clock, &is_over))
        };
        FallbackWatch { threads: self.gateways.iter().map(watch).collect(), is_over }
    }
}

/// Threads that ask the gateways for the time that they have been in fallback.
pub(super) struct FallbackWatch {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<FallbackStart>>>,
}

/// A gateway began to decide without Redis between these two times.
#[derive(Clone, Copy, Debug)]
pub(super) struct FallbackStart {
    pub(super) after: Duration,
    pub(super) before: Duration,
}

impl FallbackStart {
    /// Whether it may have been in this window.
    pub(super) fn is_in(&self, number: u128, window: Duration) -> bool {
        (index(self.after, window)..=index(self.before, window)).contains(&number)
    }
}

impl FallbackWatch {
    pub(super) fn finish(self) -> Vec<FallbackStart> {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

/// The total time in fallback shows also what was over between two questions.
fn watch_fallback(admin: &str, token: &str, clock: LoadClock, is_over: &AtomicBool) -> Vec<FallbackStart> {
    let headers = format!("Authorization: Bearer {token}\r\n");
    let (mut starts, mut known) = (Vec::new(), (clock.now(), 0.0, true));
    while !is_over.load(Ordering::Relaxed) {
        let asked = clock.now();
        let store = request(admin, "GET", "/v1/status", &headers, "").json()["store"].clone();
        let seconds = store["fallback_seconds"].as_f64().unwrap();
        let (after, total, was_normal) = known;
        if was_normal && seconds > total {
            starts.push(FallbackStart { after, before: clock.now() });
        }
        known = (asked, seconds, store["mode"] == "normal");
        clock.wait(WATCH_INTERVAL);
    }
    starts
}

/// What a gateway says about its store.
pub(super) fn store_of(gateway: &AdminGateway) -> serde_json::Value {
    gateway.send("GET", "/v1/status", "").json()["store"].clone()
}
