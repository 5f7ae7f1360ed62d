//! The part of the table that says how much may pass.

use super::Shape::{
    Choice, Count, Duration, Either, List, Named, Object, OneOrMany, Percent, Size, Status, Text,
};
use super::names::{ALGORITHMS, ANY_TEXT, EVERYBODY, HEADER, IDENTITY, METHOD, MODES, PATH};
use super::{Mapping, PolicyKey, Shape};

pub(crate) static RATE_LIMITS: Mapping = Mapping {
    name: "`rate_limits`",
    path: "rate_limits",
    doc: "How much may pass. A request is held against `global`, `tenant`, its tier or `default`, the rules that match and the most specific endpoint, in that order and in one decision: all pass, or nothing is charged.",
    keys: &[
        PolicyKey::new("global", Object(&GLOBAL), "Everybody together.", "{ requests: 10000, window: 1s }"),
        PolicyKey::new(
            "tenant",
            Object(&LIMIT),
            "Each tenant; each client without one.",
            "{ requests: 1000, window: 1m }",
        ),
        PolicyKey::new(
            "default",
            Object(&LIMIT),
            "Each client without a tier.",
            "{ requests: 100, window: 60 }",
        ),
        PolicyKey::new(
            "tiers",
            Named("tier", &Either(&[Object(&LIMIT), Choice(&["unlimited"])])),
            "Each client of a tier, instead of `default`.",
            "{ free: { requests: 100, window: 1h }, staff: unlimited }",
        ),
        PolicyKey::new(
            "endpoints",
            Named("endpoint", &Object(&ENDPOINT)),
            "Each client at an endpoint, in addition. The name is a path pattern, with or without a method before it; GET is HEAD too.",
            "{ POST /orders: { requests: 10, window: 1m } }",
        ),
        PolicyKey::new(
            "rules",
            List(&Object(&RULE)),
            "Anything else.",
            "[{ name: login, match: { path: /login }, per: [ip], requests: 5, window: 15m }]",
        ),
    ],
};

const REQUESTS: PolicyKey = PolicyKey::new("requests", Count(1), "How many per window.", "100").required();
const WINDOW: PolicyKey =
    PolicyKey::new("window", Duration, "The window: seconds, or a number with ms, s, m, h or d.", "60s")
        .required();
const ALGORITHM: PolicyKey =
    PolicyKey::new("algorithm", Choice(ALGORITHMS), "How it is counted.", "sliding_window_counter")
        .default("sliding_window_counter");
const BURST: PolicyKey = PolicyKey::new(
    "burst",
    Count(1),
    "How many at once (`token_bucket`), or how many the bucket holds, the departing one included (`leaky_bucket`).",
    "20",
)
.default("`requests`");
const MAX_WAIT: PolicyKey = PolicyKey::new(
    "max_wait",
    Duration,
    "How long a request may wait for its departure (`leaky_bucket`). One that would wait longer is rejected and charged nothing.",
    "10s",
)
.default("30s");

const MODE_SHAPES: &[Shape] = &[Choice(MODES), Object(&CANARY)];
const MODE: PolicyKey = PolicyKey::new(
    "mode",
    Either(MODE_SHAPES),
    "`shadow` decides, counts and logs, and changes nothing that a client can see; a canary refuses some clients only.",
    "shadow",
)
.default("enforce");

pub(crate) static CANARY: Mapping = Mapping {
    name: "`mode`",
    path: "rate_limits.default.mode",
    doc: "Enforces a limit for some clients and is a shadow for the rest. Every limit and rule can have it.",
    keys: &[PolicyKey::new(
        "canary",
        Percent,
        "The share of clients, as `identify_by` tells them apart: the same ones every time, after restarts and on every node. A larger share holds everybody of a smaller one.",
        "10%",
    )
    .required()],
};

const PENALISES: PolicyKey = PolicyKey::new(
    "penalty",
    Object(&PENALTY),
    "A lock-out for whoever is refused again and again.",
    "{ after: 3, for: 1m, doubling_to: 1d }",
);

pub(crate) static PENALTY: Mapping = Mapping {
    name: "`penalty`",
    path: "rate_limits.default.penalty",
    doc: "A lock-out: 429 until it ends, whatever the limit says meanwhile. Every limit but the global one can have it; with `per_each` each counter has its own. A violation is forgotten after a `window` without another, a doubling after as long as its lock-out lasted (at least a `window`).",
    keys: &[
        PolicyKey::new("after", Count(1), "How many refusals lock out.", "3").required(),
        PolicyKey::new("for", Duration, "How long the first lock-out lasts.", "1m").required(),
        PolicyKey::new(
            "doubling_to",
            Duration,
            "Each further lock-out lasts twice as long as the one before, up to this.",
            "1d",
        )
        .default("`1d`, or `for` if that is longer"),
    ],
};

pub(crate) static LIMIT: Mapping = Mapping {
    name: "a limit",
    path: "rate_limits.default",
    doc: "A limit. `rate_limits.tenant`, each tier and each endpoint have the same keys.",
    keys: &[REQUESTS, WINDOW, ALGORITHM, BURST, MAX_WAIT, MODE, PENALISES],
};

pub(crate) static GLOBAL: Mapping = Mapping {
    name: "the global limit",
    path: "rate_limits.global",
    doc: "A limit for everybody together.",
    keys: &[REQUESTS, WINDOW, ALGORITHM, BURST, MAX_WAIT, MODE],
};

pub(crate) static ENDPOINT: Mapping = Mapping {
    name: "an endpoint's limit",
    path: "rate_limits.endpoints.PATH",
    doc: "A limit for each client at an endpoint. In the path `*` and `{name}` stand for one segment, a final `**` for any rest.",
    keys: &[REQUESTS, WINDOW, ALGORITHM, BURST, MAX_WAIT, MODE, PENALISES],
};

pub(crate) static RULE: Mapping = Mapping {
    name: "a rule",
    path: "rate_limits.rules[]",
    doc: "A limit of one's own: where it applies, whom it counts, what a request costs. Without `per` and `per_each` it counts each client.",
    keys: &[
        PolicyKey::new("name", Text("name"), "Its name. Counters belong to the name.", "login-bruteforce")
            .required(),
        PolicyKey::new("match", Object(&MATCH), "Where it applies.", "{ method: [POST], path: /login }")
            .default("every request"),
        PolicyKey::new(
            "per",
            Either(&[OneOrMany(&IDENTITY), Choice(&[EVERYBODY])]),
            "One counter for each combination of these; `everybody` is one counter for all. Where a request lacks one of them, the client that `identify_by` finds stands in its place.",
            "[ip, user]",
        )
            .default("each client"),
        PolicyKey::new(
            "per_each",
            OneOrMany(&IDENTITY),
            "A counter for each of these, apart; all must fit. Where a request lacks one of them, the client that `identify_by` finds stands in its place; no counter is charged twice.",
            "[ip, user, fingerprint]",
        ),
        REQUESTS.required_unless("required, unless `concurrent` is given"),
        WINDOW.required_unless("required, unless `concurrent` is given"),
        ALGORITHM,
        BURST,
        MAX_WAIT,
        PolicyKey::new(
            "concurrent",
            Count(1),
            "How many requests at once, instead of `requests` in a `window`: counted from the decision to the end of the response, or of the tunnel, on this node.",
            "10",
        ),
        MODE,
        PENALISES,
        PolicyKey::new("cost", Either(&[Count(1), Object(&COST)]), "How much a request takes of the limit.", "5")
            .default("1"),
        PolicyKey::new(
            "charge",
            Object(&CHARGE),
            "Whether the response settles what was charged.",
            "{ after: { status: [401, 403] } }",
        )
        .default("up front"),
    ],
};

pub(crate) static MATCH: Mapping = Mapping {
    name: "`match`",
    path: "rate_limits.rules[].match",
    doc: "Where a rule applies: all that stands here must hold.",
    keys: &[
        PolicyKey::new("method", OneOrMany(&METHOD), "Any of these methods; GET is HEAD too.", "[POST, PUT]")
            .default("any"),
        PolicyKey::new("path", OneOrMany(&PATH), "Any of these paths.", "/login").default("any"),
        PolicyKey::new(
            "header",
            Named("header", &OneOrMany(&ANY_TEXT)),
            "Each of these headers has one of its values; `\"*\"` is any.",
            "{ X-Plan: [trial, free] }",
        )
        .default("any"),
        PolicyKey::new(
            "when",
            Text("CEL expression"),
            "An expression over the request that must be true. If it fails for a request, the rule applies.",
            "request.path.startsWith(\"/api\")",
        )
        .default("always"),
    ],
};

pub(crate) static COST: Mapping = Mapping {
    name: "`cost`",
    path: "rate_limits.rules[].cost",
    doc: "What a request costs, where that is not one number for all: one of these.",
    keys: &[
        PolicyKey::new(
            "header",
            HEADER,
            "The request header that carries it as a whole number. A request without it, or with 0, costs 1; one whose header is given twice or is no whole number costs the whole limit; more than the limit never passes.",
            "X-Cost",
        ),
        PolicyKey::new(
            "body",
            Size,
            "A unit for each so many bytes of the request's body that have begun, at least one. Where `Content-Length` does not say how long it is, one unit is taken up front and the rest as it comes, even into debt.",
            "1KiB",
        ),
    ],
};

pub(crate) static CHARGE: Mapping = Mapping {
    name: "`charge`",
    path: "rate_limits.rules[].charge",
    doc: "When a request is charged. What it costs is reserved up front in any case, and stands if there is no response.",
    keys: &[PolicyKey::new(
        "after",
        Object(&AFTER),
        "What of the response settles it.",
        "{ status: [401, 403] }",
    )
    .required()],
};

pub(crate) static AFTER: Mapping = Mapping {
    name: "`after`",
    path: "rate_limits.rules[].charge.after",
    doc: "What of the response settles what was reserved: one of these.",
    keys: &[
        PolicyKey::new(
            "status",
            OneOrMany(&Status),
            "What was reserved stays charged if the status is one of these, and is given back if not. `5xx` is the whole class.",
            "[401, 403]",
        ),
        PolicyKey::new(
            "header",
            HEADER,
            "The response header that says as a whole number what the request cost: the rest is given back, or more is charged, even into debt. Without it, and if it is no whole number or given twice, what was reserved stays charged.",
            "X-Tokens-Used",
        ),
    ],
};
