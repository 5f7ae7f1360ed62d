//! Unary gRPC calls with the `h2` crate in one thread. Each connection has a fixed number of streams that call in turn.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request, StatusCode, Version, header};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};

use super::load::LoadResult;
use super::replies::Verdict;
use super::requests::RequestSet;

/// A call without a response for so long has failed.
const STALL: Duration = Duration::from_secs(5);

/// What is called where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrpcLoad<'a> {
    pub(crate) port: u16,
    pub(crate) connections: usize,
    /// Streams of a connection that call at the same time.
    pub(crate) streams: usize,
    pub(crate) path: &'static str,
    /// Messages with their gRPC prefix.
    pub(crate) messages: &'a RequestSet,
}

impl GrpcLoad<'_> {
    /// Calls for this time, then waits for the responses that are due.
    pub(crate) fn run(&self, time: Duration) -> anyhow::Result<LoadResult> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let tasks = LocalSet::new();
            let bounded = tokio::time::timeout(time + STALL, tasks.run_until(self.call_for(time)));
            bounded.await.with_context(|| format!("calls without a response within {} s", STALL.as_secs()))?
        })
    }

    async fn call_for(&self, time: Duration) -> anyhow::Result<LoadResult> {
        let all = Bytes::copy_from_slice(self.messages.bytes());
        let mut clients = Vec::with_capacity(self.connections);
        for _ in 0..self.connections {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
            stream.set_nodelay(true)?;
            let (client, connection) = h2::client::handshake(stream).await?;
            // A connection that fails fails its calls.
            tokio::task::spawn_local(connection);
            clients.push(client);
        }
        let started = Instant::now();
        let mut callers = JoinSet::new();
        for (number, client) in clients.iter().flat_map(|client| vec![client; self.streams]).enumerate() {
            let caller = Caller {
                client: client.clone(),
                request: self.request()?,
                messages: all.clone(),
                length: self.messages.range(0, 1).len(),
                random: fastrand::Rng::with_seed(number as u64),
            };
            callers.spawn_local(caller.call_until(started + time));
        }
        let mut result = LoadResult::default();
        while let Some(ended) = callers.join_next().await {
            let CallCount { admitted, rejected } = ended??;
            result.admitted += admitted;
            result.rejected += rejected;
        }
        result.decisions = result.admitted + result.rejected;
        result.elapsed = started.elapsed();
        Ok(result)
    }

    fn request(&self) -> anyhow::Result<Request<()>> {
        let request = Request::builder()
            .version(Version::HTTP_2)
            .method(Method::POST)
            .uri(format!("http://127.0.0.1:{}{}", self.port, self.path))
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers");
        Ok(request.body(())?)
    }
}

#[derive(Debug, Default)]
struct CallCount {
    admitted: u64,
    rejected: u64,
}

struct Caller {
    client: SendRequest<Bytes>,
    request: Request<()>,
    messages: Bytes,
    /// Of one message.
    length: usize,
    random: fastrand::Rng,
}

impl Caller {
    async fn call_until(mut self, end: Instant) -> anyhow::Result<CallCount> {
        let mut count = CallCount::default();
        while Instant::now() < end {
            match self.call().await? {
                Verdict::Admitted => count.admitted += 1,
                Verdict::Rejected => count.rejected += 1,
            }
        }
        Ok(count)
    }

    async fn call(&mut self) -> anyhow::Result<Verdict> {
        let start = self.random.usize(0..self.messages.len() / self.length) * self.length;
        let message = self.messages.slice(start..start + self.length);
        let mut client = self.client.clone().ready().await?;
        let (response, mut body) = client.send_request(self.request.clone(), false)?;
        body.send_data(message, true)?;
        let (head, mut body) = response.await?.into_parts();
        ensure!(head.status == StatusCode::OK, "status {}", head.status);
        let mut verdict = None;
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            verdict = verdict.or(Some(decision(&chunk)?));
        }
        let trailers = body.trailers().await?;
        // An error has no message and may have its status in the head.
        let fields = trailers.as_ref().unwrap_or(&head.headers);
        let status = fields.get("grpc-status").map(http::HeaderValue::as_bytes);
        ensure!(status == Some(b"0"), "gRPC error: {fields:?}");
        verdict.context("a response without a message")
    }
}

/// Both services decide with the first field: `overall_code` (1 OK, 2 `OVER_LIMIT`), or `allowed` (1, absent if not).
fn decision(message: &[u8]) -> anyhow::Result<Verdict> {
    match message.get(5..).unwrap_or_default() {
        [0x08, 1, ..] => Ok(Verdict::Admitted),
        [0x08, 2, ..] | [0x10, ..] => Ok(Verdict::Rejected),
        other => bail!("not a decision: {:02x?}", &other[..other.len().min(40)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_reads_the_first_field() {
        assert_eq!(decision(b"\0\0\0\0\x02\x08\x01").unwrap(), Verdict::Admitted);
        assert_eq!(decision(b"\0\0\0\0\x02\x08\x02").unwrap(), Verdict::Rejected);
        assert!(decision(b"\0\0\0\0\0").is_err());
    }
}
