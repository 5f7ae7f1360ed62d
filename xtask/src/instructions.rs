//! `cargo xtask instructions`: user-space instructions per request, counted by callgrind.
//!
//! One request at a time, over connections that take turns: nothing is batched, so every run does the same work. The
//! count depends neither on the clock nor on other load, and an older binary can be measured with the same load.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::{run, setup};

const CONNECTIONS: usize = 8;
/// Requests before counting starts: connections, pools and tables are ready then.
const WARM_UP: usize = 400;
const BODY_BYTES: usize = 64 << 10;
/// How often a connection is tried while valgrind starts a large binary, and the time between two tries.
const TRIES: usize = 1_200;
const PAUSE: Duration = Duration::from_millis(100);

/// What is measured, its limit, the bytes of each body, and how many requests.
struct Mode {
    name: &'static str,
    limit: &'static str,
    body: usize,
    requests: usize,
}

const MODES: [Mode; 3] = [
    Mode { name: "pass", limit: "requests: 1000000000, window: 1h", body: 0, requests: 20_000 },
    Mode { name: "reject", limit: "requests: 1, window: 1d", body: 0, requests: 20_000 },
    Mode {
        name: "64 KiB body",
        limit: "requests: 1000000000, window: 1h",
        body: BODY_BYTES,
        requests: 4_000,
    },
];

pub(crate) fn run(binary: Option<PathBuf>, profiles: Option<&Path>) -> anyhow::Result<()> {
    setup::ensure("valgrind")?;
    let binary = binary.unwrap_or_else(|| run::root().join("target/release/tidegate"));
    if !binary.is_file() {
        bail!("{} is missing; build it with `cargo build --release`", binary.display());
    }
    println!("{}", binary.display());
    for mode in &MODES {
        println!("{:12} {:8} instructions per request", mode.name, measure(&binary, mode, profiles)?);
    }
    Ok(())
}

fn measure(binary: &Path, mode: &Mode, profiles: Option<&Path>) -> anyhow::Result<u64> {
    let gateway = Gateway::start(binary, mode)?;
    let mut connections = (0..CONNECTIONS)
        .map(|_| Ok(BufReader::with_capacity(2 * BODY_BYTES, TcpStream::connect(gateway.address)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let request = request(mode.body);
    let mut send = |count: usize| -> anyhow::Result<()> {
        for turn in 0..count {
            let stream = &mut connections[turn % CONNECTIONS];
            stream.get_mut().write_all(&request)?;
            read_message(stream)?.context("the gateway closed a connection")?;
        }
        Ok(())
    };
    send(WARM_UP)?;
    gateway.control("--instr=on")?;
    send(mode.requests)?;
    gateway.control("--dump")?;
    if let Some(folder) = profiles {
        std::fs::create_dir_all(folder)?;
        std::fs::copy(gateway.dump(), folder.join(mode.name.replace(' ', "-")))?;
    }
    Ok(gateway.counted()? / mode.requests as u64)
}

fn request(body: usize) -> Vec<u8> {
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

/// A server that sends every body back, with a thread for each connection.
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

/// `tidegate serve` under callgrind, with one worker.
struct Gateway {
    process: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Gateway {
    fn start(binary: &Path, mode: &Mode) -> anyhow::Result<Self> {
        let folder = run::root().join(format!("target/instructions-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let (limit, upstream) = (mode.limit, upstream()?);
        let limits = format!("default: {{ {limit} }}, endpoints: {{ /api/v1/items/*: {{ {limit} }} }}");
        let policy = format!(
            "admin: off\nupstreams: {{ app: {{ servers: [http://{upstream}] }} }}\nroutes: [{{ upstream: app }}]\n\
             rate_limits: {{ {limits} }}\n"
        );
        std::fs::write(folder.join("policy.yaml"), policy)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=out"]);
        command.arg(std::path::absolute(binary)?).args(["serve", "--config", "policy.yaml", "--cores", "1"]);
        command.args(["--listen", &address.to_string()]).current_dir(&folder).env("XDG_STATE_HOME", &folder);
        let log = std::fs::File::create(folder.join("log"))?;
        let process = command.stdout(Stdio::null()).stderr(log).spawn().context("cannot start valgrind")?;
        let mut gateway = Self { process, address, folder };
        gateway.wait_until_it_listens()?;
        Ok(gateway)
    }

    fn wait_until_it_listens(&mut self) -> anyhow::Result<()> {
        for _ in 0..TRIES {
            if TcpStream::connect(self.address).is_ok() {
                return Ok(());
            }
            if self.process.try_wait()?.is_some() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        bail!("the gateway does not listen:\n{}", std::fs::read_to_string(self.folder.join("log"))?)
    }

    fn control(&self, order: &str) -> anyhow::Result<()> {
        let process = self.process.id().to_string();
        run::output(Command::new("callgrind_control").args([order, &process])).map(drop)
    }

    /// Where callgrind writes its first dump.
    fn dump(&self) -> PathBuf {
        self.folder.join("out.1")
    }

    /// The instructions in the first dump.
    fn counted(&self) -> anyhow::Result<u64> {
        let dump = std::fs::read_to_string(self.dump()).context("callgrind wrote no dump")?;
        let total =
            dump.lines().find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
        total
            .context("callgrind counted nothing")?
            .trim()
            .parse()
            .context("callgrind's total is not a number")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
