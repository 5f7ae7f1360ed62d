//! The part of the table for upstreams that fail or are slow.

use tidegate_core::Jitter;

use super::Shape::{self, Choice, Count, Duration, Either, Object, OneOrMany, Percent, Size, Status, Text};
use super::names::{ADAPTIVE, FILE, METHOD, OFF, RETRY_CAUSES};
use crate::plan::BreakerScope;

const RETRY_SHAPES: &[Shape] = &[Choice(OFF), Object(&RETRY)];
const EJECT_SHAPES: &[Shape] = &[Choice(OFF), Object(&EJECT)];
const SHED_SHAPES: &[Shape] = &[Choice(ADAPTIVE), Object(&SHED)];

shared_keys! {
    /// How long connecting, each attempt and all attempts together may take.
    TIMEOUTS_KEY = timeouts: Object(&TIMEOUTS), example "{ connect: 2s, request: 10s, total: 30s }";

    /// Which failed requests are sent again, to another server first; `off` sends every request once.
    RETRY_KEY = retry: Either(RETRY_SHAPES),
        example "{ attempts: 3, on: [connect, reset, 503] }", default "{ attempts: 2, on: [connect, reset] }";

    /// A circuit breaker: after failures, requests get 503 at once until a probe succeeds.
    BREAKER_KEY = breaker: Object(&BREAKER), example "{ failures: 5, open_for: 30s }";

    /// The maximum number of requests in flight to this upstream. Further requests wait in a queue or get 503.
    BULKHEAD_KEY = bulkhead: Object(&BULKHEAD), example "{ concurrent: 50, queue: 20, wait: 500ms }";

    /// Passive health checks: a server that fails repeatedly gets no requests for a while; `off` disables them.
    EJECT_KEY = eject: Either(EJECT_SHAPES),
        example "{ after: 5, for: 10s, at_most: 50% }", default "{ after: 5, for: 10s, at_most: 50% }";

    /// Load shedding: a concurrency limit that follows the latency of the upstream. Above it, requests get 503, those with a low
    /// `X-Criticality` first.
    SHED_KEY = shed: Either(SHED_SHAPES), example "adaptive";

    /// The response while the breaker is open, instead of the usual 503.
    FALLBACK_KEY = fallback: Object(&FALLBACK), example "{ status: 503, body: down.json }";

    /// The maximum number of requests of this route in flight, so that one route cannot use up its upstream.
    ROUTE_BULKHEAD_KEY = bulkhead: Object(&ROUTE_BULKHEAD), example "{ concurrent: 30 }";

    /// The maximum number of requests in flight, from the start of the request to the end of the response.
    CONCURRENT = concurrent: Count(1), example "50", required;

    /// The number of requests that may wait for another to end.
    QUEUE = queue: Count(0), example "20", default "0";

    /// How long a request may wait in the queue.
    WAIT = wait: Duration, example "500ms", default "1s";
}

mappings! {
    /// The timeouts of an upstream. `connect` is at most `request`, and `request` at most `total`; a default adapts to the values
    /// that are set. A request without a response in time gets 504, and one without a connection in time 502.
    TIMEOUTS: "`timeouts`" at "upstreams.NAME.timeouts" {
        /// How long connecting to a server may take, with the TLS handshake.
        connect: Duration, example "2s", default "`5s`, or `request` if that is shorter";
        /// How long a server may take until its response starts. Each attempt has this time.
        request: Duration, example "10s", default "`30s`, or `total` if that is shorter";
        /// How long an unused connection to a server stays open.
        idle: Duration, example "60s", default "60s";
        /// How long all attempts together may take until the response starts, waits included. If it is set, a request without a
        /// deadline starts one that the upstream is told (`X-Request-Deadline-Ms`); it ends when the response starts.
        total: Duration, example "30s", default "`30s`, or `request` if that is longer";
    }

    /// Which failed requests are sent again. A request is retried only before the first byte of a response, and only if its body
    /// was empty or is in the buffer.
    RETRY: "`retry`" at "upstreams.NAME.retry" {
        /// The number of attempts, the first included; at most 10.
        attempts: Count(1), example "3", default "2";
        /// The failures that are retried: no connection (`connect`), a connection that broke before the response (`reset`), no
        /// response in time (`timeout`), and responses with status 429 or 5xx. `5xx` means the whole class.
        on: OneOrMany(&Either(&[Choice(RETRY_CAUSES), Status])),
            example "[connect, reset, timeout, 502, 503, 504]", default "[connect, reset]";
        /// The methods that may be sent again although the server may have received the first attempt. After a failed connect
        /// every method is retried.
        methods: OneOrMany(&METHOD),
            example "[GET, HEAD, OPTIONS, PUT, DELETE]", default "[GET, HEAD, OPTIONS, TRACE, PUT, DELETE]";
        /// The wait before the first retry; it doubles with each further retry.
        base: Duration, example "50ms", default "`25ms`, or `cap` if that is shorter";
        /// The longest wait before a retry.
        cap: Duration, example "2s", default "`1s`, or `base` if that is longer";
        /// How waits are randomized: not at all (`none`), between 0 and the wait (`full`), between half of it and all of it
        /// (`equal`), or between `base` and three times the wait before (`decorrelated`).
        jitter: Choice(&Jitter::NAMES), example "full", default "decorrelated";
        /// The largest share of requests that is retried, over the last ten seconds.
        budget: Either(&[Percent, Object(&RETRY_BUDGET)]), example "10%", default "{ share: 10%, floor: 10 }";
        /// Request bodies up to this size are kept for retries; at most 16MiB. With `off`, only requests without a body are
        /// retried.
        buffer: Either(&[Size, Choice(OFF)]), example "64KiB", default "64KiB";
    }

    /// How many retries all requests to an upstream share.
    RETRY_BUDGET: "`budget`" at "upstreams.NAME.retry.budget" {
        /// The largest share of the requests of the last ten seconds that is retried.
        share: Percent, example "10%", default "10%";
        /// Retries per second that are allowed besides, so that an upstream with few requests is retried too. With 0 the share is
        /// strict.
        floor: Count(0), example "0", default "10";
    }

    /// A circuit breaker. Failed connects, timeouts, broken connections and 5xx are failures; 4xx, 429 and requests that the
    /// client cancels are not counted. The breaker opens when any of `failures`, `failure_rate` and `slow` is reached.
    BREAKER: "`breaker`" at "upstreams.NAME.breaker" {
        /// The number of failures in a row that opens the breaker.
        failures: Count(1), example "5", default "`5`; none if `failure_rate` or `slow` is set";
        /// The share of failures in the window that opens the breaker.
        failure_rate: Percent, example "50%";
        /// The share of slow requests in the window that opens the breaker.
        slow: Object(&SLOW), example "{ over: 2s, rate: 80% }";
        /// The time span that `failure_rate` and `slow` look at.
        window: Duration, example "10s", default "10s";
        /// The number of requests in the window below which `failure_rate` and `slow` do not apply.
        min_calls: Count(1), example "20", default "20";
        /// How long the breaker stays open before it sends probes; up to a tenth is added at random.
        open_for: Duration, example "30s", default "30s";
        /// The time doubles with each failed probe, up to this.
        max_open_for: Duration, example "5m", default "`open_for`: it does not grow";
        /// The number of probes that may be in flight.
        probes: Count(1), example "1", default "1";
        /// The number of successful probes that closes the breaker.
        successes: Count(1), example "2", default "1";
        /// What one breaker covers: each server has its own (`server`), or all servers share one (`upstream`).
        per: Choice(&BreakerScope::NAMES), example "upstream", default "server";
    }

    /// When slow requests open the breaker.
    SLOW: "`slow`" at "upstreams.NAME.breaker.slow" {
        /// Requests that take at least this long are slow.
        over: Duration, example "2s", required;
        /// The share of slow requests that opens the breaker.
        rate: Percent, example "80%", required;
    }

    /// A bound on requests in flight. A request that finds it full waits in the queue; if the queue is full too, or the wait is
    /// over, it gets 503. Each node counts separately.
    BULKHEAD: "`bulkhead`" at "upstreams.NAME.bulkhead" {
        CONCURRENT;
        QUEUE;
        WAIT;
        /// The maximum number of open connections to all servers of the upstream.
        connections: Count(1), example "100", default "unlimited";
    }

    /// A bound on the requests of one route in flight, in addition to the bulkhead of its upstream.
    ROUTE_BULKHEAD: "`bulkhead`" at "routes[].bulkhead" {
        CONCURRENT;
        QUEUE;
        WAIT;
    }

    /// Passive health checks. They need no `health` and work in addition to it.
    EJECT: "`eject`" at "upstreams.NAME.eject" {
        /// The number of failures in a row that ejects a server.
        after: Count(1), example "5", default "5";
        /// How long a server is ejected at first; the time grows with each ejection that follows.
        for: Duration, example "10s", default "10s";
        /// The largest share of servers that is ejected at a time, rounded down.
        at_most: Percent, example "50%", default "50%";
    }

    /// Load shedding with bounds of its own.
    SHED: "`shed`" at "upstreams.NAME.shed" {
        /// The bounds of the adaptive limit.
        adaptive: Object(&ADAPTIVE_LIMIT), example "{ min: 10, max: 200 }", required;
    }

    /// The bounds of the adaptive concurrency limit: `min` is at most `initial`, and `initial` at most `max`; a default adapts to
    /// the values that are set.
    ADAPTIVE_LIMIT: "`adaptive`" at "upstreams.NAME.shed.adaptive" {
        /// The limit at the start.
        initial: Count(1), example "50", default "`20`, within `min` and `max`";
        /// The limit never shrinks below this.
        min: Count(1), example "10", default "`5`, or less if another bound is lower";
        /// The limit never grows beyond this.
        max: Count(1), example "200", default "`1000`, or more if another bound is higher";
    }

    /// The response while the breaker is open: a fixed one (`status`, `body`), or that of another upstream.
    FALLBACK: "`fallback`" at "upstreams.NAME.fallback" {
        /// The status, 200 to 599.
        status: Count(200), example "503", default "503";
        /// The file with the body, at most 1MiB of UTF-8; its ending (.json, .html or .txt) determines `Content-Type`. The file
        /// is watched for changes.
        body: FILE, example "down.json", default "the usual error body";
        /// The upstream that gets the requests meanwhile. It cannot be combined with the other keys.
        upstream: Text("name"), example "replica";
    }
}
