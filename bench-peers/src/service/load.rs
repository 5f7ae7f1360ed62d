//! A closed loop over non-blocking sockets in one thread: every connection sends `depth` requests in one write, waits for all
//! replies, and sends the next. Requests are computed before; of the replies, only what is needed to count them is read.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::replies::{ReplyFormat, ReplyReader, Verdict};
use super::requests::RequestSet;

/// Without a reply for so long, a server has stalled.
const STALL: Duration = Duration::from_secs(5);
const READ_BUFFER: usize = 256 * 1024;

/// What is sent where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load<'a> {
    pub(crate) port: u16,
    pub(crate) connections: usize,
    /// Requests on a connection without waiting for replies.
    pub(crate) depth: usize,
    pub(crate) requests: &'a RequestSet,
    pub(crate) format: ReplyFormat,
}

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// After this time; requests start at random positions of the set.
    Elapsed(Duration),
    /// After each request of the set was sent once.
    EachSentOnce,
}

/// What came of a load.
#[derive(Debug, Default)]
pub(crate) struct LoadResult {
    pub(crate) decisions: u64,
    pub(crate) elapsed: Duration,
    /// Of the first reply to each write.
    pub(crate) admitted: u64,
    pub(crate) rejected: u64,
    /// From a write to the last of its replies, sorted, in microseconds.
    pub(crate) latencies: Vec<f32>,
}

impl LoadResult {
    /// The latency that this share of the round trips does not exceed, in microseconds.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a position in a vector"
    )]
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let position = (self.latencies.len() as f64 * share) as usize;
        let position = position.min(self.latencies.len().saturating_sub(1));
        self.latencies.get(position).map_or(f64::NAN, |micros| f64::from(*micros))
    }
}

impl Load<'_> {
    /// Sends requests until the end, then waits for the replies that are due.
    pub(crate) fn run(&self, until: Until) -> anyhow::Result<LoadResult> {
        LoadLoop::connect(self, until)?.run()
    }
}

struct LoadConnection {
    stream: TcpStream,
    /// The bytes of the request set that are still to be written.
    unsent: std::ops::Range<usize>,
    sent_at: Instant,
    replies: ReplyReader,
    is_waiting: bool,
}

struct LoadLoop<'a> {
    load: &'a Load<'a>,
    until: Until,
    poll: Poll,
    connections: Vec<LoadConnection>,
    /// The next request, if each is sent once.
    cursor: usize,
    started: Instant,
    waiting: usize,
    result: LoadResult,
    random: fastrand::Rng,
}

impl<'a> LoadLoop<'a> {
    fn connect(load: &'a Load<'a>, until: Until) -> anyhow::Result<Self> {
        let poll = Poll::new()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, load.port));
        let now = Instant::now();
        let mut connections = Vec::with_capacity(load.connections);
        for number in 0..load.connections {
            let stream = std::net::TcpStream::connect_timeout(&address, STALL)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            poll.registry().register(&mut stream, Token(number), Interest::READABLE | Interest::WRITABLE)?;
            connections.push(LoadConnection {
                stream,
                unsent: 0..0,
                sent_at: now,
                replies: ReplyReader::new(load.format),
                is_waiting: false,
            });
        }
        Ok(Self {
            load,
            until,
            poll,
            connections,
            cursor: 0,
            started: Instant::now(),
            waiting: 0,
            result: LoadResult::default(),
            random: fastrand::Rng::with_seed(17),
        })
    }

    fn run(mut self) -> anyhow::Result<LoadResult> {
        let mut buffer = vec![0; READ_BUFFER];
        let mut events = Events::with_capacity(1024);
        for number in 0..self.connections.len() {
            self.start_batch(number, self.started)?;
        }
        let mut last_event = Instant::now();
        while self.waiting > 0 {
            if let Err(error) = self.poll.poll(&mut events, Some(Duration::from_millis(100))) {
                ensure!(error.kind() == ErrorKind::Interrupted, "poll: {error}");
                continue;
            }
            if !events.is_empty() {
                last_event = Instant::now();
            } else if last_event.elapsed() > STALL {
                bail!("{} connections got no reply within {} s", self.waiting, STALL.as_secs());
            }
            for event in &events {
                let number = event.token().0;
                if event.is_readable() || event.is_read_closed() {
                    self.receive(number, &mut buffer)?;
                }
                self.flush(number)?;
            }
        }
        self.result.elapsed = self.started.elapsed();
        self.result.latencies.sort_by(f32::total_cmp);
        Ok(self.result)
    }

    /// Sends the next requests on a connection, unless the end is reached.
    fn start_batch(&mut self, number: usize, now: Instant) -> anyhow::Result<()> {
        let Load { requests, depth, .. } = *self.load;
        let (first, depth) = match self.until {
            Until::Elapsed(time) if now.duration_since(self.started) >= time => return Ok(()),
            Until::Elapsed(_) => (self.random.usize(0..=requests.len() - depth), depth),
            Until::EachSentOnce if self.cursor >= requests.len() => return Ok(()),
            Until::EachSentOnce => {
                let first = self.cursor;
                self.cursor += depth;
                (first, depth.min(requests.len() - first))
            }
        };
        let connection = &mut self.connections[number];
        connection.unsent = requests.range(first, depth);
        connection.sent_at = now;
        connection.replies.expect(depth);
        connection.is_waiting = true;
        self.waiting += 1;
        self.flush(number)
    }

    fn flush(&mut self, number: usize) -> anyhow::Result<()> {
        let connection = &mut self.connections[number];
        while !connection.unsent.is_empty() {
            match connection.stream.write(&self.load.requests.bytes()[connection.unsent.clone()]) {
                Ok(written) => connection.unsent.start += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("the server closed a connection"),
            }
        }
        Ok(())
    }

    /// Reads what has arrived. A read that does not fill the buffer has drained the socket: epoll reports what comes later.
    fn receive(&mut self, number: usize, buffer: &mut [u8]) -> anyhow::Result<()> {
        loop {
            let connection = &mut self.connections[number];
            let read = match connection.stream.read(buffer) {
                Ok(0) if !connection.is_waiting => return Ok(()),
                Ok(0) => bail!("the server closed a connection instead of replying"),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("cannot read replies"),
            };
            let is_complete = connection.replies.receive(&buffer[..read])?;
            match connection.replies.take_verdict() {
                Some(Verdict::Admitted) => self.result.admitted += 1,
                Some(Verdict::Rejected) => self.result.rejected += 1,
                None => {}
            }
            if is_complete {
                let now = Instant::now();
                connection.is_waiting = false;
                self.waiting -= 1;
                let latency = now.duration_since(connection.sent_at);
                self.result.latencies.push(latency.as_secs_f32() * 1e6);
                self.result.decisions += connection.replies.expected() as u64;
                self.start_batch(number, now)?;
            }
            if read < buffer.len() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_of_sorted_latencies_is_the_value_at_its_position() {
        let result = LoadResult { latencies: vec![1.0, 2.0, 3.0, 4.0], ..LoadResult::default() };
        assert!((result.quantile(0.5) - 3.0).abs() < 1e-6);
        assert!((result.quantile(1.0) - 4.0).abs() < 1e-6);
        assert!(LoadResult::default().quantile(0.5).is_nan());
    }
}
