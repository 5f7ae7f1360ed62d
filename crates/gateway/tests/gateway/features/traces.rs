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

/// Takes spans, as a collector does.
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

fn tracing(servers: &[String], endpoint: &str, sample: SampleRate) -> TestGateway {
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
async fn a_request_its_decision_and_its_try_arrive_as_one_trace() {
    let upstream = HttpServer::echo_headers().await;
    let (endpoint, mut spans) = collector().await;
    let proxy = tracing(&[upstream.url()], &endpoint, SampleRate::NONE);
    let headers =
        [("traceparent", PARENT), ("tracestate", "vendor=1"), ("x-api-key", "sk_live_51H_very_secret")];
    let answer = proxy.get_with("/things?token=sesame", &headers).await;
    let mut by_name = HashMap::new();
    while by_name.len() < 3 {
        let (service, span) = soon(spans.recv()).await.unwrap();
        assert!(service.contains("tidegate"), "{service}");
        by_name.insert(span.name.clone(), span);
    }
    let (request, decision, tried) = (&by_name["GET"], &by_name["decision"], &by_name["upstream"]);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
    for span in [request, decision, tried] {
        assert_eq!(hex(&span.trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
        assert!(!format!("{span:?}").contains("very_secret") && !format!("{span:?}").contains("sesame"));
    }
    assert_eq!(hex(&request.parent_span_id), "00f067aa0ba902b7");
    assert_eq!((&decision.parent_span_id, &tried.parent_span_id), (&request.span_id, &request.span_id));
    let told = attributes(decision);
    assert_eq!((told["tidegate.decision"].as_str(), told["tidegate.rule"].as_str()), ("admitted", "default"));
    assert_eq!(told["tidegate.client"], "api_key:sk_l…#b59c1698");
    assert_eq!(attributes(tried)["http.response.status_code"], "200");
    assert_eq!(attributes(request)["url.path"], "/things");
    // The upstream is asked by our try, in the same trace.
    let passed_on = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", hex(&tried.span_id));
    assert!(answer.text().contains(&passed_on), "{}", answer.text());
    assert!(answer.text().contains("vendor=1"));
}

#[tokio::test]
async fn who_does_not_want_to_be_traced_is_not_and_nonsense_is_replaced() {
    let upstream = HttpServer::echo_headers().await;
    let (endpoint, mut spans) = collector().await;
    let proxy = tracing(&[upstream.url()], &endpoint, SampleRate::ALL);
    let unwanted = PARENT.replace("-01", "-00");
    let answer = proxy.get_with("/", &[("traceparent", &unwanted)]).await;
    assert!(answer.text().contains("00-4bf92f3577b34da6a3ce929d0e0e4736-"), "{}", answer.text());
    let answer = proxy.get_with("/", &[("traceparent", "00-nonsense-01"), ("tracestate", "vendor=1")]).await;
    assert!(!answer.text().contains("nonsense") && !answer.text().contains("vendor"), "{}", answer.text());
    let answer = proxy.get_with("/", &[("traceparent", PARENT)]).await;
    assert_eq!(answer.status, 429);
    let (mut traces, mut decided) = (Vec::new(), Vec::new());
    // The request with nonsense has three spans, the refused one two.
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
async fn without_traces_headers_pass_as_they_are() {
    let upstream = HttpServer::echo_headers().await;
    let proxy = TestGateway::before(&[upstream.url()], TWO);
    let answer = proxy.get_with("/", &[("traceparent", "00-nonsense-01"), ("tracestate", "vendor=1")]).await;
    assert!(answer.text().contains("00-nonsense-01") && answer.text().contains("vendor=1"));
}

#[tokio::test]
async fn a_collector_that_is_away_delays_nobody_and_is_counted() {
    let nobody = RecordingServer::unreachable();
    let endpoint = nobody.url();
    let upstream = HttpServer::named("served").await;
    let proxy = tracing(&[upstream.url()], &endpoint, SampleRate::ALL);
    assert_eq!(proxy.get("/").await.status, 200);
    eventually("lost spans are counted", || proxy.metric("tidegate_spans_lost_total") == 3).await;
}
