//! Traces arrive at a collector: a gRPC server of OpenTelemetry's own service definition.

use std::collections::HashMap;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tidegate_policy::{SampleRate, TracesPlan};
use tidegate_telemetry::{Log, Metrics, Telemetry, Tracer};
use tidegate_testkit::server::{HttpServer, RecordingServer};
use tidegate_testkit::wait::{eventually, soon};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use crate::fixture::{ResourceLimits, TestGateway, active};

/// A collector that passes spans on to the test.
struct Collector(mpsc::UnboundedSender<(String, Span)>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.unwrap_or_default().attributes;
            let service = attributes.iter().find(|attribute| attribute.key == "service.name");
            let service = format!("{:?}", service.and_then(|service| service.value.as_ref()));
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                let _ = self.0.send((service.clone(), span));
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn collector() -> (String, mpsc::UnboundedReceiver<(String, Span)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (send, spans) = mpsc::unbounded_channel();
    let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(Collector(send)));
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(server.serve_with_incoming(incoming));
    (endpoint, spans)
}

const TWO: &str = "clients: { api_key: { verify: none } }\n\
                   rate_limits: { default: { requests: 2, window: 1h, algorithm: sliding_window_log } }";

fn tracing_gateway(servers: &[String], endpoint: &str, sample: SampleRate) -> TestGateway {
    let clock = Arc::new(tidegate_store::SystemClock::new());
    let (log, tracer) = (Log::off(clock), Tracer::off());
    tracer.configure(Some(&TracesPlan { endpoint: endpoint.to_owned(), sample }), &log).unwrap();
    let telemetry = Telemetry::new(Metrics::new(1, tidegate_core::Timestamp::ZERO), log).with_tracer(tracer);
    TestGateway::with_telemetry(telemetry, active(servers, TWO, &[]), ResourceLimits::default())
}

fn attributes(span: &Span) -> HashMap<&str, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    let pairs = span.attributes.iter();
    pairs.filter_map(|pair| Some((pair.key.as_str(), text(pair.value.as_ref()?.value.as_ref()?)))).collect()
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[tokio::test]
async fn request_decision_and_upstream_attempt_are_spans_of_one_trace() {
    let upstream = HttpServer::echo_headers().await;
    let (endpoint, mut spans) = collector().await;
    let gateway = tracing_gateway(&[upstream.url()], &endpoint, SampleRate::NONE);
    let headers =
        [("traceparent", PARENT), ("tracestate", "vendor=1"), ("x-api-key", "sk_live_51H_very_secret")];
    let response = gateway.get_with("/things?token=sesame", &headers).await;
    let mut by_name = HashMap::new();
    while by_name.len() < 3 {
        let (service, span) = soon(spans.recv()).await.unwrap();
        assert!(service.contains("tidegate"), "{service}");
        by_name.insert(span.name.clone(), span);
    }
    let (request, decision, attempt) = (&by_name["GET"], &by_name["decision"], &by_name["upstream"]);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
    for span in [request, decision, attempt] {
        assert_eq!(hex(&span.trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
        assert!(!format!("{span:?}").contains("very_secret") && !format!("{span:?}").contains("sesame"));
    }
    assert_eq!(hex(&request.parent_span_id), "00f067aa0ba902b7");
    assert_eq!((&decision.parent_span_id, &attempt.parent_span_id), (&request.span_id, &request.span_id));
    let recorded = attributes(decision);
    assert_eq!(
        (recorded["tidegate.decision"].as_str(), recorded["tidegate.rule"].as_str()),
        ("admitted", "default")
    );
    assert_eq!(recorded["tidegate.client"], "api_key:sk_l…#b59c1698");
    assert_eq!(attributes(attempt)["http.response.status_code"], "200");
    assert_eq!(attributes(request)["url.path"], "/things");
    // The upstream request names the span of the attempt as its parent, in the same trace.
    let forwarded = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", hex(&attempt.span_id));
    assert!(response.text().contains(&forwarded), "{}", response.text());
    assert!(response.text().contains("vendor=1"));
}

#[tokio::test]
async fn traceparent_unsampled_is_not_traced_and_an_invalid_one_is_replaced() {
    let upstream = HttpServer::echo_headers().await;
    let (endpoint, mut spans) = collector().await;
    let gateway = tracing_gateway(&[upstream.url()], &endpoint, SampleRate::ALL);
    let unsampled = PARENT.replace("-01", "-00");
    let response = gateway.get_with("/", &[("traceparent", &unsampled)]).await;
    assert!(response.text().contains("00-4bf92f3577b34da6a3ce929d0e0e4736-"), "{}", response.text());
    let response =
        gateway.get_with("/", &[("traceparent", "00-nonsense-01"), ("tracestate", "vendor=1")]).await;
    assert!(
        !response.text().contains("nonsense") && !response.text().contains("vendor"),
        "{}",
        response.text()
    );
    let response = gateway.get_with("/", &[("traceparent", PARENT)]).await;
    assert_eq!(response.status, 429);
    let (mut traces, mut decided) = (Vec::new(), Vec::new());
    // The request with the invalid header has three spans, the rejected one two.
    while traces.len() < 5 {
        let (_, span) = soon(spans.recv()).await.unwrap();
        decided.extend(attributes(&span).remove("tidegate.decision"));
        traces.push(span.trace_id);
    }
    traces.sort();
    traces.dedup();
    decided.sort();
    assert_eq!((traces.len(), decided), (2, vec!["admitted".to_owned(), "rejected".to_owned()]));
}

#[tokio::test]
async fn trace_headers_without_tracing_are_forwarded_unchanged() {
    let upstream = HttpServer::echo_headers().await;
    let gateway = TestGateway::before(&[upstream.url()], TWO);
    let response =
        gateway.get_with("/", &[("traceparent", "00-nonsense-01"), ("tracestate", "vendor=1")]).await;
    assert!(response.text().contains("00-nonsense-01") && response.text().contains("vendor=1"));
}

#[tokio::test]
async fn unreachable_collector_delays_no_request_and_lost_spans_are_counted() {
    let unreachable = RecordingServer::unreachable();
    let endpoint = unreachable.url();
    let upstream = HttpServer::named("served").await;
    let gateway = tracing_gateway(&[upstream.url()], &endpoint, SampleRate::ALL);
    assert_eq!(gateway.get("/").await.status, 200);
    eventually("lost spans are counted", || gateway.metric("tidegate_spans_lost_total") == 3).await;
}
