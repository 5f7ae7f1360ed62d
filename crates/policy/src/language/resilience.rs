//! The part of the table for upstreams that fail or are slow.

use tidegate_core::Jitter;

use super::Shape::{Choice, Count, Duration, Either, Object, OneOrMany, Percent, Size, Status, Text};
use super::names::{ADAPTIVE, FILE, METHOD, OFF, RETRY_CAUSES};
use super::{Mapping, PolicyKey, Shape};
use crate::plan::BreakerScope;

const RETRY_SHAPES: &[Shape] = &[Choice(OFF), Object(&RETRY)];
const EJECT_SHAPES: &[Shape] = &[Choice(OFF), Object(&EJECT)];
const SHED_SHAPES: &[Shape] = &[Choice(ADAPTIVE), Object(&SHED)];

pub(super) const TIMEOUTS_KEY: PolicyKey = PolicyKey::new(
    "timeouts",
    Object(&TIMEOUTS),
    "How long connecting, each attempt and all attempts together may take.",
    "{ connect: 2s, request: 10s, total: 30s }",
);
pub(super) const RETRY_KEY: PolicyKey = PolicyKey::new(
    "retry",
    Either(RETRY_SHAPES),
    "Which failed requests are sent again, to another server first; `off` sends every request once.",
    "{ attempts: 3, on: [connect, reset, 503] }",
)
.default("{ attempts: 2, on: [connect, reset] }");
pub(super) const BREAKER_KEY: PolicyKey = PolicyKey::new(
    "breaker",
    Object(&BREAKER),
    "A circuit breaker: after failures, requests get 503 at once until a probe succeeds.",
    "{ failures: 5, open_for: 30s }",
);
pub(super) const BULKHEAD_KEY: PolicyKey = PolicyKey::new(
    "bulkhead",
    Object(&BULKHEAD),
    "The maximum number of requests in flight to this upstream. Further requests wait in a queue or get 503.",
    "{ concurrent: 50, queue: 20, wait: 500ms }",
);
pub(super) const EJECT_KEY: PolicyKey = PolicyKey::new(
    "eject",
    Either(EJECT_SHAPES),
    "Passive health checks: a server that fails repeatedly gets no requests for a while; `off` disables them.",
    "{ after: 5, for: 10s, at_most: 50% }",
)
.default("{ after: 5, for: 10s, at_most: 50% }");
pub(super) const SHED_KEY: PolicyKey = PolicyKey::new(
    "shed",
    Either(SHED_SHAPES),
    "Load shedding: a concurrency limit that follows the latency of the upstream. Above it, requests get 503, those with a low `X-Criticality` first.",
    "adaptive",
);
pub(super) const FALLBACK_KEY: PolicyKey = PolicyKey::new(
    "fallback",
    Object(&FALLBACK),
    "The response while the breaker is open, instead of the usual 503.",
    "{ status: 503, body: down.json }",
);
pub(super) const ROUTE_BULKHEAD_KEY: PolicyKey = PolicyKey::new(
    "bulkhead",
    Object(&ROUTE_BULKHEAD),
    "The maximum number of requests of this route in flight, so that one route cannot use up its upstream.",
    "{ concurrent: 30 }",
);

pub(crate) static TIMEOUTS: Mapping = Mapping {
    name: "`timeouts`",
    path: "upstreams.NAME.timeouts",
    doc: "The timeouts of an upstream. `connect` is at most `request`, and `request` at most `total`; a default adapts to the values that are set. A request without a response in time gets 504, and one without a connection in time 502.",
    keys: &[
        PolicyKey::new(
            "connect",
            Duration,
            "How long connecting to a server may take, with the TLS handshake.",
            "2s",
        )
        .default("`5s`, or `request` if that is shorter"),
        PolicyKey::new(
            "request",
            Duration,
            "How long a server may take until its response starts. Each attempt has this time.",
            "10s",
        )
        .default("`30s`, or `total` if that is shorter"),
        PolicyKey::new("idle", Duration, "How long an unused connection to a server stays open.", "60s")
            .default("60s"),
        PolicyKey::new(
            "total",
            Duration,
            "How long all attempts together may take until the response starts, waits included. If it is set, a request without a deadline starts one that the upstream is told (`X-Request-Deadline-Ms`); it ends when the response starts.",
            "30s",
        )
        .default("`30s`, or `request` if that is longer"),
    ],
};

pub(crate) static RETRY: Mapping = Mapping {
    name: "`retry`",
    path: "upstreams.NAME.retry",
    doc: "Which failed requests are sent again. A request is retried only before the first byte of a response, and only if its body was empty or is in the buffer.",
    keys: &[
        PolicyKey::new("attempts", Count(1), "The number of attempts, the first included; at most 10.", "3").default("2"),
        PolicyKey::new(
            "on",
            OneOrMany(&Either(&[Choice(RETRY_CAUSES), Status])),
            "The failures that are retried: no connection (`connect`), a connection that broke before the response (`reset`), no response in time (`timeout`), and responses with status 429 or 5xx. `5xx` means the whole class.",
            "[connect, reset, timeout, 502, 503, 504]",
        )
        .default("[connect, reset]"),
        PolicyKey::new(
            "methods",
            OneOrMany(&METHOD),
            "The methods that may be sent again although the server may have received the first attempt. After a failed connect every method is retried.",
            "[GET, HEAD, OPTIONS, PUT, DELETE]",
        )
        .default("[GET, HEAD, OPTIONS, TRACE, PUT, DELETE]"),
        PolicyKey::new("base", Duration, "The wait before the first retry; it doubles with each further retry.", "50ms")
            .default("`25ms`, or `cap` if that is shorter"),
        PolicyKey::new("cap", Duration, "The longest wait before a retry.", "2s")
            .default("`1s`, or `base` if that is longer"),
        PolicyKey::new(
            "jitter",
            Choice(&Jitter::NAMES),
            "How waits are randomized: not at all (`none`), between 0 and the wait (`full`), between half of it and all of it (`equal`), or between `base` and three times the wait before (`decorrelated`).",
            "full",
        )
        .default("decorrelated"),
        PolicyKey::new(
            "budget",
            Either(&[Percent, Object(&RETRY_BUDGET)]),
            "The largest share of requests that is retried, over the last ten seconds.",
            "10%",
        )
        .default("{ share: 10%, floor: 10 }"),
        PolicyKey::new(
            "buffer",
            Either(&[Size, Choice(OFF)]),
            "Request bodies up to this size are kept for retries; at most 16MiB. With `off`, only requests without a body are retried.",
            "64KiB",
        )
        .default("64KiB"),
    ],
};

pub(crate) static RETRY_BUDGET: Mapping = Mapping {
    name: "`budget`",
    path: "upstreams.NAME.retry.budget",
    doc: "How many retries all requests to an upstream share.",
    keys: &[
        PolicyKey::new("share", Percent, "The largest share of the requests of the last ten seconds that is retried.", "10%")
            .default("10%"),
        PolicyKey::new(
            "floor",
            Count(0),
            "Retries per second that are allowed besides, so that an upstream with few requests is retried too. With 0 the share is strict.",
            "0",
        )
        .default("10"),
    ],
};

pub(crate) static BREAKER: Mapping = Mapping {
    name: "`breaker`",
    path: "upstreams.NAME.breaker",
    doc: "A circuit breaker. Failed connects, timeouts, broken connections and 5xx are failures; 4xx, 429 and requests that the client cancels are not counted. The breaker opens when any of `failures`, `failure_rate` and `slow` is reached.",
    keys: &[
        PolicyKey::new("failures", Count(1), "The number of failures in a row that opens the breaker.", "5")
            .default("`5`; none if `failure_rate` or `slow` is set"),
        PolicyKey::new("failure_rate", Percent, "The share of failures in the window that opens the breaker.", "50%"),
        PolicyKey::new("slow", Object(&SLOW), "The share of slow requests in the window that opens the breaker.", "{ over: 2s, rate: 80% }"),
        PolicyKey::new("window", Duration, "The time span that `failure_rate` and `slow` look at.", "10s").default("10s"),
        PolicyKey::new(
            "min_calls",
            Count(1),
            "The number of requests in the window below which `failure_rate` and `slow` do not apply.",
            "20",
        )
        .default("20"),
        PolicyKey::new(
            "open_for",
            Duration,
            "How long the breaker stays open before it sends probes; up to a tenth is added at random.",
            "30s",
        )
        .default("30s"),
        PolicyKey::new(
            "max_open_for",
            Duration,
            "The time doubles with each failed probe, up to this.",
            "5m",
        )
        .default("`open_for`: it does not grow"),
        PolicyKey::new("probes", Count(1), "The number of probes that may be in flight.", "1").default("1"),
        PolicyKey::new("successes", Count(1), "The number of successful probes that closes the breaker.", "2").default("1"),
        PolicyKey::new(
            "per",
            Choice(&BreakerScope::NAMES),
            "What one breaker covers: each server has its own (`server`), or all servers share one (`upstream`).",
            "upstream",
        )
        .default("server"),
    ],
};

pub(crate) static SLOW: Mapping = Mapping {
    name: "`slow`",
    path: "upstreams.NAME.breaker.slow",
    doc: "When slow requests open the breaker.",
    keys: &[
        PolicyKey::new("over", Duration, "Requests that take at least this long are slow.", "2s").required(),
        PolicyKey::new("rate", Percent, "The share of slow requests that opens the breaker.", "80%")
            .required(),
    ],
};

const CONCURRENT: PolicyKey = PolicyKey::new(
    "concurrent",
    Count(1),
    "The maximum number of requests in flight, from the start of the request to the end of the response.",
    "50",
)
.required();
const QUEUE: PolicyKey =
    PolicyKey::new("queue", Count(0), "The number of requests that may wait for another to end.", "20")
        .default("0");
const WAIT: PolicyKey =
    PolicyKey::new("wait", Duration, "How long a request may wait in the queue.", "500ms").default("1s");

pub(crate) static BULKHEAD: Mapping = Mapping {
    name: "`bulkhead`",
    path: "upstreams.NAME.bulkhead",
    doc: "A bound on requests in flight. A request that finds it full waits in the queue; if the queue is full too, or the wait is over, it gets 503. Each node counts separately.",
    keys: &[
        CONCURRENT,
        QUEUE,
        WAIT,
        PolicyKey::new(
            "connections",
            Count(1),
            "The maximum number of open connections to all servers of the upstream.",
            "100",
        )
        .default("unlimited"),
    ],
};

pub(crate) static ROUTE_BULKHEAD: Mapping = Mapping {
    name: "`bulkhead`",
    path: "routes[].bulkhead",
    doc: "A bound on the requests of one route in flight, in addition to the bulkhead of its upstream.",
    keys: &[CONCURRENT, QUEUE, WAIT],
};

pub(crate) static EJECT: Mapping = Mapping {
    name: "`eject`",
    path: "upstreams.NAME.eject",
    doc: "Passive health checks. They need no `health` and work in addition to it.",
    keys: &[
        PolicyKey::new("after", Count(1), "The number of failures in a row that ejects a server.", "5")
            .default("5"),
        PolicyKey::new(
            "for",
            Duration,
            "How long a server is ejected at first; the time grows with each ejection that follows.",
            "10s",
        )
        .default("10s"),
        PolicyKey::new(
            "at_most",
            Percent,
            "The largest share of servers that is ejected at a time, rounded down.",
            "50%",
        )
        .default("50%"),
    ],
};

pub(crate) static SHED: Mapping = Mapping {
    name: "`shed`",
    path: "upstreams.NAME.shed",
    doc: "Load shedding with bounds of its own.",
    keys: &[PolicyKey::new(
        "adaptive",
        Object(&ADAPTIVE_LIMIT),
        "The bounds of the adaptive limit.",
        "{ min: 10, max: 200 }",
    )
    .required()],
};

pub(crate) static ADAPTIVE_LIMIT: Mapping = Mapping {
    name: "`adaptive`",
    path: "upstreams.NAME.shed.adaptive",
    doc: "The bounds of the adaptive concurrency limit: `min` is at most `initial`, and `initial` at most `max`; a default adapts to the values that are set.",
    keys: &[
        PolicyKey::new("initial", Count(1), "The limit at the start.", "50")
            .default("`20`, within `min` and `max`"),
        PolicyKey::new("min", Count(1), "The limit never shrinks below this.", "10")
            .default("`5`, or less if another bound is lower"),
        PolicyKey::new("max", Count(1), "The limit never grows beyond this.", "200")
            .default("`1000`, or more if another bound is higher"),
    ],
};

pub(crate) static FALLBACK: Mapping = Mapping {
    name: "`fallback`",
    path: "upstreams.NAME.fallback",
    doc: "The response while the breaker is open: a fixed one (`status`, `body`), or that of another upstream.",
    keys: &[
        PolicyKey::new("status", Count(200), "The status, 200 to 599.", "503").default("503"),
        PolicyKey::new(
            "body",
            FILE,
            "The file with the body, at most 1MiB of UTF-8; its ending (.json, .html or .txt) determines `Content-Type`. The file is watched for changes.",
            "down.json",
        )
        .default("the usual error body"),
        PolicyKey::new(
            "upstream",
            Text("name"),
            "The upstream that gets the requests meanwhile. It cannot be combined with the other keys.",
            "replica",
        ),
    ],
};
