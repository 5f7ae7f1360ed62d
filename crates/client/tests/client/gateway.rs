//! The client in front of a real gateway.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_client::{Client, ClientError};
use tidegate_gateway::Gateway;
use tidegate_limiter::Limiter;
use tidegate_listener::Listener;
use tidegate_policy::{ActivePolicy, compile};
use tidegate_store::{MemoryStore, SystemClock};
use tidegate_testkit::server::RecordingServer;
use tidegate_testkit::wait::soon;
use tokio::sync::watch;

/// A gateway in this process that runs until it is dropped.
struct TestGateway {
    url: String,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl TestGateway {
    /// Forwards everything to `server`; `limit` is the default limit.
    fn start(server: &RecordingServer, limit: &str, headers: &str) -> Self {
        let policy = format!(
            "upstreams: {{ api: {{ servers: [\"{}\"] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n\
             headers: [{headers}]\nrate_limits: {{ default: {{ {limit} }} }}\n",
            server.url()
        );
        let files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let compiled = compile("policy.yaml", policy.as_bytes(), &files);
        let active = ActivePolicy::new(compiled.unwrap_or_else(|problems| panic!("{problems}")).plan);
        let store = Arc::new(MemoryStore::with_cap(1 << 20));
        let limiter =
            Limiter::new(active, store, Arc::new(SystemClock::new())).expect("limits that can be counted");
        let gateway = Gateway::builder(Arc::new(limiter)).build().expect("a policy that can be served");
        let listener = Listener::bind("127.0.0.1:0", 1).expect("a free port");
        let url = format!("http://{}/items", listener.address());
        let (stop, stopping) = watch::channel(false);
        let threads = gateway.start(&[listener], &stopping, Duration::ZERO).expect("a core");
        Self { url, stop, threads }
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

async fn paces_itself(headers: &str, algorithm: &str) {
    let server = RecordingServer::start().await;
    let limit = format!("requests: 10, window: 1s, algorithm: {algorithm}");
    let gateway = TestGateway::start(&server, &limit, headers);
    let client = Client::new().expect("a client");
    let first = soon(client.get(&gateway.url).send()).await.expect("a response");
    assert_eq!(first.attempts(), 1);
    drop(first);
    let requests: Vec<_> = (0..19).map(|_| tokio::spawn(client.get(&gateway.url).send())).collect();
    for request in requests {
        let response = soon(request).await.expect("no panic").expect("a response");
        assert_eq!((response.status().as_u16(), response.attempts()), (200, 1), "never rejected");
    }
    assert_eq!(server.count(), 20);
}

#[tokio::test]
async fn client_of_a_gateway_with_structured_headers_is_never_rejected() {
    paces_itself("ratelimit", "sliding_window_counter").await;
}

#[tokio::test]
async fn client_of_a_gateway_with_single_valued_headers_is_never_rejected() {
    paces_itself("x_ratelimit", "token_bucket").await;
}

#[tokio::test]
async fn rejection_of_a_gateway_names_the_policy() {
    let server = RecordingServer::start().await;
    let limit = "requests: 1, window: 1h, algorithm: token_bucket";
    let gateway = TestGateway::start(&server, limit, "ratelimit");
    let (first, second) = (Client::new().unwrap(), Client::new().unwrap());
    soon(first.get(&gateway.url).send()).await.unwrap();
    // The first client knows that nothing is left; the second one has to ask.
    for client in [first, second] {
        let error = soon(client.get(&gateway.url).send()).await.unwrap_err();
        let ClientError::RateLimited { policy, retry_after, limit } = &error else { panic!("{error}") };
        assert_eq!((policy.as_deref(), *limit), (Some("default"), Some(1)));
        assert!(retry_after.is_some_and(|wait| wait <= Duration::from_mins(66)), "{error}");
    }
    assert_eq!(server.count(), 1);
}
