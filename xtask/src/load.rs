//! The load for comparing builds: requests over a few connections to a gateway with one worker.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::run;

/// The number of gateways that this process has started. It names their folders.
static NUMBER: AtomicU32 = AtomicU32::new(0);

pub(crate) const CONNECTIONS: usize = 8;
const BODY_BYTES: usize = 64 << 10;
/// The maximum number of connection attempts and the time between them. valgrind takes long to start a large binary.
const MAX_ATTEMPTS: usize = 1_200;
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(100);

/// One measurement: its name, the limit, the bytes of each body, and the number of requests.
pub(crate) struct Mode {
    pub(crate) name: &'static str,
    limit: &'static str,
    pub(crate) body: usize,
    pub(crate) requests: usize,
}

pub(crate) const MODES: [Mode; 3] = [
    Mode { name: "pass", limit: "requests: 1000000000, window: 1h", body: 0, requests: 20_000 },
    Mode { name: "reject", limit: "requests: 1, window: 1d", body: 0, requests: 20_000 },
    Mode {
        name: "64 KiB body",
        limit: "requests: 1000000000, window: 1h",
        body: BODY_BYTES,
        requests: 4_000,
    },
];

/// A connection with a read buffer.
pub(crate) type Connection = BufReader<TcpStream>;

pub(crate) fn connect(address: SocketAddr, count: usize) -> anyhow::Result<Vec<Connection>> {
    (0..count).map(|_| Ok(BufReader::with_capacity(2 * BODY_BYTES, TcpStream::connect(address)?))).collect()
}

/// Sends `count` requests, one at a time, alternating between the connections.
pub(crate) fn send(connections: &mut [Connection], request: &[u8], count: usize) -> anyhow::Result<()> {
    for turn in 0..count {
        let stream = &mut connections[turn % CONNECTIONS];
        stream.get_mut().write_all(request)?;
        read_message(stream)?.context("the gateway closed a connection")?;
    }
    Ok(())
}

pub(crate) fn request(body: usize) -> Vec<u8> {
    let method = if body == 0 { "GET" } else { "POST" };
    let length = if body == 0 { String::new() } else { format!("Content-Length: {body}\r\n") };
    let head = format!(
        "{method} /api/v1/items/42?page=2 HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: instructions/1.0\r\n\
         Accept: application/json\r\nAccept-Encoding: gzip\r\nAccept-Language: en\r\n{length}\r\n"
    );
    [head.into_bytes(), vec![b'a'; body]].concat()
}

/// Reads a message and returns its body; `None` at the end of the connection.
fn read_message(stream: &mut impl BufRead) -> anyhow::Result<Option<Vec<u8>>> {
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
        if line == "\r\n" {
            let mut body = vec![0; length];
            stream.read_exact(&mut body)?;
            return Ok(Some(body));
        }
    }
}

/// Starts an echo server with one thread per connection.
fn upstream() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || echo(stream));
        }
    });
    Ok(address)
}

fn echo(stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::with_capacity(2 * BODY_BYTES, stream);
    while let Some(body) = read_message(&mut stream)? {
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.get_mut().write_all(&[head.into_bytes(), body].concat())?;
    }
    Ok(())
}

/// `tidegate serve` with one worker.
pub(crate) struct Gateway {
    process: Child,
    pub(crate) address: SocketAddr,
    pub(crate) folder: PathBuf,
}

impl Gateway {
    /// Starts `binary` by the command `runner`, or on its own if that is empty.
    pub(crate) fn start(binary: &Path, mode: &Mode, runner: &[&str]) -> anyhow::Result<Self> {
        let folder = run::root().join(format!(
            "target/load-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        ));
        std::fs::create_dir_all(&folder)?;
        let (limit, upstream) = (mode.limit, upstream()?);
        let limits = format!("default: {{ {limit} }}, endpoints: {{ /api/v1/items/*: {{ {limit} }} }}");
        let policy = format!(
            "admin: off\nupstreams: {{ app: {{ servers: [http://{upstream}] }} }}\nroutes: [{{ upstream: app }}]\n\
             rate_limits: {{ {limits} }}\n"
        );
        std::fs::write(folder.join("policy.yaml"), policy)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let binary = std::path::absolute(binary)?;
        let mut command = match runner {
            [] => Command::new(binary),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(binary);
                command
            }
        };
        command.args(["serve", "--config", "policy.yaml", "--cores", "1"]);
        command.args(["--listen", &address.to_string()]).current_dir(&folder).env("XDG_STATE_HOME", &folder);
        let log = std::fs::File::create(folder.join("log"))?;
        let process =
            command.stdout(Stdio::null()).stderr(log).spawn().context("cannot start the gateway")?;
        let mut gateway = Self { process, address, folder };
        gateway.wait_until_listening()?;
        Ok(gateway)
    }

    fn wait_until_listening(&mut self) -> anyhow::Result<()> {
        for _ in 0..MAX_ATTEMPTS {
            if TcpStream::connect(self.address).is_ok() {
                return Ok(());
            }
            if self.process.try_wait()?.is_some() {
                break;
            }
            std::thread::sleep(ATTEMPT_INTERVAL);
        }
        bail!("the gateway does not listen:\n{}", std::fs::read_to_string(self.folder.join("log"))?)
    }

    /// The CPU time of all its threads, in nanoseconds.
    pub(crate) fn processor_time(&self) -> anyhow::Result<u64> {
        let mut total = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            let time = text.split_ascii_whitespace().next().context("schedstat is empty")?;
            total += time.parse::<u64>().context("schedstat contains no number")?;
        }
        Ok(total)
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
