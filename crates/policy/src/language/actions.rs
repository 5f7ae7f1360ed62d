//! The part of the table for `on_exceed`.

use super::Shape::{self, Choice, Count, Duration, Either, Object, Percent, Size, Text};
use super::names::{CREDENTIALS, PLAIN_ACTIONS};

const ON_EXCEED_SHAPES: &[Shape] = &[Choice(PLAIN_ACTIONS), Object(&ON_EXCEED)];

shared_keys! {
    /// What happens to a request that exceeds the limit: `reject` responds 429; `degrade` forwards it with `X-Tidegate-Degrade:
    /// 1`, so that the service can respond more cheaply. docs/actions.md explains all actions.
    ON_EXCEED_KEY = on_exceed: Either(ON_EXCEED_SHAPES), example "{ slow: { from: 80%, max: 1s } }", default "reject";

    /// The responses that `on_exceed: { cached: … }` serves.
    CACHE_KEY = cache: Object(&CACHE), example "{ memory: 64MiB }";
}

mappings! {
    /// What happens to a request that exceeds a limit. Every limit and rule with `requests` can have it. Set one of these keys.
    /// Of several exceeded limits, the first of `reject`, `cached`, `wait`, `defer` and `degrade` applies. What an interface
    /// cannot perform is a rejection.
    ON_EXCEED: "`on_exceed`" at "rate_limits.default.on_exceed" {
        /// Responds with the last complete response to a GET, if it is not too old; otherwise 429. Only in the gateway.
        cached: Object(&CACHED), example "{ for: 60s }";
        /// Waits for its turn, first come, first served, at most this long and not beyond its deadline. A request whose turn
        /// cannot come in time is rejected at once. Not with `leaky_bucket`, which has its own `max_wait`.
        wait: Duration, example "2s";
        /// Accepts the request with 202 and delivers it later.
        defer: Object(&DEFER), example "{ requests: 10, window: 1s }";
        /// Forwards the request to a cheaper upstream.
        degrade: Object(&DEGRADE), example "{ upstream: cheap }";
        /// Delays requests near the limit; beyond it they are rejected. Not with `leaky_bucket`.
        slow: Object(&SLOWDOWN), example "{ from: 80%, max: 1s }";
        /// Admits some more units, which take longer to be available again. Only with `token_bucket`, and not with `coordination:
        /// lease` or `sync`.
        borrow: Object(&LEND), example "{ units: 20, repay: 2 }";
    }

    /// The memory of this process for the responses that `on_exceed: { cached: … }` serves. A reload starts with none of them.
    CACHE: "`cache`" at "cache" {
        /// How much they occupy together, at least 1MiB. A response larger than a sixteenth of it is not stored.
        memory: Size, example "128MiB", default "64MiB";
    }

    /// Which cached responses are served.
    CACHED: "`cached`" at "rate_limits.default.on_exceed.cached" {
        /// The largest age of a response.
        for: Duration, example "60s", required;
    }

    /// Where degraded requests go. Without an upstream, write `on_exceed: degrade`.
    DEGRADE: "`degrade`" at "rate_limits.default.on_exceed.degrade" {
        /// The upstream, with its own timeouts, breaker and bulkhead. If it has no server, the request is rejected with an error;
        /// it never goes to the upstream of its route.
        upstream: Text("upstream name"), example "cheap", required;
    }

    /// How requests near the limit are delayed. The delay grows in proportion to the used part of the limit.
    SLOWDOWN: "`slow`" at "rate_limits.default.on_exceed.slow" {
        /// The used part of the limit at which delays begin.
        from: Percent, example "80%", required;
        /// The delay at the limit, at most 1h.
        max: Duration, example "1s", required;
    }

    /// Units beyond the burst of a token bucket. They are part of the announced limit.
    LEND: "`borrow`" at "rate_limits.default.on_exceed.borrow" {
        /// How many units.
        units: Count(1), example "20", required;
        /// How many units each of them costs.
        repay: Count(1), example "2", default "2";
    }

    /// How deferred requests are kept and delivered.
    DEFER: "`defer`" at "rate_limits.default.on_exceed.defer" {
        /// How many requests are delivered per window.
        requests: Count(1), example "10", required;
        /// The length of the window.
        window: Duration, example "1s", required;
        /// How many requests are kept.
        queue: Count(1), example "10000", default "10000";
        /// How many requests of one client are kept.
        per_client: Count(1), example "100", default "100";
        /// The largest body.
        body: Size, example "64KiB", default "64KiB";
        /// How often a request is tried.
        attempts: Count(1), example "8", default "8";
        /// How long the result is kept.
        keep: Duration, example "1d", default "1d";
        /// Whether requests with credentials are stored; `reject` responds 429 to them.
        credentials: Choice(CREDENTIALS), example "store", default "reject";
    }
}
