//! A gRPC call that the gateway does not forward ends with a gRPC status, not with an HTTP status.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use tidegate_policy::SampleRate;
use tidegate_telemetry::{Log, LogSampling, Metrics, Telemetry};
use tidegate_testkit::client::{CollectedResponse, http2 as connect_http2};
use tidegate_testkit::server::HttpServer;
use tidegate_testkit::wait::soon;
use tokio::net::TcpListener;
use tonic::Code;

use crate::fixture::{ResourceLimits, TestGateway, active};

const ONE: &str = "headers: [x_ratelimit, ratelimit]\nclients: { identify_by: [ip] }\n\
                   rate_limits: { default: { requests: 1, window: 5s, algorithm: sliding_window_log } }\n";

/// A service of tonic's own.
struct Service;

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        _: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn service() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(Service));
    tokio::spawn(server.serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener)));
    url
}

async fn call(gateway: &TestGateway) -> Result<(), tonic::Status> {
    let endpoint = format!("http://{}", gateway.address);
    let mut client = soon(TraceServiceClient::connect(endpoint)).await.unwrap();
    soon(client.export(ExportTraceServiceRequest::default())).await.map(|_| ())
}

/// One gRPC call without a client library.
async fn call_raw(gateway: &TestGateway, path: &str, content_type: &str) -> CollectedResponse {
    let mut sender = connect_http2(gateway.address).await;
    let request = Request::post(format!("http://test{path}")).header("te", "trailers");
    let request = request.header("content-type", content_type).body(Empty::<Bytes>::new()).unwrap();
    CollectedResponse::of(soon(sender.send_request(request)).await.unwrap()).await
}

fn grpc_status(response: &CollectedResponse) -> u64 {
    assert_eq!(
        (response.status.as_u16(), response.text()),
        (200, ""),
        "a response of trailers only: {response:?}"
    );
    assert_eq!(response.header("content-type"), Some("application/grpc"));
    assert!(response.trailers.is_none(), "{response:?}");
    response.number("grpc-status")
}

#[tokio::test]
async fn grpc_call_rejected_by_limit_tonic_client_reports_resource_exhausted() {
    let gateway = TestGateway::before(&[service().await], ONE);
    call(&gateway).await.unwrap();
    let status = call(&gateway).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(status.message(), "Too many requests. Please retry after 5 seconds.");
    let metadata = |name: &str| status.metadata().get(name).unwrap().to_str().unwrap().to_owned();
    assert_eq!(metadata("grpc-retry-pushback-ms"), "5000");
    assert_eq!(metadata("retry-after"), "5");
    assert_eq!((metadata("x-ratelimit-limit"), metadata("x-ratelimit-remaining")), ("1".into(), "0".into()));
    assert_eq!(metadata("ratelimit-policy"), "\"default\";q=1;w=5");
}

#[tokio::test]
async fn grpc_call_rejected_by_limit_response_is_trailers_only() {
    let gateway = TestGateway::before(&[service().await], ONE);
    call_raw(&gateway, "/a", "application/grpc").await;
    for content_type in ["application/grpc", "application/grpc+proto", "Application/gRPC;charset=utf-8"] {
        let rejected = call_raw(&gateway, "/a", content_type).await;
        assert_eq!((rejected.status.as_u16(), rejected.number("grpc-status")), (200, 8));
        assert_eq!(rejected.header("content-type"), Some(content_type));
    }
    let rejected = call_raw(&gateway, "/a", "application/grpc").await;
    assert_eq!(grpc_status(&rejected), 8);
    let rest = rejected.header("grpc-message").unwrap();
    assert!(rest.starts_with("Too many requests."), "{rest}");
}

#[tokio::test]
async fn request_without_grpc_content_type_or_over_http_1_gets_429() {
    let gateway = TestGateway::before(&[service().await], ONE);
    call_raw(&gateway, "/a", "application/grpc").await;
    for content_type in ["application/json", "application/grpcx", "text/plain"] {
        let rejected = call_raw(&gateway, "/a", content_type).await;
        assert_eq!((rejected.status.as_u16(), rejected.header("grpc-status")), (429, None));
    }
    let rejected = gateway.get_with("/a", &[("content-type", "application/grpc")]).await;
    assert_eq!((rejected.status.as_u16(), rejected.header("grpc-status")), (429, None));
}

#[tokio::test]
async fn grpc_call_not_forwarded_gets_the_status_of_its_cause() {
    let upstream = HttpServer::named("served").await;
    let banned = TestGateway::before(&[upstream.h2c()], "bans: { networks: [127.0.0.0/8] }\n");
    assert_eq!(grpc_status(&call_raw(&banned, "/a", "application/grpc").await), 7);

    let policy = format!(
        "upstreams: {{ api: {{ servers: [\"{}\"] }} }}\nroutes: [{{ path: /served, upstream: api }}]\n\
         rate_limits: {{ default: {{ requests: 9, window: 1m }} }}\n",
        upstream.h2c()
    );
    let gateway = TestGateway::start(&policy, ResourceLimits::default());
    assert_eq!(grpc_status(&call_raw(&gateway, "/elsewhere", "application/grpc").await), 12, "no route");
    let malformed = call_raw(&gateway, "/%ff", "application/grpc").await;
    assert_eq!(grpc_status(&malformed), 13, "an invalid path");
    let message = malformed.header("grpc-message").unwrap();
    assert!(message.is_ascii() && message.starts_with("Invalid path"), "{message}");

    let unreachable = TestGateway::before(&["h2c://127.0.0.1:9".to_owned()], ONE);
    assert_eq!(grpc_status(&call_raw(&unreachable, "/a", "application/grpc").await), 14, "unreachable");
}

#[tokio::test]
async fn grpc_call_without_timely_upstream_response_gets_deadline_exceeded() {
    let upstream = HttpServer::start(|_| std::future::pending()).await;
    let bounds = ResourceLimits { response_timeout: Duration::from_millis(10), ..ResourceLimits::default() };
    let gateway = TestGateway::with(&[upstream.h2c()], ONE, &[], bounds);
    assert_eq!(grpc_status(&call_raw(&gateway, "/a", "application/grpc").await), 4);
}

#[tokio::test]
async fn grpc_rejection_is_recorded_as_429() {
    let clock = Arc::new(tidegate_store::SystemClock::new());
    let (log, lines) = Log::into_channel(clock.clone());
    log.set_sampling(LogSampling { access: SampleRate::ALL, rejected: SampleRate::ALL });
    let telemetry = Telemetry::new(Metrics::new(1, tidegate_core::Timestamp::ZERO), log);
    let upstream = service().await;
    let gateway =
        TestGateway::with_telemetry(telemetry, active(&[upstream], ONE, &[]), ResourceLimits::default());
    for _ in 0..2 {
        call_raw(&gateway, "/a", "application/grpc").await;
    }
    let line = || lines.recv_timeout(Duration::from_secs(20)).expect("a log line");
    line();
    let rejected: serde_json::Value = serde_json::from_str(&line()).unwrap();
    assert_eq!((&rejected["decision"], &rejected["status"]), (&"rejected".into(), &429.into()));
    assert_eq!(rejected["cause"], "rate_limit_exceeded");
    assert_eq!(gateway.metric("tidegate_responses_total{code=\"4xx\",protocol=\"gateway\"}"), 1);
    assert_eq!(gateway.metric("rate_limit_requests_total{decision=\"rejected\",protocol=\"gateway\"}"), 1);
}
