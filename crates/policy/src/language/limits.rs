//! The part of the table for `rate_limits`.

use super::Shape::{
    self, Choice, Count, Duration, Either, List, Named, Object, OneOrMany, Percent, Size, Status, Text,
};
use super::actions::ON_EXCEED_KEY;
use super::names::{ALGORITHMS, ANY_TEXT, EVERYBODY, HEADER, IDENTITY, METHOD, MODES, PATH, REPORTS};
use super::rejections::{RULE_ERROR_BODY_KEY, STATUS_KEY};
use super::store::{RULE_COORDINATION, RULE_FAILURE_MODE};

const MODE_SHAPES: &[Shape] = &[Choice(MODES), Object(&CANARY)];

shared_keys! {
    /// The number of requests per window.
    REQUESTS = requests: Count(1), example "100", required;

    /// The length of the window.
    WINDOW = window: Duration, example "60s", required;

    /// The rate-limiting algorithm.
    ALGORITHM = algorithm: Choice(ALGORITHMS), example "sliding_window_counter", default "sliding_window_counter";

    /// The largest burst (`token_bucket`), or the capacity of the bucket including the departing request (`leaky_bucket`).
    BURST = burst: Count(1), example "20", default "`requests`";

    /// The longest time that a request may be delayed (`leaky_bucket`). A request that would wait longer is rejected and not
    /// charged.
    MAX_WAIT = max_wait: Duration, example "10s", default "30s";

    /// Whether clients are told about this limit. With `off` it is in no rate-limit header and no error body, and a response to a
    /// request that it rejects has only `Retry-After`. Logs, metrics, the admin API and callers of the decision service by rule
    /// see it.
    REPORT = report: Choice(REPORTS), example "off", default "on";

    /// `enforce` rejects requests above the limit. `shadow` counts and logs what it would reject, and clients notice nothing. A
    /// canary enforces the limit for some clients only.
    MODE = mode: Either(MODE_SHAPES), example "shadow", default "enforce";

    /// A lockout for clients that exceed the limit repeatedly.
    PENALTY_KEY = penalty: Object(&PENALTY), example "{ after: 3, for: 1m, doubling_to: 1d }";
}

mappings! {
    /// The limits. A request is checked against `global`, `tenant`, its tier or `default`, the matching rules and the most
    /// specific endpoint, in this order and in one decision. If any limit rejects it, no limit is charged.
    RATE_LIMITS: "`rate_limits`" at "rate_limits" {
        /// The limit of all clients together.
        global: Object(&GLOBAL), example "{ requests: 10000, window: 1s }";
        /// The limit of each tenant, and of each client without a tenant.
        tenant: Object(&LIMIT), example "{ requests: 1000, window: 1m }";
        /// The limit of each client without a tier.
        default: Object(&LIMIT), example "{ requests: 100, window: 60 }";
        /// The limit of each client with a tier, instead of `default`.
        tiers: Named("tier", &Either(&[Object(&LIMIT), Choice(&["unlimited"])])),
            example "{ free: { requests: 100, window: 1h }, staff: unlimited }";
        /// The limit of each client at an endpoint, in addition to the others. The name is a path pattern, optionally after a
        /// method; GET includes HEAD.
        endpoints: Named("endpoint", &Object(&ENDPOINT)), example "{ POST /orders: { requests: 10, window: 1m } }";
        /// Custom limits.
        rules: List(&Object(&RULE)),
            example "[{ name: login, match: { path: /login }, per: [ip], requests: 5, window: 15m }]";
    }

    /// Enforces a limit for some clients; for the others it is in shadow mode. Every limit and rule can have it.
    CANARY: "`mode`" at "rate_limits.default.mode" {
        /// The percentage of clients, as identified by `identify_by`. The selection is stable: the same clients after restarts
        /// and on every node. A larger percentage includes all clients of a smaller one.
        canary: Percent, example "10%", required;
    }

    /// A lockout: the client gets 429 until it ends, even if the limit would admit the request. Every limit except the global one
    /// can have it; with `per_each` each counter has its own. It locks out addresses, API keys and verified users and tenants;
    /// counters of other identities only limit. A violation expires after a `window` without another one; a doubling expires
    /// after the duration of its lockout (at least a `window`).
    PENALTY: "`penalty`" at "rate_limits.default.penalty" {
        /// The number of violations that causes a lockout.
        after: Count(1), example "3", required;
        /// The duration of the first lockout.
        for: Duration, example "1m", required;
        /// The maximum duration: each further lockout lasts twice as long as the one before, up to this.
        doubling_to: Duration, example "1d", default "`1d`, or `for` if that is longer";
    }

    /// A limit. `rate_limits.tenant`, each tier and each endpoint have the same keys.
    LIMIT: "a limit" at "rate_limits.default" {
        REQUESTS;
        WINDOW;
        ALGORITHM;
        BURST;
        MAX_WAIT;
        MODE;
        PENALTY_KEY;
        REPORT;
        ON_EXCEED_KEY;
        STATUS_KEY;
        RULE_ERROR_BODY_KEY;
        RULE_COORDINATION;
        RULE_FAILURE_MODE;
    }

    /// One limit for all clients together.
    GLOBAL: "the global limit" at "rate_limits.global" {
        REQUESTS;
        WINDOW;
        ALGORITHM;
        BURST;
        MAX_WAIT;
        MODE;
        REPORT;
        ON_EXCEED_KEY;
        STATUS_KEY;
        RULE_ERROR_BODY_KEY;
        RULE_COORDINATION;
        RULE_FAILURE_MODE;
    }

    /// A limit for each client at an endpoint. In the path, `*` and `{name}` match one segment and a final `**` matches any rest.
    ENDPOINT: "an endpoint's limit" at "rate_limits.endpoints.PATH" {
        REQUESTS;
        WINDOW;
        ALGORITHM;
        BURST;
        MAX_WAIT;
        MODE;
        PENALTY_KEY;
        REPORT;
        ON_EXCEED_KEY;
        STATUS_KEY;
        RULE_ERROR_BODY_KEY;
        RULE_COORDINATION;
        RULE_FAILURE_MODE;
    }

    /// A custom limit: where it applies, what it counts by and what a request costs. Without `per` and `per_each` it counts each
    /// client.
    RULE: "a rule" at "rate_limits.rules[]" {
        /// The name. Counters belong to the name: a renamed rule starts with empty counters.
        name: Text("name"), example "login-bruteforce", required;
        /// Which requests it applies to.
        match: Object(&MATCH), example "{ method: [POST], path: /login }", default "every request";
        /// One counter for each combination of these identities; `everybody` means one counter for all clients. If a request
        /// lacks an identity, the client from `identify_by` is counted instead. A combination with `cookie` or `fingerprint`
        /// needs an enforced rule with `per: ip` for the same requests.
        per: Either(&[OneOrMany(&IDENTITY), Choice(&[EVERYBODY])]), example "[ip, user]", default "each client";
        /// A separate counter for each of these identities; a request is admitted only if all of them admit it. If a request
        /// lacks an identity, the client from `identify_by` is counted instead; no counter is charged twice.
        per_each: OneOrMany(&IDENTITY), example "[ip, user, fingerprint]";
        /// Where this rule finds the `user` in `per` or `per_each`, in place of `clients.user`.
        user: Object(&RULE_USER), example "{ body: username }";
        REQUESTS.required_unless("required, unless `concurrent` is given");
        WINDOW.required_unless("required, unless `concurrent` is given");
        ALGORITHM;
        BURST;
        MAX_WAIT;
        /// The maximum number of concurrent requests, instead of `requests` and `window`. A request counts from the decision to
        /// the end of the response or of the upgraded connection. Each node counts separately, unless `coordination` is `central`
        /// (all nodes together) or `static` (`concurrent` divided by `store.nodes`, at least 1).
        concurrent: Count(1), example "10";
        MODE;
        PENALTY_KEY;
        REPORT;
        ON_EXCEED_KEY;
        STATUS_KEY;
        RULE_ERROR_BODY_KEY;
        /// How many units of the limit a request costs.
        cost: Either(&[Count(1), Object(&COST)]), example "5", default "1";
        /// Whether the response determines the charge.
        charge: Object(&CHARGE), example "{ after: { status: [401, 403] } }", default "before forwarding";
        RULE_COORDINATION.default("that of `store`; with `concurrent`: each node counts separately");
        RULE_FAILURE_MODE;
    }

    /// The user that the body of a request names, such as the name in a login form. It is not verified: it has no effect on tiers
    /// and bans, is never locked out, and the rule counts each address besides.
    RULE_USER: "`user`" at "rate_limits.rules[].user" {
        /// The field of a form (`application/x-www-form-urlencoded`) or of a JSON object that contains the name. At most 16 KiB
        /// of the body are read, and for at most 5 s. A request without the field is counted as one without a user. All requests
        /// whose field cannot be read are counted together: it is repeated or not a text, or the body is compressed, too large,
        /// late, or in another format. Needs `match.path`: no other body is read.
        body: Text("name"), example "username", required;
    }

    /// Which requests a rule applies to. All conditions must match.
    MATCH: "`match`" at "rate_limits.rules[].match" {
        /// One of these methods; GET includes HEAD.
        method: OneOrMany(&METHOD), example "[POST, PUT]", default "any";
        /// One of these paths.
        path: OneOrMany(&PATH), example "/login", default "any";
        /// Each of these headers has one of the listed values; `"*"` matches any value.
        header: Named("header", &OneOrMany(&ANY_TEXT)), example "{ X-Plan: [trial, free] }", default "any";
        /// An expression that must be true. If its evaluation fails for a request, the rule applies.
        when: Text("CEL expression"), example "request.path.startsWith(\"/api\")", default "always";
    }

    /// The cost of a request, if it is not the same for all. Set one of these keys.
    COST: "`cost`" at "rate_limits.rules[].cost" {
        /// The request header that contains the cost as a whole number. Without the header, or with 0, a request costs 1. If the
        /// header appears twice or is not a whole number, the request costs the whole limit. A cost above the limit is always
        /// rejected.
        header: HEADER, example "X-Cost";
        /// The number of bytes of the request body that cost one unit, rounded up; at least one unit. Without `Content-Length`,
        /// one unit is charged before forwarding and the rest as the body arrives, even above the limit.
        body: Size, example "1KiB";
    }

    /// When a request is charged. The cost is always reserved before forwarding, and stays charged if there is no response.
    CHARGE: "`charge`" at "rate_limits.rules[].charge" {
        /// Which part of the response determines the charge.
        after: Object(&AFTER), example "{ status: [401, 403] }", required;
    }

    /// Which part of the response determines the charge. Set one of these keys.
    AFTER: "`after`" at "rate_limits.rules[].charge.after" {
        /// The reserved cost stays charged if the status code is one of these; otherwise it is refunded. `5xx` means the whole
        /// class.
        status: OneOrMany(&Status), example "[401, 403]";
        /// The response header that contains the actual cost as a whole number. The difference to the reserved cost is refunded
        /// or charged, even above the limit. If the header is absent, appears twice or is not a whole number, the reserved cost
        /// stays charged.
        header: HEADER, example "X-Tokens-Used";
    }
}
