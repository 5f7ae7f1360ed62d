//! What connections take that were used once and are kept open.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::proxy::{Proxy, Running, Setting};

pub(crate) const NAME: &str = "10,000 idle connections";
const CONNECTIONS: usize = 10_000;
/// Each client address holds so many, so that no limit per address is met.
const PER_ADDRESS: usize = 100;

/// HAProxy would need two descriptors for each, more than the usual limit gives.
pub(crate) const PROXIES: [(Proxy, &str); 3] =
    [(Proxy::Nginx, "–"), (Proxy::Envoy, "–"), (Proxy::Tidegate, "–")];

/// KiB by which the proxy's resident set grows with each connection.
#[expect(clippy::cast_precision_loss, reason = "a figure to read, not to compute with")]
pub(crate) fn kib_per_connection(proxy: Proxy, setting: &Setting<'_>) -> anyhow::Result<f64> {
    allow_descriptors()?;
    let Running { mut server, port } = proxy.start(setting)?;
    // What the first requests make it take once is not a connection's.
    drop(open(port, PER_ADDRESS)?);
    let before = server.usage()?.resident_bytes;
    let held = open(port, CONNECTIONS)?;
    let after = server.usage()?.resident_bytes;
    ensure!(server.is_running()?, "it ended under {CONNECTIONS} connections");
    for stream in held.iter().step_by(PER_ADDRESS) {
        ensure!(still_open(stream), "it closed connections instead of holding them");
    }
    Ok(after.saturating_sub(before) as f64 / 1024.0 / CONNECTIONS as f64)
}

/// Opens so many, one request and answer on each.
fn open(port: u16, connections: usize) -> anyhow::Result<Vec<TcpStream>> {
    let one = |number: usize| -> anyhow::Result<TcpStream> {
        let host = u8::try_from(1 + number / PER_ADDRESS)?;
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, host), 0))?;
        connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let key = number % 1000 + 1;
        stream.write_all(
            format!("GET /small HTTP/1.1\r\nHost: api.example\r\nX-API-Key: customer:{key:012}\r\n\r\n")
                .as_bytes(),
        )?;
        let mut answer = [0; 4096];
        let length = stream.read(&mut answer)?;
        ensure!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..length]));
        Ok(stream)
    };
    (0..connections).map(|number| one(number).with_context(|| format!("connection {number}"))).collect()
}

/// Whether reading would wait, as it does where nobody has hung up. What is left of an answer counts as open.
fn still_open(mut stream: &TcpStream) -> bool {
    let mut closed = || -> std::io::Result<bool> {
        stream.set_nonblocking(true)?;
        Ok(stream.read(&mut [0; 4096])? == 0)
    };
    closed().map_or_else(|error| error.kind() == std::io::ErrorKind::WouldBlock, |closed| !closed)
}

/// As many descriptors as the system lets us have; proxies started later inherit them.
fn allow_descriptors() -> anyhow::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    match maximum {
        Some(most) if most < CONNECTIONS as u64 + 500 => {
            bail!("{CONNECTIONS} connections need more open files than `ulimit -Hn` allows ({most})")
        }
        _ => Ok(()),
    }
}
