//! Shows how the client behaves when a server limits, rejects, fails, resets and delays.
//!
//! Starts a server on the loopback interface for each kind of trouble and calls it several times. All times are short, so
//! that it ends within seconds: `cargo run -p tidegate-client --example hostile_server`.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tidegate_client::{
    BreakerConfig, Client, ClientBuildError, ClientError, ClientResponse, Clock, Jitter, SystemClock,
    TimeSpan,
};
use tokio::net::TcpListener;

/// Requests per second that [`Trouble::Limits`] admits.
const LIMIT: u64 = 10;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let clock = SystemClock::new();
    println!("{:<9} {:>5} {:>8} {:>7}  last call", "server", "calls", "requests", "seconds");
    for (trouble, calls) in [
        (Trouble::Limits, 25),
        (Trouble::Rejects, 2),
        (Trouble::Fails, 5),
        (Trouble::Resets, 5),
        (Trouble::Delays, 2),
        (Trouble::Breaks, 3),
    ] {
        let server = Arc::new(HostileServer::new(trouble));
        let address = listen(Arc::clone(&server)).await?;
        let client = client()?;
        let start = clock.now();
        let mut last = String::new();
        for _ in 0..calls {
            last = describe(client.get(format!("http://{address}/")).send().await);
        }
        let seconds = Duration::from(clock.now().since(start)).as_secs_f64();
        let requests = server.requests.load(Ordering::Relaxed);
        println!("{:<9} {calls:>5} {requests:>8} {seconds:>7.2}  {last}", trouble.name());
    }
    Ok(())
}

/// A client with shorter times than the defaults.
fn client() -> Result<Client, ClientBuildError> {
    let open_for = TimeSpan::from_secs(5);
    Client::builder()
        .backoff(Duration::from_millis(20), Duration::from_millis(200), Jitter::Decorrelated)
        .timeout(Duration::from_millis(200))
        .max_wait(Duration::from_secs(2))
        .breaker(BreakerConfig { open_for, max_open_for: open_for, ..BreakerConfig::default() })
        .build()
}

fn describe(result: Result<ClientResponse, ClientError>) -> String {
    match result {
        Ok(response) => format!("{}, attempts: {}", response.status(), response.attempts()),
        Err(error) => error.to_string(),
    }
}

/// What a server does to its clients.
#[derive(Clone, Copy)]
enum Trouble {
    /// Admits some requests per second and says so.
    Limits,
    /// Rejects every request for a minute.
    Rejects,
    /// Responds with 503 to every second request.
    Fails,
    /// Closes the connection of every second request.
    Resets,
    /// Is slow to respond to every second request.
    Delays,
    /// Responds with 500 to every request.
    Breaks,
}

impl Trouble {
    const fn name(self) -> &'static str {
        match self {
            Self::Limits => "limits",
            Self::Rejects => "rejects",
            Self::Fails => "fails",
            Self::Resets => "resets",
            Self::Delays => "delays",
            Self::Breaks => "breaks",
        }
    }
}

struct HostileServer {
    trouble: Trouble,
    clock: SystemClock,
    requests: AtomicU64,
    /// The requests before the current second, and that second.
    before: AtomicU64,
    second: AtomicU64,
}

impl HostileServer {
    fn new(trouble: Trouble) -> Self {
        let [requests, before, second] = [const { AtomicU64::new(0) }; 3];
        Self { trouble, clock: SystemClock::new(), requests, before, second }
    }

    async fn respond(&self) -> Result<Response<Full<Bytes>>, Reset> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let is_first = number.is_multiple_of(2);
        match self.trouble {
            Trouble::Limits => Ok(self.limit(number)),
            Trouble::Rejects => {
                let body = r#"{"error":"rate_limit_exceeded","rule":"daily","limit":1000}"#;
                let mut response = Response::new(Full::from(body));
                *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                response.headers_mut().insert("retry-after", 60.into());
                Ok(response)
            }
            Trouble::Fails if is_first => Ok(empty(StatusCode::SERVICE_UNAVAILABLE)),
            Trouble::Resets if is_first => Err(Reset),
            Trouble::Breaks => Ok(empty(StatusCode::INTERNAL_SERVER_ERROR)),
            Trouble::Delays if is_first => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(empty(StatusCode::OK))
            }
            _ => Ok(empty(StatusCode::OK)),
        }
    }

    /// A fixed window of one second. The server has one thread.
    fn limit(&self, number: u64) -> Response<Full<Bytes>> {
        let second = self.clock.now().as_micros() / 1_000_000;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.before.store(number, Ordering::Relaxed);
        }
        let count = number - self.before.load(Ordering::Relaxed) + 1;
        let mut response = empty(if count > LIMIT { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK });
        for (name, value) in [("limit", LIMIT), ("remaining", LIMIT.saturating_sub(count)), ("reset", 1)] {
            if let Ok(name) = http::HeaderName::try_from(format!("x-ratelimit-{name}")) {
                response.headers_mut().insert(name, value.into());
            }
        }
        response
    }
}

/// Closes the connection without a response.
#[derive(Debug)]
struct Reset;

impl fmt::Display for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("reset on purpose")
    }
}

impl Error for Reset {}

/// Serves connections until the program ends.
async fn listen(server: Arc<HostileServer>) -> Result<SocketAddr, std::io::Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let server = Arc::clone(&server);
            tokio::spawn(async move {
                let service = service_fn(move |_| {
                    let server = Arc::clone(&server);
                    async move { server.respond().await }
                });
                let http = auto::Builder::new(TokioExecutor::new());
                // A connection that is reset on purpose ends with an error.
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Ok(address)
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}
