//! What one client may cost, whatever the policy says. The defaults are safe.

use std::time::Duration;

/// The shortest of a connection's timeouts is this many ticks of the watchdog.
const TICKS_PER_TIMEOUT: u32 = 3;

/// Limits that hold for every request and connection.
#[derive(Clone, Copy, Debug)]
pub struct ResourceLimits {
    /// Header fields of a request.
    pub headers: usize,
    /// Bytes of a request's line and headers together.
    pub head_bytes: usize,
    /// Bytes of a body. Bodies are never buffered whole, so this limits time, not memory.
    pub body_bytes: u64,
    /// How slowly a client may send a body; a modem is faster.
    pub request_min_rate: MinRate,
    /// How slowly an upstream may send a body; event streams send something more often.
    pub response_min_rate: MinRate,
    /// Bytes that a client must read of each response that waits for it, in every `reader_window`; a modem is faster.
    /// While nothing waits it owes nothing, so streams may be as quiet as they like.
    pub reader_bytes: u64,
    /// The time over which the rate of a slow reader is measured.
    pub reader_window: Duration,
    /// How long the head of a request may take from its first byte.
    pub head_timeout: Duration,
    /// How long a connection may be idle between requests.
    pub idle_timeout: Duration,
    /// How long an upgraded connection may be silent, both ways.
    pub tunnel_timeout: Duration,
    /// How long until an upstream accepts a connection.
    pub connect_timeout: Duration,
    /// How long until an upstream's response begins.
    pub response_timeout: Duration,
    /// How long a connection to an upstream may be idle before it is closed: servers and the networks between forget
    /// such connections, some without notice.
    pub upstream_idle: Duration,
    /// After how long without a frame an HTTP/2 upstream is pinged; it has half of that to respond. Seldom enough for
    /// gRPC servers, which by default close a connection at the fourth ping without data between.
    pub upstream_ping: Duration,
    /// How long a TLS handshake may take.
    pub handshake_timeout: Duration,
    /// How many requests of one worker may be delayed at once.
    pub max_delayed: usize,
    /// Connections of all clients together.
    pub connections: usize,
    /// Connections of one address.
    pub connections_per_address: usize,
    /// Streams of one HTTP/2 connection at once.
    pub streams: u32,
}

impl Default for ResourceLimits {
    fn default() -> Self {
        Self {
            headers: 100,
            head_bytes: 64 << 10,
            body_bytes: 8 << 30,
            request_min_rate: MinRate { period: Duration::from_secs(30), bytes: 3_000 },
            response_min_rate: MinRate { period: Duration::from_mins(2), bytes: 1 },
            reader_bytes: 3_000,
            reader_window: Duration::from_secs(30),
            head_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(75),
            tunnel_timeout: Duration::from_mins(10),
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_mins(1),
            upstream_idle: Duration::from_mins(1),
            upstream_ping: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            max_delayed: 10_000,
            connections: 100_000,
            connections_per_address: 20_000,
            streams: 128,
        }
    }
}

impl ResourceLimits {
    /// How often connections are visited. Their timeouts elapse at ticks, never early: rounded up to whole ticks, they are
    /// less than a tick late.
    pub(crate) fn tick(&self) -> Duration {
        let shortest = self.head_timeout.min(self.reader_window).min(self.idle_timeout);
        (shortest / TICKS_PER_TIMEOUT).max(Duration::from_millis(1))
    }
}

/// At least this many bytes in each period.
#[derive(Clone, Copy, Debug)]
pub struct MinRate {
    /// How long a period is.
    pub period: Duration,
    /// What it must bring.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tick_of_the_defaults_is_five_seconds() {
        assert_eq!(ResourceLimits::default().tick(), Duration::from_secs(5));
    }

    #[test]
    fn tick_follows_the_shortest_timeout_and_is_never_zero() {
        let limits = |idle_timeout| ResourceLimits { idle_timeout, ..ResourceLimits::default() };
        assert_eq!(limits(Duration::from_secs(3)).tick(), Duration::from_secs(1));
        assert_eq!(limits(Duration::from_hours(1)).tick(), Duration::from_secs(5));
        assert_eq!(limits(Duration::ZERO).tick(), Duration::from_millis(1));
    }
}
