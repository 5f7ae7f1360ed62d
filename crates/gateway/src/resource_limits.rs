//! Limits on resources that apply to every client, independent of the policy.

use std::time::Duration;

/// The shortest of a connection's timeouts is this many ticks of the watchdog.
const TICKS_PER_TIMEOUT: u32 = 3;

/// Limits that apply to every request and connection.
#[derive(Clone, Copy, Debug)]
pub struct ResourceLimits {
    /// Header fields of a request.
    pub headers: usize,
    /// Bytes of a request's line and headers together.
    pub head_bytes: usize,
    /// Bytes of the head of a response from an upstream: more than three times a request head, because a redirect may repeat
    /// the URL in an encoding that needs three bytes for one.
    pub response_head_bytes: u32,
    /// Bytes of a request body. Bodies are streamed, so this limits time, not memory.
    pub body_bytes: u64,
    /// The minimum rate at which a client must send a body.
    pub request_min_rate: MinRate,
    /// The minimum rate at which an upstream must send a body. Event streams usually send more often than one period.
    pub response_min_rate: MinRate,
    /// Bytes that a client must read of each blocked response in every `reader_window`. Does not apply while no output
    /// is blocked, so streams may be quiet.
    pub reader_bytes: u64,
    /// The time over which the rate of a slow reader is measured.
    pub reader_window: Duration,
    /// How long the head of a request may take from its first byte.
    pub head_timeout: Duration,
    /// How long a connection may be idle between requests.
    pub idle_timeout: Duration,
    /// How long an upgraded connection may be idle in both directions.
    pub tunnel_timeout: Duration,
    /// The most that connecting to an upstream may take, whatever the policy says.
    pub connect_timeout: Duration,
    /// The most that an attempt may take until the response starts, whatever the policy says.
    pub response_timeout: Duration,
    /// The most that a connection to an upstream may be idle, whatever the policy says. Servers and middleboxes drop idle
    /// connections, some without notice.
    pub upstream_idle: Duration,
    /// How long an HTTP/2 upstream connection may be quiet before a ping is sent; the server has half of that to respond.
    /// By default, gRPC servers close a connection at the fourth ping without data in between.
    pub upstream_ping: Duration,
    /// How long a TLS handshake may take.
    pub handshake_timeout: Duration,
    /// Connections of all clients together.
    pub connections: usize,
    /// Connections of one address.
    pub connections_per_address: usize,
    /// Concurrent streams of one HTTP/2 connection.
    pub streams: u32,
}

impl Default for ResourceLimits {
    fn default() -> Self {
        Self {
            headers: 100,
            head_bytes: 64 << 10,
            response_head_bytes: 256 << 10,
            body_bytes: 8 << 30,
            request_min_rate: MinRate { period: Duration::from_secs(30), bytes: 3_000 },
            response_min_rate: MinRate { period: Duration::from_mins(2), bytes: 1 },
            reader_bytes: 3_000,
            reader_window: Duration::from_secs(30),
            head_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(75),
            tunnel_timeout: Duration::from_mins(10),
            connect_timeout: Duration::MAX,
            response_timeout: Duration::MAX,
            upstream_idle: Duration::MAX,
            upstream_ping: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            connections: 100_000,
            connections_per_address: 20_000,
            streams: 128,
        }
    }
}

impl ResourceLimits {
    /// How long a body may take to arrive, if a rule counts the user that it names: by default 5 s. Then the request is decided
    /// without it.
    pub(crate) fn user_body_wait(&self) -> Duration {
        self.head_timeout / 3
    }

    /// The interval at which the watchdog visits connections. Timeouts are rounded up to whole ticks: they never fire
    /// early, and fire less than a tick late.
    pub(crate) fn tick(&self) -> Duration {
        let shortest = self.head_timeout.min(self.reader_window).min(self.idle_timeout);
        (shortest / TICKS_PER_TIMEOUT).max(Duration::from_millis(1))
    }
}

/// A minimum rate: at least this many bytes in each period.
#[derive(Clone, Copy, Debug)]
pub struct MinRate {
    /// The length of a period.
    pub period: Duration,
    /// Bytes that each period must transfer.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tick_default_limits_is_five_seconds() {
        assert_eq!(ResourceLimits::default().tick(), Duration::from_secs(5));
    }

    #[test]
    fn tick_short_timeout_is_a_third_of_it_and_never_zero() {
        let limits = |idle_timeout| ResourceLimits { idle_timeout, ..ResourceLimits::default() };
        assert_eq!(limits(Duration::from_secs(3)).tick(), Duration::from_secs(1));
        assert_eq!(limits(Duration::from_hours(1)).tick(), Duration::from_secs(5));
        assert_eq!(limits(Duration::ZERO).tick(), Duration::from_millis(1));
    }
}
