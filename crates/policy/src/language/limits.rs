//! The part of the table for `rate_limits`.

use super::Shape::{
    Choice, Count, Duration, Either, List, Named, Object, OneOrMany, Percent, Size, Status, Text,
};
use super::actions::ON_EXCEED_KEY;
use super::names::{ALGORITHMS, ANY_TEXT, EVERYBODY, HEADER, IDENTITY, METHOD, MODES, PATH, REPORTS};
use super::rejections::{RULE_ERROR_BODY_KEY, STATUS_KEY};
use super::store::{RULE_COORDINATION, RULE_FAILURE_MODE};
use super::{Mapping, PolicyKey, Shape};

pub(crate) static RATE_LIMITS: Mapping = Mapping {
    name: "`rate_limits`",
    path: "rate_limits",
    doc: "The limits. A request is checked against `global`, `tenant`, its tier or `default`, the matching rules and the most specific endpoint, in this order and in one decision. If any limit rejects it, no limit is charged.",
    keys: &[
        PolicyKey::new(
            "global",
            Object(&GLOBAL),
            "The limit of all clients together.",
            "{ requests: 10000, window: 1s }",
        ),
        PolicyKey::new(
            "tenant",
            Object(&LIMIT),
            "The limit of each tenant, and of each client without a tenant.",
            "{ requests: 1000, window: 1m }",
        ),
        PolicyKey::new(
            "default",
            Object(&LIMIT),
            "The limit of each client without a tier.",
            "{ requests: 100, window: 60 }",
        ),
        PolicyKey::new(
            "tiers",
            Named("tier", &Either(&[Object(&LIMIT), Choice(&["unlimited"])])),
            "The limit of each client with a tier, instead of `default`.",
            "{ free: { requests: 100, window: 1h }, staff: unlimited }",
        ),
        PolicyKey::new(
            "endpoints",
            Named("endpoint", &Object(&ENDPOINT)),
            "The limit of each client at an endpoint, in addition to the others. The name is a path pattern, optionally after a method; GET includes HEAD.",
            "{ POST /orders: { requests: 10, window: 1m } }",
        ),
        PolicyKey::new(
            "rules",
            List(&Object(&RULE)),
            "Custom limits.",
            "[{ name: login, match: { path: /login }, per: [ip], requests: 5, window: 15m }]",
        ),
    ],
};

const REQUESTS: PolicyKey =
    PolicyKey::new("requests", Count(1), "The number of requests per window.", "100").required();
const WINDOW: PolicyKey = PolicyKey::new("window", Duration, "The length of the window.", "60s").required();
const ALGORITHM: PolicyKey =
    PolicyKey::new("algorithm", Choice(ALGORITHMS), "The rate-limiting algorithm.", "sliding_window_counter")
        .default("sliding_window_counter");
const BURST: PolicyKey = PolicyKey::new(
    "burst",
    Count(1),
    "The largest burst (`token_bucket`), or the capacity of the bucket including the departing request (`leaky_bucket`).",
    "20",
)
.default("`requests`");
const MAX_WAIT: PolicyKey = PolicyKey::new(
    "max_wait",
    Duration,
    "The longest time that a request may be delayed (`leaky_bucket`). A request that would wait longer is rejected and not charged.",
    "10s",
)
.default("30s");

const REPORT: PolicyKey = PolicyKey::new(
    "report",
    Choice(REPORTS),
    "Whether clients are told about this limit. With `off` it is in no rate-limit header and no error body, and a response to a request that it rejects has only `Retry-After`. Logs, metrics, the admin API and callers of the decision service by rule see it.",
    "off",
)
.default("on");

const MODE_SHAPES: &[Shape] = &[Choice(MODES), Object(&CANARY)];
const MODE: PolicyKey = PolicyKey::new(
    "mode",
    Either(MODE_SHAPES),
    "`enforce` rejects requests above the limit. `shadow` counts and logs what it would reject, and clients notice nothing. A canary enforces the limit for some clients only.",
    "shadow",
)
.default("enforce");

pub(crate) static CANARY: Mapping = Mapping {
    name: "`mode`",
    path: "rate_limits.default.mode",
    doc: "Enforces a limit for some clients; for the others it is in shadow mode. Every limit and rule can have it.",
    keys: &[PolicyKey::new(
        "canary",
        Percent,
        "The percentage of clients, as identified by `identify_by`. The selection is stable: the same clients after restarts and on every node. A larger percentage includes all clients of a smaller one.",
        "10%",
    )
    .required()],
};

const PENALTY_KEY: PolicyKey = PolicyKey::new(
    "penalty",
    Object(&PENALTY),
    "A lockout for clients that exceed the limit repeatedly.",
    "{ after: 3, for: 1m, doubling_to: 1d }",
);

pub(crate) static PENALTY: Mapping = Mapping {
    name: "`penalty`",
    path: "rate_limits.default.penalty",
    doc: "A lockout: the client gets 429 until it ends, even if the limit would admit the request. Every limit except the global one can have it; with `per_each` each counter has its own. It locks out addresses, API keys and verified users and tenants; counters of other identities only limit. A violation expires after a `window` without another one; a doubling expires after the duration of its lockout (at least a `window`).",
    keys: &[
        PolicyKey::new("after", Count(1), "The number of violations that causes a lockout.", "3").required(),
        PolicyKey::new("for", Duration, "The duration of the first lockout.", "1m").required(),
        PolicyKey::new(
            "doubling_to",
            Duration,
            "The maximum duration: each further lockout lasts twice as long as the one before, up to this.",
            "1d",
        )
        .default("`1d`, or `for` if that is longer"),
    ],
};

pub(crate) static LIMIT: Mapping = Mapping {
    name: "a limit",
    path: "rate_limits.default",
    doc: "A limit. `rate_limits.tenant`, each tier and each endpoint have the same keys.",
    keys: &[
        REQUESTS,
        WINDOW,
        ALGORITHM,
        BURST,
        MAX_WAIT,
        MODE,
        PENALTY_KEY,
        REPORT,
        ON_EXCEED_KEY,
        STATUS_KEY,
        RULE_ERROR_BODY_KEY,
        RULE_COORDINATION,
        RULE_FAILURE_MODE,
    ],
};

pub(crate) static GLOBAL: Mapping = Mapping {
    name: "the global limit",
    path: "rate_limits.global",
    doc: "One limit for all clients together.",
    keys: &[
        REQUESTS,
        WINDOW,
        ALGORITHM,
        BURST,
        MAX_WAIT,
        MODE,
        REPORT,
        ON_EXCEED_KEY,
        STATUS_KEY,
        RULE_ERROR_BODY_KEY,
        RULE_COORDINATION,
        RULE_FAILURE_MODE,
    ],
};

pub(crate) static ENDPOINT: Mapping = Mapping {
    name: "an endpoint's limit",
    path: "rate_limits.endpoints.PATH",
    doc: "A limit for each client at an endpoint. In the path, `*` and `{name}` match one segment and a final `**` matches any rest.",
    keys: &[
        REQUESTS,
        WINDOW,
        ALGORITHM,
        BURST,
        MAX_WAIT,
        MODE,
        PENALTY_KEY,
        REPORT,
        ON_EXCEED_KEY,
        STATUS_KEY,
        RULE_ERROR_BODY_KEY,
        RULE_COORDINATION,
        RULE_FAILURE_MODE,
    ],
};

pub(crate) static RULE: Mapping = Mapping {
    name: "a rule",
    path: "rate_limits.rules[]",
    doc: "A custom limit: where it applies, what it counts by and what a request costs. Without `per` and `per_each` it counts each client.",
    keys: &[
        PolicyKey::new("name", Text("name"), "The name. Counters belong to the name: a renamed rule starts with empty counters.", "login-bruteforce")
            .required(),
        PolicyKey::new("match", Object(&MATCH), "Which requests it applies to.", "{ method: [POST], path: /login }")
            .default("every request"),
        PolicyKey::new(
            "per",
            Either(&[OneOrMany(&IDENTITY), Choice(&[EVERYBODY])]),
            "One counter for each combination of these identities; `everybody` means one counter for all clients. If a request lacks an identity, the client from `identify_by` is counted instead. A combination with `cookie` or `fingerprint` needs an enforced rule with `per: ip` for the same requests.",
            "[ip, user]",
        )
            .default("each client"),
        PolicyKey::new(
            "per_each",
            OneOrMany(&IDENTITY),
            "A separate counter for each of these identities; a request is admitted only if all of them admit it. If a request lacks an identity, the client from `identify_by` is counted instead; no counter is charged twice.",
            "[ip, user, fingerprint]",
        ),
        PolicyKey::new(
            "user",
            Object(&RULE_USER),
            "Where this rule finds the `user` in `per` or `per_each`, in place of `clients.user`.",
            "{ body: username }",
        ),
        REQUESTS.required_unless("required, unless `concurrent` is given"),
        WINDOW.required_unless("required, unless `concurrent` is given"),
        ALGORITHM,
        BURST,
        MAX_WAIT,
        PolicyKey::new(
            "concurrent",
            Count(1),
            "The maximum number of concurrent requests, instead of `requests` and `window`. A request counts from the decision to the end of the response or of the upgraded connection. Each node counts separately, unless `coordination` is `central` (all nodes together) or `static` (`concurrent` divided by `store.nodes`, at least 1).",
            "10",
        ),
        MODE,
        PENALTY_KEY,
        REPORT,
        ON_EXCEED_KEY,
        STATUS_KEY,
        RULE_ERROR_BODY_KEY,
        PolicyKey::new("cost", Either(&[Count(1), Object(&COST)]), "How many units of the limit a request costs.", "5")
            .default("1"),
        PolicyKey::new(
            "charge",
            Object(&CHARGE),
            "Whether the response determines the charge.",
            "{ after: { status: [401, 403] } }",
        )
        .default("before forwarding"),
        RULE_COORDINATION.default("that of `store`; with `concurrent`: each node counts separately"),
        RULE_FAILURE_MODE,
    ],
};

pub(crate) static RULE_USER: Mapping = Mapping {
    name: "`user`",
    path: "rate_limits.rules[].user",
    doc: "The user that the body of a request names, such as the name in a login form. It is not verified: it has no effect on tiers and bans, \
          is never locked out, and the rule counts each address besides.",
    keys: &[PolicyKey::new(
        "body",
        Text("name"),
        "The field of a form (`application/x-www-form-urlencoded`) or of a JSON object that contains the name. At most 16 KiB of the body are \
         read, and for at most 5 s. A request without the field is counted as one without a user. All requests whose field cannot be read are \
         counted together: it is repeated or not a text, or the body is compressed, too large, late, or in another format. Needs `match.path`: \
         no other body is read.",
        "username",
    )
    .required()],
};

pub(crate) static MATCH: Mapping = Mapping {
    name: "`match`",
    path: "rate_limits.rules[].match",
    doc: "Which requests a rule applies to. All conditions must match.",
    keys: &[
        PolicyKey::new(
            "method",
            OneOrMany(&METHOD),
            "One of these methods; GET includes HEAD.",
            "[POST, PUT]",
        )
        .default("any"),
        PolicyKey::new("path", OneOrMany(&PATH), "One of these paths.", "/login").default("any"),
        PolicyKey::new(
            "header",
            Named("header", &OneOrMany(&ANY_TEXT)),
            "Each of these headers has one of the listed values; `\"*\"` matches any value.",
            "{ X-Plan: [trial, free] }",
        )
        .default("any"),
        PolicyKey::new(
            "when",
            Text("CEL expression"),
            "An expression that must be true. If its evaluation fails for a request, the rule applies.",
            "request.path.startsWith(\"/api\")",
        )
        .default("always"),
    ],
};

pub(crate) static COST: Mapping = Mapping {
    name: "`cost`",
    path: "rate_limits.rules[].cost",
    doc: "The cost of a request, if it is not the same for all. Set one of these keys.",
    keys: &[
        PolicyKey::new(
            "header",
            HEADER,
            "The request header that contains the cost as a whole number. Without the header, or with 0, a request costs 1. If the header appears twice or is not a whole number, the request costs the whole limit. A cost above the limit is always rejected.",
            "X-Cost",
        ),
        PolicyKey::new(
            "body",
            Size,
            "The number of bytes of the request body that cost one unit, rounded up; at least one unit. Without `Content-Length`, one unit is charged before forwarding and the rest as the body arrives, even above the limit.",
            "1KiB",
        ),
    ],
};

pub(crate) static CHARGE: Mapping = Mapping {
    name: "`charge`",
    path: "rate_limits.rules[].charge",
    doc: "When a request is charged. The cost is always reserved before forwarding, and stays charged if there is no response.",
    keys: &[PolicyKey::new(
        "after",
        Object(&AFTER),
        "Which part of the response determines the charge.",
        "{ status: [401, 403] }",
    )
    .required()],
};

pub(crate) static AFTER: Mapping = Mapping {
    name: "`after`",
    path: "rate_limits.rules[].charge.after",
    doc: "Which part of the response determines the charge. Set one of these keys.",
    keys: &[
        PolicyKey::new(
            "status",
            OneOrMany(&Status),
            "The reserved cost stays charged if the status code is one of these; otherwise it is refunded. `5xx` means the whole class.",
            "[401, 403]",
        ),
        PolicyKey::new(
            "header",
            HEADER,
            "The response header that contains the actual cost as a whole number. The difference to the reserved cost is refunded or charged, even above the limit. If the header is absent, appears twice or is not a whole number, the reserved cost stays charged.",
            "X-Tokens-Used",
        ),
    ],
};
