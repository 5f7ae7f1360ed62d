//! A gateway, upstreams behind it and clients before it, all in this process.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tidegate_gateway::{Gateway, Listener, ResourceLimits};
use tidegate_limiter::Limiter;
use tidegate_policy::{Active, compile};
use tidegate_store::{Clock, MemoryStore, Penalties, Permits, SystemClock};
use tidegate_telemetry::{Reader, Telemetry};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle as Task, JoinSet};

pub(crate) type AnyBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// An event that does not come within this time never will.
pub(crate) async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), event).await.expect("it happens within 20 s")
}

pub(crate) fn full(text: impl Into<Bytes>) -> AnyBody {
    Full::new(text.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// The rest of a policy, before these servers.
pub(crate) fn active(servers: &[String], rest: &str, files: &[(&str, &str)]) -> Active {
    let policy = format!(
        "upstreams: {{ api: {{ servers: [{}] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n{rest}",
        servers.join(", ")
    );
    let files: BTreeMap<_, _> =
        files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect();
    let plan = compile("policy.yaml", policy.as_bytes(), &files).unwrap_or_else(|e| panic!("{e}")).plan;
    Active::new(plan)
}

fn whole(policy: &str) -> Active {
    let compiled = compile("policy.yaml", policy.as_bytes(), &tidegate_policy::NoFiles);
    Active::new(compiled.unwrap_or_else(|problems| panic!("{problems}")).plan)
}

/// A gateway of one core.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) gateway: Gateway<MemoryStore>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

fn gateway(
    active: Active,
    clock: Arc<dyn Clock>,
    telemetry: Telemetry,
    bounds: ResourceLimits,
) -> Gateway<MemoryStore> {
    let store = Arc::new(MemoryStore::with_cap(1 << 20));
    let limiter = Limiter::new(active, store, clock).unwrap();
    Gateway::builder(Arc::new(limiter)).telemetry(telemetry).resource_limits(bounds).build().unwrap()
}

impl Proxy {
    /// Serves a whole policy.
    pub(crate) fn of(policy: &str, bounds: ResourceLimits) -> Self {
        Self::draining(whole(policy), bounds, Duration::ZERO)
    }

    /// Puts another whole policy in force.
    pub(crate) fn put(&self, policy: &str) {
        self.gateway.replace(whole(policy)).unwrap();
    }

    /// Serves `rest` of a policy before these servers.
    pub(crate) fn before(servers: &[String], rest: &str) -> Self {
        Self::with(servers, rest, &[], ResourceLimits::default())
    }

    pub(crate) fn with(
        servers: &[String],
        rest: &str,
        files: &[(&str, &str)],
        bounds: ResourceLimits,
    ) -> Self {
        Self::draining(active(servers, rest, files), bounds, Duration::ZERO)
    }

    /// What is under way when it stops gets `drain` to end.
    pub(crate) fn draining(active: Active, bounds: ResourceLimits, drain: Duration) -> Self {
        let clock = Arc::new(SystemClock::new());
        let telemetry = Telemetry::counting(1, Arc::clone(&clock) as Arc<dyn Clock>);
        Self::start(gateway(active, clock, telemetry, bounds), drain)
    }

    /// Lives by `clock`.
    pub(crate) fn on(clock: Arc<dyn Clock>, active: Active, bounds: ResourceLimits) -> Self {
        let telemetry = Telemetry::counting(1, Arc::clone(&clock));
        Self::start(gateway(active, clock, telemetry, bounds), Duration::ZERO)
    }

    /// Tells its stories to `telemetry`.
    pub(crate) fn telling(telemetry: Telemetry, active: Active, bounds: ResourceLimits) -> Self {
        let clock = Arc::new(SystemClock::new());
        Self::start(gateway(active, clock, telemetry, bounds), Duration::ZERO)
    }

    fn start(gateway: Gateway<MemoryStore>, drain: Duration) -> Self {
        let listener = Listener::bind("127.0.0.1:0", 1).unwrap();
        let address = listener.address();
        let (stop, stopping) = watch::channel(false);
        let threads = gateway.start(&[listener], &stopping, drain).unwrap();
        Self { address, gateway, stop, threads }
    }

    pub(crate) fn penalties(&self) -> &Penalties {
        self.gateway.limiter().penalties()
    }

    pub(crate) fn permits(&self) -> &Permits {
        self.gateway.limiter().permits()
    }

    /// Puts another policy in force.
    pub(crate) fn replace(&self, servers: &[String], rest: &str) {
        self.gateway.replace(active(servers, rest, &[])).unwrap();
    }

    /// The value of a series among what is counted.
    pub(crate) fn counted(&self, series: &str) -> u64 {
        let text = self.gateway.page(Reader::Person).into_text();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().unwrap()
    }

    /// Lets what is under way end. Other tasks go on meanwhile.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        for thread in std::mem::take(&mut self.threads) {
            soon(tokio::task::spawn_blocking(|| thread.join())).await.unwrap().expect("no core panics");
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(path, &[]).await
    }

    pub(crate) async fn ask(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::get(path).header("host", "test");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Empty::<Bytes>::new()).unwrap()).await
    }

    pub(crate) async fn send<B>(&self, request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let response = soon(connect(self.address).await.send_request(request)).await.unwrap();
        Answer::of(response).await
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "a core has panicked");
        }
    }
}

/// A new connection.
pub(crate) async fn connect<B>(address: SocketAddr) -> http1::SendRequest<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A response that was read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    pub(crate) async fn of(response: Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let collected = soon(body.collect()).await.unwrap();
        let trailers = collected.trailers().cloned();
        Self { status: parts.status, headers: parts.headers, body: collected.to_bytes(), trailers }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        let value = self.header(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().unwrap_or_else(|_| panic!("{name}: {value}"))
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }
}

/// A server that answers as it is told. It speaks HTTP/1.1 and HTTP/2.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    accepting: Task<()>,
    has_been_asked: watch::Receiver<bool>,
}

impl Upstream {
    pub(crate) async fn start<F, A>(answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
        A: Future<Output = Response<AnyBody>> + Send + 'static,
    {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), answer).await
    }

    pub(crate) async fn start_at<F, A>(address: SocketAddr, answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
        A: Future<Output = Response<AnyBody>> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, has_been_asked) = watch::channel(false);
        let accepting = tokio::spawn(async move {
            // Ended with the task that accepts.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, asked) = (answer.clone(), asked.clone());
                let service = service_fn(move |request| {
                    asked.send_replace(true);
                    let answer = answer(request);
                    async move { Ok::<_, Infallible>(answer.await) }
                });
                connections.spawn(async move {
                    let http = auto::Builder::new(TokioExecutor::new());
                    // How it ends is the gateway's business.
                    let _ = http.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, accepting, has_been_asked }
    }

    /// Waits until somebody has asked it something.
    pub(crate) async fn has_been_asked(&self) {
        self.has_been_asked.clone().wait_for(|asked| *asked).await.unwrap();
    }

    /// Says what headers it was asked with.
    pub(crate) async fn mirror() -> Self {
        let answer = |request: Request<Incoming>| async move {
            let headers = request.headers().iter().map(|(name, value)| format!("{name}: {value:?}\n"));
            Response::new(full(headers.collect::<Vec<_>>().concat()))
        };
        Self::start(answer).await
    }

    /// Says its name to everybody.
    pub(crate) async fn named(name: &'static str) -> Self {
        Self::start(move |_| async move { Response::new(full(name)) }).await
    }

    /// Closes its socket and every connection.
    pub(crate) async fn leave(mut self) {
        self.accepting.abort();
        // That it was ended is the one way it ends.
        let _ = soon(&mut self.accepting).await;
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn h2c(&self) -> String {
        format!("h2c://{}", self.address)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
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
