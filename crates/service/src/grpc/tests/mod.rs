//! Calls to a service on a loopback port: what clients of the caller can choose never fails a call, and memory is bounded.

mod bad_descriptors;
mod failing_store;
mod hits;
mod long_messages;
mod overrides;
mod reflection;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::{Builder, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use prost::Message;
use tidegate_core::Timestamp;
use tidegate_limiter::Limiter;
use tidegate_listener::Listener;
use tidegate_policy::{ActivePolicy, EnvoyFile, EnvoyLimits, NoFiles, compile};
use tidegate_store::{Clock, ManualClock, MemoryStore, Store};
use tidegate_telemetry::{Protocol, Telemetry};
use tidegate_testkit::wait::within;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::frame;
use super::message::{
    DescriptorEntry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, ResponseCode,
};
use crate::{Service, ServiceListener};

const RLS: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const OK: i32 = ResponseCode::Ok as i32;
const OVER_LIMIT: i32 = ResponseCode::OverLimit as i32;

/// A service with one worker that runs until it is dropped.
struct LoopbackService {
    listener: ServiceListener,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl LoopbackService {
    /// Serves a policy, and an Envoy configuration if it is not empty.
    fn start(policy: &str, envoy: &str) -> Self {
        Self::start_on(MemoryStore::with_cap(1 << 20), policy, envoy)
    }

    /// The same with counters in `store`.
    fn start_on<S: Store + 'static>(store: S, policy: &str, envoy: &str) -> Self {
        let plan = compile("policy.yaml", policy.as_bytes(), &NoFiles).expect("a valid policy").plan;
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
        let policy = ActivePolicy::new(plan);
        let limiter = Limiter::new(policy, Arc::new(store), Arc::clone(&clock)).expect("few limits");
        let service = Service::new(Arc::new(limiter), Telemetry::metrics_only(1, clock));
        if !envoy.is_empty() {
            let file = EnvoyFile { name: "envoy.yaml".to_owned(), bytes: envoy.as_bytes().to_vec() };
            let limits = EnvoyLimits::compile(&[file]).unwrap_or_else(|problems| panic!("{problems}"));
            service.apply_envoy_limits(limits).expect("few limits");
        }
        let listener = Listener::bind("127.0.0.1:0", 1).expect("a free port");
        let listener = ServiceListener { protocol: Protocol::Grpc, listener };
        let (stop, stopping) = watch::channel(false);
        let listeners = std::slice::from_ref(&listener);
        let threads = service.start(listeners, &stopping, Duration::from_millis(10)).expect("a worker");
        Self { listener, stop, threads }
    }

    async fn connect(&self) -> TestCaller {
        self.connect_with(&Builder::new()).await
    }

    async fn connect_with(&self, builder: &Builder) -> TestCaller {
        let stream = TcpStream::connect(self.listener.listener.address()).await.unwrap();
        let (requests, connection) = builder.handshake(stream).await.unwrap();
        tokio::spawn(connection);
        TestCaller { requests }
    }
}

impl Drop for LoopbackService {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The reply to a call: its gRPC status and its body.
#[derive(Debug)]
struct CallReply {
    status: u16,
    message: String,
    body: Bytes,
}

impl CallReply {
    fn response(&self) -> RateLimitResponse {
        assert_eq!(self.status, 0, "{self:?}");
        RateLimitResponse::decode(&self.body[5..]).expect("a response")
    }
}

/// A connection of a caller.
struct TestCaller {
    requests: SendRequest<Bytes>,
}

impl TestCaller {
    /// Begins a call.
    async fn begin(
        &self,
        path: &str,
        headers: &HeaderMap,
    ) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
        let mut request =
            Request::post(format!("http://test{path}")).header("content-type", "application/grpc");
        request.headers_mut().unwrap().extend(headers.clone());
        let mut requests = within("a stream", self.requests.clone().ready()).await.unwrap();
        requests.send_request(request.body(()).unwrap(), false).unwrap()
    }

    async fn call(&self, path: &str, body: Bytes) -> CallReply {
        self.call_with(path, &HeaderMap::new(), body).await
    }

    async fn call_with(&self, path: &str, headers: &HeaderMap, body: Bytes) -> CallReply {
        let (response, mut stream) = self.begin(path, headers).await;
        // The service may answer before it has the body.
        let _ = stream.send_data(body, true);
        within("a reply", reply(response)).await
    }

    async fn ask(&self, request: &RateLimitRequest) -> CallReply {
        self.call(RLS, frame::encode(request)).await
    }
}

/// Reads the whole reply to a call.
async fn reply(response: h2::client::ResponseFuture) -> CallReply {
    let (parts, mut incoming) = response.await.unwrap().into_parts();
    let body = read_all(&mut incoming).await;
    let trailers = incoming.trailers().await.ok().flatten().unwrap_or(parts.headers);
    let text = |name: &str| trailers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let status = text("grpc-status").and_then(|status| status.parse().ok()).expect("a status");
    CallReply { status, message: text("grpc-message").unwrap_or_default(), body }
}

async fn read_all(incoming: &mut RecvStream) -> Bytes {
    let mut body = BytesMut::new();
    while let Some(Ok(data)) = incoming.data().await {
        let _ = incoming.flow_control().release_capacity(data.len());
        body.extend_from_slice(&data);
    }
    body.freeze()
}

fn descriptor<V: AsRef<[u8]>>(entries: &[(&str, V)]) -> RateLimitDescriptor {
    let entry =
        |(key, value): &(&str, V)| DescriptorEntry { key: (*key).to_owned(), value: value.as_ref().to_vec() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

fn request(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 }
}
