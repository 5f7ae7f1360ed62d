//! Every interface with the same policy, each with a store that records its checks.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use serde_json::{Value, json};
use tidegate_core::Timestamp;
use tidegate_gateway::Gateway;
use tidegate_limiter::Limiter;
use tidegate_listener::Listener;
use tidegate_policy::{ActivePolicy, BodyFacts, ExplainRequest, ExplainedVerdict, compile, explain};
use tidegate_service::{Service, ServiceListener};
use tidegate_store::{Clock, ManualClock};
use tidegate_telemetry::{Protocol, Telemetry};
use tidegate_testkit::client::RawClient;
use tidegate_testkit::message::Response;
use tidegate_tower::policy::PolicyLayer;
use tokio::sync::watch;
use tower::{Layer, ServiceExt, service_fn};

use super::generator::GeneratedRequest;
use super::recording_store::{RecordingStore, describe};
use super::{ObservedReading, ReadingOfEach};
use crate::grpc::client::{GrpcClient, RlsDescriptor, RlsEntry, request as rls_request};

/// Keys and tokens that are verified, or refused.
pub(super) const VERIFIED: &str = "
  tiers:
    free: { requests: 9, window: 1m, mode: shadow }
    paid: { requests: 9, window: 1m, mode: shadow }
clients:
  identify_by: [api_key, user, cookie, ip]
  api_key: { header: X-API-Key }
  user: { jwt: { header: Authorization, claim: sub, secret_file: jwt.secret } }
  tenant: { header: X-Tenant }
  cookie: { name: session }
  ip: { trusted_proxies: [127.0.0.9] }
  tiers: { file: keys.csv, claim: plan }
  on_invalid: reject
";

/// Identities that count as they are sent, one of them in a header with an underscore.
pub(super) const UNVERIFIED: &str = "
  tiers:
    free: { requests: 9, window: 1m, mode: shadow }
    paid: { requests: 9, window: 1m, mode: shadow }
clients:
  identify_by: [user, api_key, fingerprint, ip]
  api_key: { header: x_api_key, verify: none }
  user: { header: X-User }
  tenant: { jwt: { header: Authorization, claim: sub, secret_file: jwt.secret } }
  fingerprint: { headers: [user-agent] }
  cookie: { name: session }
  tiers: { header: X-Plan }
  ip: { trusted_proxies: [127.0.0.9] }
";

/// Two keys, the second one hashed.
const KEYS: &str = "k1,free\nsha256:015f7e6bc5aeaf483724089e9252cc13b50951a6b69412522765cff4d780306e,paid\n";

/// The rest of the policy. Its limits are last.
const POLICY: &str = "
upstreams: { app: { servers: [http://127.0.0.1:1] } }
routes:
  - { host: a.example, path: /**, upstream: app }
  - { host: b.example, path: /**, upstream: app, http: { encoded_slash: keep, underscore_headers: keep } }
  - { host: '[2001:db8::1]', path: /**, upstream: app, http: { encoded_slash: decode } }
bans: { networks: [203.0.113.0/24] }
allow: { networks: [127.0.0.0/8, 192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24] }
rate_limits:
  global: { requests: 9, window: 1m, mode: shadow }
  tenant: { requests: 9, window: 1m, mode: shadow }
  default: { requests: 9, window: 1m, mode: shadow }
  endpoints:
    /api/v1: { requests: 9, window: 1m, mode: shadow }
    POST /login: { requests: 9, window: 1m, mode: shadow }
    /search: { requests: 9, window: 1m, mode: shadow }
  rules:
    - { name: original, match: { header: { X-Original-URL: /admin } }, per: [ip], requests: 9, window: 1m, mode: shadow }
    - { name: real, match: { header: { X-Real-IP: 192.0.2.7 } }, requests: 9, window: 1m, mode: shadow }
    - { name: critical, match: { header: { X-Criticality: critical } }, requests: 9, window: 1m, mode: shadow }
    - { name: host, match: { when: \"request.host == 'admin.example'\" }, requests: 9, window: 1m, mode: shadow }
    - { name: path, match: { when: \"request.path.startsWith('/api')\" }, requests: 9, window: 1m, mode: shadow }
    - { name: posts, match: { method: [POST] }, per: [ip], requests: 9, window: 1m, mode: shadow }
    - { name: matched, match: { header: { X-Match: a } }, per_each: [ip, cookie], requests: 9, window: 1m, mode: shadow }
    - { name: body, match: { path: /login }, per_each: [ip, user], user: { body: username }, requests: 9, window: 1m, mode: shadow }
    - { name: costly, match: { path: /login }, cost: { header: X-Cost }, requests: 9, window: 1m, mode: shadow }
";

/// All interfaces. They stop when this is dropped.
pub(super) struct Interfaces {
    gateway: Connections,
    check: Connections,
    authorize: Connections,
    rls: GrpcClient,
    gateway_limiter: Arc<Limiter<RecordingStore>>,
    service_limiter: Arc<Limiter<RecordingStore>>,
    tower_limiter: Arc<Limiter<RecordingStore>>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Interfaces {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "a worker has panicked");
        }
    }
}

fn limiter(clients: &str) -> Arc<Limiter<RecordingStore>> {
    let files: BTreeMap<_, _> =
        [("jwt.secret", "a secret that is long enough for HS256"), ("keys.csv", KEYS)]
            .map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()))
            .into();
    let compiled = compile("policy.yaml", format!("{POLICY}{clients}").as_bytes(), &files);
    let active = ActivePolicy::new(compiled.unwrap_or_else(|problems| panic!("{problems}")).plan);
    Arc::new(Limiter::new(active, Arc::default(), clock()).expect("few limits"))
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::at(Timestamp::from_secs(1_800_000_000)))
}

fn any_port() -> Listener {
    Listener::bind("127.0.0.1:0", 1).expect("a free port")
}

impl Interfaces {
    pub(super) async fn start(clients: &str) -> Self {
        let (stop, stopping) = watch::channel(false);
        let [gateway_limiter, service_limiter, tower_limiter] = [(); 3].map(|()| limiter(clients));
        let telemetry = || Telemetry::metrics_only(1, clock());
        let (drain, listener) = (Duration::from_secs(1), any_port());
        let gateway = listener.address();
        let built = Gateway::builder(Arc::clone(&gateway_limiter)).telemetry(telemetry()).build();
        let mut threads = built.expect("a policy").start(&[listener], &stopping, drain).expect("a core");
        let listeners = [Protocol::Grpc, Protocol::Http]
            .map(|protocol| ServiceListener { protocol, listener: any_port() });
        let service = Service::new(Arc::clone(&service_limiter), telemetry());
        threads.extend(service.start(&listeners, &stopping, drain).expect("a worker"));
        let [grpc, http] = listeners.map(|listener| listener.listener.address());
        Self {
            gateway: Connections::to(gateway),
            check: Connections::to(http),
            authorize: Connections::to(http),
            rls: GrpcClient::connect(grpc).await,
            gateway_limiter,
            service_limiter,
            tower_limiter,
            stop,
            threads,
        }
    }

    /// What each interface that can express the request makes of it.
    pub(super) async fn read(&mut self, request: &GeneratedRequest) -> ReadingOfEach {
        let mut readings = ReadingOfEach::new();
        readings.insert("gateway", self.gateway(request).await);
        // The tower layer does not read bodies.
        if request.body.is_none() {
            readings.insert("tower", self.tower(request).await);
        }
        let hosts = request.values("host");
        // Without a host, `explain` assumes one and the service does not know it.
        if !hosts.is_empty() {
            readings.insert("explain", self.explain(request));
        }
        // Messages describe the host that counts, not a target with another one.
        if !hosts.is_empty() && request.authority.is_none() {
            readings.insert("check", self.check(request).await);
            // Proxies do not tell bodies.
            if hosts.len() == 1 && request.body.is_none() {
                readings.insert("rls", self.rls(request).await);
                if let Some(head) = authorize_head(request) {
                    readings.insert("authorize", self.authorize(request, &head).await);
                }
            }
        }
        readings
    }

    async fn gateway(&mut self, request: &GeneratedRequest) -> ObservedReading {
        let mut head = format!("{} {} HTTP/1.1\r\n", request.method, request.target());
        for (name, value) in &request.headers {
            push_header(&mut head, name, value);
        }
        if let Some(body) = request.body {
            push_header(&mut head, "Content-Length", &body.len().to_string());
        }
        head.push_str("\r\n");
        head.push_str(request.body.unwrap_or_default());
        let response = self.gateway.send(request.peer(), &head).await;
        observed(&self.gateway_limiter, response.status, &response.body)
    }

    async fn tower(&self, request: &GeneratedRequest) -> ObservedReading {
        let peer = IpAddr::from(request.peer());
        let layer = PolicyLayer::new(Arc::clone(&self.tower_limiter), move |_: &Request<_>| Some(peer));
        let handler = service_fn(async |_: Request<Empty<Bytes>>| {
            Ok::<_, Infallible>(http::Response::new(Vec::<u8>::new()))
        });
        let mut sent = Request::new(Empty::new());
        *sent.method_mut() = request.method.parse().unwrap();
        *sent.uri_mut() = request.target().parse().unwrap();
        *sent.headers_mut() = request.header_map();
        let response = layer.layer(handler).oneshot(sent).await.expect("a response");
        observed(&self.tower_limiter, response.status().as_u16(), response.body())
    }

    fn explain(&self, request: &GeneratedRequest) -> ObservedReading {
        let (target, headers) = (request.target(), request.header_map());
        let policy = self.gateway_limiter.policy();
        let explained = explain(
            &policy.matcher,
            &ExplainRequest {
                method: request.method,
                target: &target,
                headers: &headers,
                peer: request.peer().into(),
                body: BodyFacts::Complete(request.body.unwrap_or_default().as_bytes()),
            },
            policy.directory.as_deref(),
            clock().now(),
        );
        match explained.verdict {
            ExplainedVerdict::Rejected { reason, .. } => ObservedReading::Refused(reason),
            _ => ObservedReading::Checked(
                explained
                    .rules
                    .iter()
                    .map(|rule| describe(&rule.name, &rule.key, rule.cost, rule.binding))
                    .collect(),
            ),
        }
    }

    async fn check(&mut self, request: &GeneratedRequest) -> ObservedReading {
        let mut headers = BTreeMap::<_, Vec<_>>::new();
        for (name, value) in &request.headers {
            headers.entry(name.to_ascii_lowercase()).or_default().push(*value);
        }
        let mut described = json!({
            "method": request.method, "path": request.path, "headers": headers, "peer": request.peer().to_string(),
        });
        if let Some(body) = request.body {
            described["body"] = body.into();
        }
        let body = json!({ "request": described }).to_string();
        let head = format!(
            "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let response = self.check.send(Ipv4Addr::LOCALHOST, &head).await;
        observed(&self.service_limiter, response.status, &response.body)
    }

    async fn authorize(&mut self, request: &GeneratedRequest, head: &str) -> ObservedReading {
        // Of the proxies that ask, the policy trusts the one through which trusted requests come.
        let proxy = if request.is_trusted { request.peer() } else { Ipv4Addr::LOCALHOST };
        let response = self.authorize.send(proxy, head).await;
        observed(&self.service_limiter, response.status, &response.body)
    }

    async fn rls(&mut self, request: &GeneratedRequest) -> ObservedReading {
        let peer = request.peer().to_string();
        let stated = [("method", request.method), ("path", &request.path), ("remote_address", &peer)];
        let entries = stated.into_iter().chain(request.headers.iter().copied());
        let entries = entries.map(|(key, value)| RlsEntry { key: key.to_owned(), value: value.to_owned() });
        let descriptor = RlsDescriptor { entries: entries.collect(), ..RlsDescriptor::default() };
        let response = self.rls.should_rate_limit(&rls_request("tidegate", vec![descriptor])).await;
        let status = if response.raw_body.is_empty() { 200 } else { 400 };
        observed(&self.service_limiter, status, &response.raw_body)
    }
}

/// What an interface has checked, or why it has not.
fn observed(limiter: &Limiter<RecordingStore>, status: u16, body: &[u8]) -> ObservedReading {
    let checks = limiter.store().take();
    if !matches!(status, 400 | 401 | 404) {
        let policy = limiter.policy();
        let names: BTreeMap<_, _> =
            policy.matcher.plan().rate_limits.iter().map(|rule| (rule.id, rule.name.clone())).collect();
        return ObservedReading::Checked(
            checks.iter().map(|check| check.describe(&names[&check.rule])).collect(),
        );
    }
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = body["message"].as_str().or(body["detail"].as_str()).unwrap_or_default();
    let kinds = ["Invalid request: ", "Invalid path: ", "Unauthorized: "];
    let reason = kinds.iter().find_map(|kind| message.strip_prefix(kind)).unwrap_or(message);
    ObservedReading::Refused(reason.trim_end_matches('.').replacen("No matching", "no matching", 1))
}

/// The subrequest of a proxy that is configured as the documentation says; `None` if it cannot describe the request.
fn authorize_head(request: &GeneratedRequest) -> Option<String> {
    // The connection and what only proxies send are those of the proxy that asks.
    let is_proxy_header = |name: &str| {
        let name = name.to_ascii_lowercase();
        ["x-original-", "x-rewrite-", "x-real-ip", "x-criticality", "x-forwarded-host", "x-forwarded-port"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let of_proxy = request.headers.iter().any(|(name, _)| is_proxy_header(name));
    if request.is_trusted && of_proxy || !request.values("connection").is_empty() {
        return None;
    }
    let mut forwarded_for = request.values("x-forwarded-for").join(",");
    let real_ip: IpAddr = if request.is_trusted {
        forwarded_for.rsplit(',').next()?.trim().parse().ok()?
    } else {
        if !forwarded_for.is_empty() {
            forwarded_for.push_str(", 127.0.0.2");
        }
        request.peer().into()
    };
    let [host] = request.values("host")[..] else { return None };
    let mut head = format!(
        "GET /v1/authorize HTTP/1.1\r\nHost: localhost\r\nX-Original-Method: {}\r\nX-Original-URI: {}\r\nX-Original-Host: {host}\r\nX-Real-IP: {real_ip}\r\n",
        request.method, request.path
    );
    if !forwarded_for.is_empty() {
        push_header(&mut head, "X-Forwarded-For", &forwarded_for);
    }
    for (name, value) in &request.headers {
        if !is_proxy_header(name) && !matches!(*name, "Host" | "X-Forwarded-For") {
            push_header(&mut head, name, value);
        }
    }
    head.push_str("\r\n");
    Some(head)
}

fn push_header(head: &mut String, name: &str, value: &str) {
    head.extend([name, ": ", value, "\r\n"]);
}

/// Connections to one server, one from each address.
struct Connections {
    server: SocketAddr,
    open: BTreeMap<Ipv4Addr, RawClient>,
}

impl Connections {
    fn to(server: SocketAddr) -> Self {
        Self { server, open: BTreeMap::new() }
    }

    /// The response to a message from this address. The server closes the connection of a request that is ambiguous.
    async fn send(&mut self, source: Ipv4Addr, message: &str) -> Response {
        let mut client = match self.open.remove(&source) {
            Some(client) => client,
            None => RawClient::connect_from(source.into(), self.server).await,
        };
        client.send(message.as_bytes()).await;
        let response = client.response().await.expect("a response");
        if response.header("connection") != Some("close") {
            self.open.insert(source, client);
        }
        response
    }
}
