//! What one client may cost us, whatever the policy says: safe by default.

use std::time::Duration;

use crate::http::response_body::Pace;

/// Bounds that hold for every request and connection.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Header fields of a request.
    pub headers: usize,
    /// Bytes of a request's line and headers together.
    pub head_bytes: usize,
    /// Bytes of a body. Bodies are never held whole, so this bounds time, not memory.
    pub body_bytes: u64,
    /// How slowly a client may send a body: slower than a modem means harm.
    pub request_pace: Pace,
    /// How long an upstream may be silent within a body; event streams send something more often.
    pub response_pace: Pace,
    /// What a client must take of each response that waits for it, in bytes in six looks: slower than a modem means harm.
    /// While nothing waits it owes nothing, so streams may be as quiet as they like.
    pub reader_bytes: u64,
    /// How long an upgraded connection may be silent, both ways.
    pub tunnel: Duration,
    /// How long until an upstream accepts a connection.
    pub connect: Duration,
    /// How long until an upstream's answer begins.
    pub answer: Duration,
    /// How long a connection to an upstream may be idle before it is closed: servers and the networks between forget
    /// such connections, some without a word.
    pub upstream_idle: Duration,
    /// After how long without a frame an HTTP/2 upstream is pinged; it has half of that to answer. Seldom enough for
    /// gRPC servers, which by default end a connection at the fourth ping without data between.
    pub upstream_ping: Duration,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// How many requests of one core may be held at once.
    pub waiting: usize,
    /// Connections of all clients together.
    pub connections: usize,
    /// Connections of one address.
    pub connections_per_address: usize,
    /// How often a connection is looked at; three times of it is what the head of a request may take, six times
    /// what its pace as a reader is measured in, fifteen times how long it may be idle.
    pub look: Duration,
    /// Streams of one HTTP/2 connection at once.
    pub streams: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            headers: 100,
            head_bytes: 64 << 10,
            body_bytes: 8 << 30,
            request_pace: Pace { period: Duration::from_secs(30), bytes: 3_000 },
            response_pace: Pace { period: Duration::from_mins(2), bytes: 1 },
            reader_bytes: 3_000,
            tunnel: Duration::from_mins(10),
            connect: Duration::from_secs(5),
            answer: Duration::from_mins(1),
            upstream_idle: Duration::from_mins(1),
            upstream_ping: Duration::from_secs(30),
            handshake: Duration::from_secs(10),
            waiting: 10_000,
            connections: 100_000,
            connections_per_address: 20_000,
            look: Duration::from_secs(5),
            streams: 128,
        }
    }
}
