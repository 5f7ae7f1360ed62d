//! The part of the table for `on_exceed`.

use super::Shape::{Choice, Count, Duration, Either, Object, Percent, Size, Text};
use super::names::{CREDENTIALS, PLAIN_ACTIONS};
use super::{Mapping, PolicyKey, Shape};

const ON_EXCEED_SHAPES: &[Shape] = &[Choice(PLAIN_ACTIONS), Object(&ON_EXCEED)];
/// `on_exceed` of a limit.
pub(super) const ON_EXCEED_KEY: PolicyKey = PolicyKey::new(
    "on_exceed",
    Either(ON_EXCEED_SHAPES),
    "What happens to a request that exceeds the limit: `reject` responds 429; `degrade` forwards it with `X-Tidegate-Degrade: 1`, so that the service can respond more cheaply. docs/actions.md explains all actions.",
    "{ slow: { from: 80%, max: 1s } }",
)
.default("reject");

pub(crate) static ON_EXCEED: Mapping = Mapping {
    name: "`on_exceed`",
    path: "rate_limits.default.on_exceed",
    doc: "What happens to a request that exceeds a limit. Every limit and rule with `requests` can have it. Set one of these keys. Of several exceeded limits, the first of `reject`, `cached`, `wait`, `defer` and `degrade` applies. What an interface cannot perform is a rejection.",
    keys: &[
        PolicyKey::new(
            "cached",
            Object(&CACHED),
            "Responds with the last complete response to a GET, if it is not too old; otherwise 429. Only in the gateway.",
            "{ for: 60s }",
        ),
        PolicyKey::new(
            "wait",
            Duration,
            "Waits for its turn, first come, first served, at most this long and not beyond its deadline. A request whose turn cannot come in time is rejected at once. Not with `leaky_bucket`, which has its own `max_wait`.",
            "2s",
        ),
        PolicyKey::new(
            "defer",
            Object(&DEFER),
            "Accepts the request with 202 and delivers it later.",
            "{ requests: 10, window: 1s }",
        ),
        PolicyKey::new(
            "degrade",
            Object(&DEGRADE),
            "Forwards the request to a cheaper upstream.",
            "{ upstream: cheap }",
        ),
        PolicyKey::new(
            "slow",
            Object(&SLOWDOWN),
            "Delays requests near the limit; beyond it they are rejected. Not with `leaky_bucket`.",
            "{ from: 80%, max: 1s }",
        ),
        PolicyKey::new(
            "borrow",
            Object(&LEND),
            "Admits some more units, which take longer to be available again. Only with `token_bucket`, and not with `coordination: lease` or `sync`.",
            "{ units: 20, repay: 2 }",
        ),
    ],
};

/// `cache` of the policy.
pub(super) const CACHE_KEY: PolicyKey = PolicyKey::new(
    "cache",
    Object(&CACHE),
    "The responses that `on_exceed: { cached: … }` serves.",
    "{ memory: 64MiB }",
);

pub(crate) static CACHE: Mapping = Mapping {
    name: "`cache`",
    path: "cache",
    doc: "The memory of this process for the responses that `on_exceed: { cached: … }` serves. A reload starts with none of them.",
    keys: &[PolicyKey::new(
        "memory",
        Size,
        "How much they occupy together, at least 1MiB. A response larger than a sixteenth of it is not stored.",
        "128MiB",
    )
    .default("64MiB")],
};

pub(crate) static CACHED: Mapping = Mapping {
    name: "`cached`",
    path: "rate_limits.default.on_exceed.cached",
    doc: "Which cached responses are served.",
    keys: &[PolicyKey::new("for", Duration, "The largest age of a response.", "60s").required()],
};

pub(crate) static DEGRADE: Mapping = Mapping {
    name: "`degrade`",
    path: "rate_limits.default.on_exceed.degrade",
    doc: "Where degraded requests go. Without an upstream, write `on_exceed: degrade`.",
    keys: &[PolicyKey::new(
        "upstream",
        Text("upstream name"),
        "The upstream, with its own timeouts, breaker and bulkhead. If it has no server, the request is rejected with an error; it never goes to the upstream of its route.",
        "cheap",
    )
    .required()],
};

pub(crate) static SLOWDOWN: Mapping = Mapping {
    name: "`slow`",
    path: "rate_limits.default.on_exceed.slow",
    doc: "How requests near the limit are delayed. The delay grows in proportion to the used part of the limit.",
    keys: &[
        PolicyKey::new("from", Percent, "The used part of the limit at which delays begin.", "80%")
            .required(),
        PolicyKey::new("max", Duration, "The delay at the limit, at most 1h.", "1s").required(),
    ],
};

pub(crate) static LEND: Mapping = Mapping {
    name: "`borrow`",
    path: "rate_limits.default.on_exceed.borrow",
    doc: "Units beyond the burst of a token bucket. They are part of the announced limit.",
    keys: &[
        PolicyKey::new("units", Count(1), "How many units.", "20").required(),
        PolicyKey::new("repay", Count(1), "How many units each of them costs.", "2").default("2"),
    ],
};

pub(crate) static DEFER: Mapping = Mapping {
    name: "`defer`",
    path: "rate_limits.default.on_exceed.defer",
    doc: "How deferred requests are kept and delivered.",
    keys: &[
        PolicyKey::new("requests", Count(1), "How many requests are delivered per window.", "10").required(),
        PolicyKey::new("window", Duration, "The length of the window.", "1s").required(),
        PolicyKey::new("queue", Count(1), "How many requests are kept.", "10000").default("10000"),
        PolicyKey::new("per_client", Count(1), "How many requests of one client are kept.", "100")
            .default("100"),
        PolicyKey::new("body", Size, "The largest body.", "64KiB").default("64KiB"),
        PolicyKey::new("attempts", Count(1), "How often a request is tried.", "8").default("8"),
        PolicyKey::new("keep", Duration, "How long the result is kept.", "1d").default("1d"),
        PolicyKey::new(
            "credentials",
            Choice(CREDENTIALS),
            "Whether requests with credentials are stored; `reject` responds 429 to them.",
            "store",
        )
        .default("reject"),
    ],
};
