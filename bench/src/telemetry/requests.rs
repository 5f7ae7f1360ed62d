//! The cost of all metrics and of logging one request in a hundred, per request through the gateway.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tidegate_gateway::Gateway;
use tidegate_limiter::Limiter;
use tidegate_listener::Listener;
use tidegate_policy::{ActivePolicy, NoFiles, SampleRate, compile};
use tidegate_store::{Clock, MemoryStore, SystemClock};
use tidegate_telemetry::{Destination, Log, LogFormat, LogSampling, Metrics, Telemetry};
use tokio::sync::watch;

const CONNECTIONS: usize = 16;
/// Requests per connection in a round.
const EACH: usize = 1_500;
const ROUNDS: usize = 15;
const MAX_RATIO: f64 = 1.05;

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const REQUEST: &[u8] = b"GET /things/7 HTTP/1.1\r\nHost: bench\r\nX-API-Key: sk_bench_0123456789\r\n\r\n";

/// A gateway with one worker that runs until the process ends.
struct RunningGateway {
    /// The worker thread.
    thread: String,
    connections: Vec<TcpStream>,
}

impl RunningGateway {
    fn start(upstream: SocketAddr, telemetry: Telemetry) -> anyhow::Result<Self> {
        let policy = format!(
            "upstreams: {{ api: {{ servers: ['http://{upstream}'] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n\
             rate_limits: {{ default: {{ requests: 100000000, window: 1s, algorithm: token_bucket }} }}"
        );
        let active = ActivePolicy::new(compile("bench.yaml", policy.as_bytes(), &NoFiles)?.plan);
        let store = Arc::new(MemoryStore::with_cap(16 << 20));
        let limiter = Limiter::new(active, store, Arc::new(SystemClock::new()))?;
        let gateway = Gateway::builder(Arc::new(limiter)).telemetry(telemetry).build()?;
        let listener = Listener::bind("127.0.0.1:0", 1)?;
        let address = listener.address();
        let (stop, stopping) = watch::channel(false);
        let before = worker_threads()?;
        gateway.start(&[listener], &stopping, Duration::ZERO)?;
        // Keep both, so that the gateway is not stopped.
        std::mem::forget((stop, gateway));
        let connect = |_| -> anyhow::Result<TcpStream> {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let connections = (0..CONNECTIONS).map(connect).collect::<Result<_, _>>()?;
        let thread = worker_threads()?.into_iter().find(|thread| !before.contains(thread));
        Ok(Self { thread: thread.context("no worker has started")?, connections })
    }

    /// Processor time of the worker per request, in nanoseconds.
    #[expect(clippy::cast_precision_loss, reason = "figures to read, not to compute with")]
    fn round(&mut self) -> anyhow::Result<f64> {
        let before = processor_nanos(&self.thread)?;
        let mut answer = [0; 4_096];
        for _ in 0..EACH {
            for connection in &mut self.connections {
                connection.write_all(REQUEST)?;
            }
            for connection in &mut self.connections {
                let mut seen = 0;
                while !answer[..seen].ends_with(b"\r\n\r\nok") {
                    seen += connection.read(&mut answer[seen..])?;
                }
            }
        }
        Ok((processor_nanos(&self.thread)? - before) as f64 / (EACH * CONNECTIONS) as f64)
    }
}

/// The worker threads of this process.
fn worker_threads() -> anyhow::Result<Vec<String>> {
    let mut threads = Vec::new();
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        if std::fs::read_to_string(path.join("comm"))?.starts_with("worker-") {
            threads.push(path.display().to_string());
        }
    }
    Ok(threads)
}

fn processor_nanos(thread: &str) -> anyhow::Result<u64> {
    let stat = std::fs::read_to_string(Path::new(thread).join("schedstat"))?;
    Ok(stat.split(' ').next().context("schedstat is empty")?.parse()?)
}

fn upstream() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || respond(stream));
        }
    });
    Ok(address)
}

/// Responds to each request head in turn.
fn respond(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut seen, mut buffer) = (Vec::new(), [0; 4_096]);
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        seen.extend_from_slice(&buffer[..read]);
        if seen.ends_with(b"\r\n\r\n") {
            seen.clear();
            stream.write_all(RESPONSE)?;
        }
    }
}

/// Returns whether the target is met.
pub(super) fn run() -> anyhow::Result<bool> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let upstream = upstream()?;
    let file = std::env::temp_dir().join(format!("tidegate-bench-{}.log", std::process::id()));
    let log = Log::open(&Destination::File(file.clone()), LogFormat::Json, Arc::clone(&clock))?;
    let one_percent = SampleRate::from_millionths(10_000).context("one percent is a share")?;
    log.set_sampling(LogSampling { access: one_percent, rejected: one_percent });
    let mut on = RunningGateway::start(upstream, Telemetry::new(Metrics::new(1, clock.now()), log.clone()))?;
    let mut off = RunningGateway::start(upstream, Telemetry::off(clock))?;
    on.round()?;
    off.round()?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push((off.round()?, on.round()?));
    }
    log.flush();
    let lines = std::fs::read_to_string(&file)?.lines().count();
    std::fs::remove_file(file)?;
    let median = |which: fn(&(f64, f64)) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(which).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let (off, on, ratio) =
        (median(|round| round.0), median(|round| round.1), median(|round| round.1 / round.0));
    println!(
        "processor time of the gateway per request, median of {ROUNDS} rounds of {}",
        EACH * CONNECTIONS
    );
    println!("  without telemetry                  {off:.0} ns");
    println!("  metrics and 1 % of requests logged {on:.0} ns, {lines} lines");
    println!("  ratio                              {ratio:.3} (target {MAX_RATIO})");
    Ok(ratio <= MAX_RATIO)
}
