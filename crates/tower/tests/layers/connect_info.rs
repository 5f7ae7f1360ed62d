//! Clients by the addresses of their connections, with the servers of axum and tonic, and the first example of docs/tower.md.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::MockConnectInfo;
use axum::routing::get;
use http::Request;
use tidegate_tower::policy::{ActivePolicy, Limiter, NoFiles, PolicyLayer, compile};
use tidegate_tower::rate_limit::{ByAddress, MemoryStore, RateLimitLayer, RateLimiter};
use tidegate_tower::{GrpcErrorLayer, HttpErrorLayer, MissingConnectInfo, system_clock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{is, respond};

#[path = "../../examples/rate_limit.rs"]
#[expect(dead_code, reason = "the example has a main function")]
mod example;

/// The code of `example`, without its documentation.
fn example_code() -> &'static str {
    let file = include_str!("../../examples/rate_limit.rs");
    file.split_once("\n\n").unwrap().1.trim_start()
}

/// What the same service needs without a rate limit.
const UNLIMITED: &str = r#"
use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    serve(TcpListener::bind("127.0.0.1:3000").await?).await
}

pub(crate) async fn serve(listener: TcpListener) -> Result<(), Box<dyn std::error::Error>> {
    let app = Router::new().route("/", get(async || "hello\n"));
    Ok(axum::serve(listener, app).await?)
}
"#;

/// The status of a request that is sent from this address of this machine.
async fn status_from(client: [u8; 4], server: SocketAddr) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((client, 0).into()).unwrap();
    let mut connection = socket.connect(server).await.unwrap();
    connection.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).await.unwrap();
    response.split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test]
async fn rate_limit_of_the_documentation_counts_two_addresses_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    // Its error need not be `Send`.
    let serve = async { example::serve(listener).await.map_err(|error| error.to_string()) };
    let clients = async {
        for client in [[127, 0, 0, 1], [127, 0, 0, 2]] {
            for status in ["200", "200", "200", "429"] {
                assert_eq!(status_from(client, server).await, status);
            }
        }
    };
    tokio::select! {
        () = clients => {}
        result = serve => panic!("{result:?}"),
    }
}

#[test]
fn rate_limit_of_the_documentation_takes_five_lines_and_is_the_example() {
    let page = include_str!("../../../../docs/tower.md");
    let block = page.split_once("```rust,no_run\n").unwrap().1.split_once("```").unwrap().0;
    assert_eq!(block, example_code(), "docs/tower.md shows crates/tower/examples/rate_limit.rs");
    let unlimited: Vec<_> = UNLIMITED.lines().collect();
    let added: Vec<_> = block.lines().filter(|line| !unlimited.contains(line)).collect();
    assert_eq!(added.len(), 5, "{added:#?}");
    assert!(unlimited.iter().all(|line| block.lines().any(|other| other == *line)), "nothing else differs");
    let dependencies = page.split_once("```toml\n").unwrap().1.split_once("```").unwrap().0;
    assert_eq!(dependencies.lines().count(), 1, "{dependencies}");
}

fn limited(app: Router) -> Router {
    let limiter = RateLimiter::in_memory(1, Duration::from_mins(1)).unwrap();
    app.layer((HttpErrorLayer::default(), RateLimitLayer::new(limiter, ByAddress::connect_info())))
}

#[tokio::test]
async fn rate_limit_by_address_without_one_fails_and_says_what_the_server_lacks() {
    let app = limited(Router::new().route("/", get(async || "hello")));
    for _ in 0..2 {
        let response = app.clone().oneshot(Request::new(axum::body::Body::empty())).await.unwrap();
        assert_eq!(response.status(), 500);
        let body = axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains("MissingConnectInfo"), "{body}");
    }
    let limiter = RateLimiter::in_memory(1, Duration::from_mins(1)).unwrap();
    let layer = RateLimitLayer::new(limiter, ByAddress::connect_info());
    let service = layer.layer(service_fn(async |_: Request<Vec<u8>>| Ok::<_, std::io::Error>(respond(200))));
    let error = service.oneshot(Request::new(Vec::new())).await.unwrap_err();
    assert!(is::<MissingConnectInfo>(&error));
    assert!(error.to_string().contains("into_make_service_with_connect_info"), "{error}");
}

#[tokio::test]
async fn policy_by_connect_info_without_one_fails_and_counts_addresses_apart_with_one() {
    let policy = b"rate_limits: { default: { requests: 1, window: 1h } }";
    let active = ActivePolicy::new(compile("policy.yaml", policy, &NoFiles).unwrap().plan);
    let store = Arc::new(MemoryStore::with_cap(1 << 20));
    let limiter = Arc::new(Limiter::new(active, store, system_clock()).unwrap());
    let app = Router::new().route("/", get(async || "hello"));
    let app = app.layer((HttpErrorLayer::default(), PolicyLayer::connect_info(limiter)));
    let cases = [(None, 500), (Some(1), 200), (Some(1), 429), (Some(2), 200), (None, 500)];
    for (client, status) in cases {
        let mut request = Request::get("/").header("host", "a").body(axum::body::Body::empty()).unwrap();
        if let Some(client) = client {
            let address = SocketAddr::from(([192, 0, 2, client], 80));
            request.extensions_mut().insert(axum::extract::ConnectInfo(address));
        }
        assert_eq!(app.clone().oneshot(request).await.unwrap().status(), status, "{client:?}");
    }
}

#[tokio::test]
async fn rate_limit_by_address_understands_what_axum_mocks_in_tests() {
    let app = Router::new().route("/", get(async || "hello"));
    let app = limited(app).layer(MockConnectInfo(SocketAddr::from(([192, 0, 2, 1], 80))));
    for status in [200, 429] {
        let response = app.clone().oneshot(Request::new(axum::body::Body::empty())).await.unwrap();
        assert_eq!(response.status(), status);
    }
}

#[tokio::test]
async fn rate_limit_of_a_tonic_server_finds_the_addresses_of_its_clients() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let limiter = RateLimiter::in_memory(1, Duration::from_mins(1)).unwrap();
    let layers = (GrpcErrorLayer, RateLimitLayer::grpc(limiter, ByAddress::connect_info()));
    let routes = Routes::default();
    let incoming = TcpIncoming::from(listener);
    let running = tokio::spawn(
        Server::builder().accept_http1(true).layer(layers).add_routes(routes).serve_with_incoming(incoming),
    );
    for client in [[127, 0, 0, 1], [127, 0, 0, 2]] {
        for grpc_status in ["12", "8"] {
            assert_eq!(grpc_status_from(client, server).await, grpc_status);
        }
    }
    running.abort();
}

/// The status of a gRPC call without an implementation, over HTTP/1.1.
async fn grpc_status_from(client: [u8; 4], server: SocketAddr) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((client, 0).into()).unwrap();
    let mut connection = socket.connect(server).await.unwrap();
    let request = "POST /a.B/C HTTP/1.1\r\nhost: a\r\ncontent-type: application/grpc\r\nte: trailers\r\n\
                   content-length: 0\r\nconnection: close\r\n\r\n";
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).await.unwrap();
    let status = response.lines().find_map(|line| line.strip_prefix("grpc-status: "));
    status.unwrap_or_else(|| panic!("{response}")).to_owned()
}
