//! Traces of decisions arrive at a collector, as parts of the traces of callers.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tidegate_core::Timestamp;
use tidegate_policy::{NoFiles, SampleRate, TracesPlan};
use tidegate_store::ManualClock;
use tidegate_telemetry::{Log, Protocol, Tracer};
use tidegate_testkit::client::{CollectedResponse, http1};
use tidegate_testkit::wait::soon;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::{Response, Status};

use crate::fixture::TestService;
use crate::grpc::client::{GrpcClient, RLS, descriptor, message, request};
use crate::resp::RespClient;

const POLICY: &str = "rate_limits: { default: { requests: 1, window: 1h } }";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A collector that passes spans on to the test.
struct SpanCollector(mpsc::UnboundedSender<Span>);

#[tonic::async_trait]
impl TraceService for SpanCollector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let scopes =
            request.into_inner().resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        for span in scopes.flat_map(|scope| scope.spans) {
            let _ = self.0.send(span);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A service that traces this share of what its callers do not trace, and the spans that it exports.
async fn traced_service(sample: SampleRate) -> (TestService, mpsc::UnboundedReceiver<Span>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (send, spans) = mpsc::unbounded_channel();
    let server =
        tonic::transport::Server::builder().add_service(TraceServiceServer::new(SpanCollector(send)));
    tokio::spawn(server.serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener)));
    let (tracer, log) = (Tracer::off(), Log::off(Arc::new(ManualClock::at(Timestamp::ZERO))));
    tracer.configure(Some(&TracesPlan { endpoint, sample }), &log).unwrap();
    (TestService::start_traced(POLICY, &NoFiles, tracer), spans)
}

async fn check_over_http(address: SocketAddr, parent: &str) {
    let mut client = http1(address).await;
    let request =
        Request::post("/v1/check").header("host", "localhost").header("content-type", "application/json");
    let body = Full::new(Bytes::from_static(br#"{"rule":"default","client":"user:http"}"#));
    let request = request.header("traceparent", parent).body(body).unwrap();
    let response = CollectedResponse::of(client.send_request(request).await.unwrap()).await;
    assert_eq!(response.status.as_u16(), 200);
}

async fn check_over_grpc(address: SocketAddr, parent: &str) {
    let entries = descriptor(&[("rule", "default"), ("client", "user:grpc")]);
    let call = message(&request("tidegate", vec![entries]));
    let reply = GrpcClient::connect(address).await.call(RLS, &[("traceparent", parent)], call).await;
    assert_eq!(reply.code(), 0);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

/// A text among the attributes of a span; empty if there is none.
fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        _ => String::new(),
    }
}

#[tokio::test]
async fn traceparent_over_http_and_grpc_is_continued() {
    let (service, mut spans) = traced_service(SampleRate::NONE).await;
    let (http, grpc) = (service.address(Protocol::Http), service.address(Protocol::Grpc));
    // Callers that do not trace, and commands of the Redis protocol that are not sampled, have no spans.
    let unsampled = PARENT.replace("-01", "-00");
    check_over_http(http, &unsampled).await;
    check_over_grpc(grpc, &unsampled).await;
    RespClient::connect(&service).call("TIDEGATE.CHECK default user:resp");
    check_over_http(http, PARENT).await;
    check_over_grpc(grpc, PARENT).await;
    let mut received = Vec::new();
    while received.len() < 4 {
        received.push(soon(spans.recv()).await.unwrap());
    }
    let expected = [("http", "/v1/check", "user:http"), ("grpc", "/tidegate/rule.client", "user:grpc")];
    for (protocol, path, client) in expected {
        let request = received.iter().find(|span| attribute(span, "url.path") == path).unwrap();
        assert_eq!(
            (request.name.as_str(), hex(&request.parent_span_id).as_str()),
            ("POST", "00f067aa0ba902b7")
        );
        assert_eq!(attribute(request, "tidegate.protocol"), protocol);
        let decision = received.iter().find(|span| attribute(span, "tidegate.client") == client).unwrap();
        assert_eq!((decision.name.as_str(), &decision.parent_span_id), ("decision", &request.span_id));
        assert_eq!(attribute(decision, "tidegate.rule"), "default");
        // The call that was not traced has spent the only unit.
        assert_eq!(attribute(decision, "tidegate.decision"), "rejected");
    }
    for span in &received {
        assert_eq!(hex(&span.trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
    }
}

#[tokio::test]
async fn sampled_command_over_resp_is_a_trace_of_its_own() {
    let (service, mut spans) = traced_service(SampleRate::ALL).await;
    let mut client = RespClient::connect(&service);
    client.call("TIDEGATE.CHECK default user:check");
    client.call("CL.THROTTLE user:throttle 0 1 3600");
    let mut received = Vec::new();
    while received.len() < 4 {
        received.push(soon(spans.recv()).await.unwrap());
    }
    let mut traces = Vec::new();
    for (command, rule, client) in
        [("TIDEGATE.CHECK", "default", "user:check"), ("CL.THROTTLE", "CL.THROTTLE", "user:throttle")]
    {
        let span = received.iter().find(|span| span.name == command).unwrap();
        assert!(span.parent_span_id.iter().all(|byte| *byte == 0));
        assert_eq!(attribute(span, "tidegate.protocol"), "resp");
        assert_eq!(attribute(span, "tidegate.command"), command);
        let decision = received.iter().find(|span| attribute(span, "tidegate.client") == client).unwrap();
        assert_eq!((decision.name.as_str(), &decision.parent_span_id), ("decision", &span.span_id));
        assert_eq!(decision.trace_id, span.trace_id);
        assert_eq!(attribute(decision, "tidegate.rule"), rule);
        assert_eq!(attribute(decision, "tidegate.decision"), "admitted");
        traces.push(&span.trace_id);
    }
    assert_ne!(traces[0], traces[1]);
}
