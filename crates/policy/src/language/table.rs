//! The table itself. A key that stands here is accepted, offered by editors and explained in docs/config.md.

use super::Shape::{Choice, Count, Duration, Either, List, Named, Object, OneOrMany, Percent, Size, Text};
use super::names::{
    ALGORITHMS, ANY_TEXT, BALANCES, ERROR_BODIES, EVERYBODY, FILE, HEADER, HEADER_STYLES, IDENTITY, METHOD,
    MODES, NETWORK, OFF, PATH,
};
use super::{Key, Mapping, Shape};

pub(crate) static POLICY: Mapping = Mapping {
    name: "the policy",
    path: "",
    doc: "The whole file.",
    keys: &[
        Key::new(
            "listen",
            OneOrMany(&Either(&[Text("address"), Object(&LISTEN)])),
            "Where to answer requests: host and port, or these with a certificate.",
            "0.0.0.0:8080",
        )
        .default("127.0.0.1:8080"),
        Key::new(
            "admin",
            Either(&[Choice(OFF), Object(&ADMIN)]),
            "Where operators ask and change what is in force while it runs; `off` for nowhere.",
            "{ listen: 127.0.0.1:9900 }",
        )
        .default("127.0.0.1:9900"),
        Key::new(
            "upstreams",
            Named("upstream", &Object(&UPSTREAM)),
            "The services behind, by name.",
            "{ api: { servers: [http://10.0.0.1:3000] } }",
        ),
        Key::new(
            "routes",
            List(&Object(&ROUTE)),
            "Which requests go to which upstream; the first that matches.",
            "[{ path: /**, upstream: api }]",
        ),
        Key::new("clients", Object(&CLIENTS), "Who a request comes from.", "{ identify_by: [api_key, ip] }"),
        Key::new(
            "bans",
            Object(&BANS),
            "Who is refused with 403, whatever the limits say.",
            "{ networks: [203.0.113.0/24] }",
        ),
        Key::new(
            "rate_limits",
            Object(&RATE_LIMITS),
            "How much may pass.",
            "{ default: { requests: 100, window: 60 } }",
        ),
        Key::new(
            "headers",
            OneOrMany(&Choice(HEADER_STYLES)),
            "Which headers tell clients about their limits.",
            "[x_ratelimit, ratelimit]",
        )
        .default("[x_ratelimit, ratelimit]"),
        Key::new("error_body", Choice(ERROR_BODIES), "The form of a refusal's body.", "flat").default("flat"),
        Key::new("log", Object(&LOG), "What is logged, as lines of JSON.", "{ access: 1% }"),
        Key::new(
            "traces",
            Object(&TRACES),
            "Who is told of requests as traces.",
            "{ endpoint: http://127.0.0.1:4317 }",
        ),
        Key::new("store", Object(&STORE), "Where counters are kept.", "{ max_memory: 64MiB }"),
    ],
};

pub(crate) static LISTEN: Mapping = Mapping {
    name: "a place to listen",
    path: "listen[]",
    doc: "Where to answer requests, and with which certificate. Clients choose HTTP/2 or HTTP/1.1.",
    keys: &[
        Key::new("address", Text("address"), "Host and port.", "0.0.0.0:8443").required(),
        Key::new(
            "tls",
            Object(&TLS),
            "The certificate; without it nothing is encrypted.",
            "{ cert: cert.pem, key: key.pem }",
        ),
    ],
};

pub(crate) static TLS: Mapping = Mapping {
    name: "`tls`",
    path: "listen[].tls",
    doc: "A certificate and its key, both PEM.",
    keys: &[
        Key::new("cert", FILE, "The certificate, followed by those that vouch for it.", "cert.pem")
            .required(),
        Key::new("key", FILE, "Its private key.", "key.pem").required(),
    ],
};

pub(crate) static ADMIN: Mapping = Mapping {
    name: "`admin`",
    path: "admin",
    doc: "The admin API: metrics, bans, overrides, and what the `tidegate` commands ask. docs/operations.md tells more.",
    keys: &[
        Key::new(
            "listen",
            Text("address"),
            "Host and port. One that others can reach wants a `token_file`; nothing there is encrypted.",
            "127.0.0.1:9900",
        )
        .default("127.0.0.1:9900"),
        Key::new(
            "token_file",
            FILE,
            "The file with the token that everything but health wants. Made at the first start if there is none, for a loopback address.",
            "admin.token",
        )
        .default("`admin.token` in `store.directory`"),
    ],
};

pub(crate) static UPSTREAM: Mapping = Mapping {
    name: "an upstream",
    path: "upstreams.NAME",
    doc: "A service behind the gateway.",
    keys: &[
        Key::new(
            "servers",
            OneOrMany(&Text("URL")),
            "Its servers: http://, https:// or h2c:// (HTTP/2 without TLS) and host, with a port where it is not the usual one.",
            "[http://10.0.0.1:3000, http://10.0.0.2:3000]",
        )
        .required(),
        Key::new(
            "balance",
            Choice(BALANCES),
            "Which server takes a request: one after another, the less busy of two, or always the same for one client.",
            "least_loaded",
        )
        .default("round_robin"),
        Key::new("health", Object(&HEALTH), "How servers are asked whether they are well.", "{ path: /healthz }"),
    ],
};

pub(crate) static HEALTH: Mapping = Mapping {
    name: "`health`",
    path: "upstreams.NAME.health",
    doc: "A server that does not answer this with 2xx or 3xx gets no requests until it does, unless no server is well.",
    keys: &[
        Key::new("path", Text("path"), "What is asked for.", "/healthz").required(),
        Key::new("every", Duration, "How often, and how long an answer may take.", "5s").default("5s"),
    ],
};

pub(crate) static ROUTE: Mapping = Mapping {
    name: "a route",
    path: "routes[]",
    doc: "Sends what matches to an upstream. The first route that matches is taken.",
    keys: &[
        Key::new(
            "host",
            Text("host"),
            "The host asked for: a name, `*.` and a name, or `*` for any.",
            "api.example.com",
        )
        .default("\"*\""),
        Key::new("path", PATH, "The path asked for.", "/api/**").default("/**"),
        Key::new("upstream", Text("name"), "The name of an upstream.", "api").required(),
    ],
};

pub(crate) static CLIENTS: Mapping = Mapping {
    name: "`clients`",
    path: "clients",
    doc: "Who a request comes from. Limits count each client apart.",
    keys: &[
        Key::new(
            "identify_by",
            OneOrMany(&IDENTITY),
            "What names a client: the first of these that a request has.",
            "[api_key, user, ip]",
        )
        .default("[api_key, ip]"),
        Key::new("api_key", Object(&API_KEY), "Where the API key stands.", "{ header: X-API-Key }"),
        Key::new("user", Object(&USER), "Where the user stands.", "{ header: X-User-Id }"),
        Key::new("tenant", Object(&TENANT), "Where the tenant stands.", "{ header: X-Tenant }"),
        Key::new(
            "ip",
            Object(&IP),
            "How the client's address is found and counted.",
            "{ trusted_proxies: [10.0.0.0/8] }",
        ),
        Key::new(
            "fingerprint",
            Object(&FINGERPRINT),
            "What tells clients apart that have no name.",
            "{ headers: [user-agent, accept-language] }",
        ),
        Key::new("cookie", Object(&COOKIE), "A cookie that names the client.", "{ name: session }"),
        Key::new(
            "tiers",
            Object(&TIERS),
            "Which client has which tier.",
            "{ file: keys.csv, default: free }",
        ),
        Key::new("exempt", Object(&EXEMPT), "Who is never limited.", "{ networks: [10.1.0.0/16] }"),
    ],
};

pub(crate) static API_KEY: Mapping = Mapping {
    name: "`api_key`",
    path: "clients.api_key",
    doc: "Where the API key stands.",
    keys: &[Key::new("header", HEADER, "The header that carries it.", "X-API-Key").default("X-API-Key")],
};

pub(crate) static USER: Mapping = Mapping {
    name: "`user`",
    path: "clients.user",
    doc: "Where the user stands: a header that something in front sets and clients cannot, or a verified token.",
    keys: &[
        Key::new("header", HEADER, "The header that names the user.", "X-User-Id"),
        Key::new("jwt", Object(&JWT), "A token that is verified.", "{ secret_file: jwt.secret }"),
    ],
};

pub(crate) static TENANT: Mapping = Mapping {
    name: "`tenant`",
    path: "clients.tenant",
    doc: "Where the tenant stands: a header that something in front sets and clients cannot, or a verified token.",
    keys: &[
        Key::new("header", HEADER, "The header that names the tenant.", "X-Tenant"),
        Key::new("jwt", Object(&JWT), "A token that is verified.", "{ claim: tenant, jwks_file: jwks.json }"),
    ],
};

pub(crate) static JWT: Mapping = Mapping {
    name: "`jwt`",
    path: "clients.user.jwt",
    doc: "A JSON Web Token that is verified before it counts. `clients.tenant.jwt` has the same keys.",
    keys: &[
        Key::new(
            "header",
            HEADER,
            "The header that carries the token, with or without `Bearer`.",
            "Authorization",
        )
        .default("Authorization"),
        Key::new("claim", Text("name"), "The claim that is the name.", "sub").default("sub"),
        Key::new("secret_file", FILE, "A file with the shared secret (HS256).", "jwt.secret"),
        Key::new(
            "jwks_file",
            FILE,
            "A file with the public keys as a JSON Web Key Set (RS256, ES256).",
            "jwks.json",
        ),
    ],
};

pub(crate) static IP: Mapping = Mapping {
    name: "`ip`",
    path: "clients.ip",
    doc: "How the client's address is found: the connection's own, or what trusted proxies say of it.",
    keys: &[
        Key::new(
            "trusted_proxies",
            OneOrMany(&NETWORK),
            "Proxies whose `Forwarded` and `X-Forwarded-For` are believed, read from right to left.",
            "[10.0.0.0/8]",
        ),
        Key::new("ipv6_prefix", Count(1), "How many bits of an IPv6 address are one client.", "64")
            .default("64"),
    ],
};

pub(crate) static FINGERPRINT: Mapping = Mapping {
    name: "`fingerprint`",
    path: "clients.fingerprint",
    doc: "A hash over some headers.",
    keys: &[Key::new(
        "headers",
        OneOrMany(&HEADER),
        "The headers it is made of.",
        "[user-agent, accept-language, accept-encoding]",
    )
    .default("[user-agent, accept-language, accept-encoding]")],
};

pub(crate) static COOKIE: Mapping = Mapping {
    name: "`cookie`",
    path: "clients.cookie",
    doc: "A cookie that names the client.",
    keys: &[Key::new("name", Text("name"), "The cookie's name.", "session").required()],
};

pub(crate) static TIERS: Mapping = Mapping {
    name: "`tiers`",
    path: "clients.tiers",
    doc: "Which client has which tier. The limits of the tiers stand in `rate_limits.tiers`.",
    keys: &[
        Key::new(
            "file",
            FILE,
            "A CSV file: API key, tier and tenant; or YAML, a mapping from API keys to tiers or to `{ tier, tenant }`.",
            "keys.csv",
        ),
        Key::new("default", Text("name"), "The tier of everybody whom the file does not name.", "free"),
    ],
};

pub(crate) static EXEMPT: Mapping = Mapping {
    name: "`exempt`",
    path: "clients.exempt",
    doc: "Who is never limited, only counted.",
    keys: &[
        Key::new("networks", OneOrMany(&NETWORK), "Addresses.", "[10.1.0.0/16]"),
        Key::new(
            "api_keys_file",
            FILE,
            "A file of API keys, one on a line; `#` begins a comment.",
            "friends.txt",
        ),
    ],
};

pub(crate) static BANS: Mapping = Mapping {
    name: "`bans`",
    path: "bans",
    doc: "Who is refused with 403, whatever the limits say.",
    keys: &[
        Key::new("networks", OneOrMany(&NETWORK), "Addresses.", "[203.0.113.0/24]"),
        Key::new("file", FILE, "A file of networks, one on a line; `#` begins a comment.", "bans.txt"),
    ],
};

pub(crate) static RATE_LIMITS: Mapping = Mapping {
    name: "`rate_limits`",
    path: "rate_limits",
    doc: "How much may pass. A request is held against `global`, `tenant`, its tier or `default`, the rules that match and the most specific endpoint, in that order and in one decision: all pass, or nothing is charged.",
    keys: &[
        Key::new("global", Object(&GLOBAL), "Everybody together.", "{ requests: 10000, window: 1s }"),
        Key::new(
            "tenant",
            Object(&LIMIT),
            "Each tenant; each client without one.",
            "{ requests: 1000, window: 1m }",
        ),
        Key::new("default", Object(&LIMIT), "Each client without a tier.", "{ requests: 100, window: 60 }"),
        Key::new(
            "tiers",
            Named("tier", &Either(&[Object(&LIMIT), Choice(&["unlimited"])])),
            "Each client of a tier, instead of `default`.",
            "{ free: { requests: 100, window: 1h }, staff: unlimited }",
        ),
        Key::new(
            "endpoints",
            Named("endpoint", &Object(&ENDPOINT)),
            "Each client at an endpoint, in addition. The name is a path pattern, with or without a method before it.",
            "{ POST /orders: { requests: 10, window: 1m } }",
        ),
        Key::new(
            "rules",
            List(&Object(&RULE)),
            "Anything else.",
            "[{ name: login, match: { path: /login }, per: [ip], requests: 5, window: 15m }]",
        ),
    ],
};

const REQUESTS: Key = Key::new("requests", Count(1), "How many per window.", "100").required();
const WINDOW: Key =
    Key::new("window", Duration, "The window: seconds, or a number with ms, s, m, h or d.", "60s").required();
const ALGORITHM: Key =
    Key::new("algorithm", Choice(ALGORITHMS), "How it is counted.", "sliding_window_counter")
        .default("sliding_window_counter");
const BURST: Key = Key::new(
    "burst",
    Count(0),
    "How many at once (`token_bucket`), or how many wait (`leaky_bucket`).",
    "20",
)
.default("`requests` for `token_bucket`");

const MODE_SHAPES: &[Shape] = &[Choice(MODES), Object(&CANARY)];
const MODE: Key = Key::new(
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
    keys: &[Key::new(
        "canary",
        Percent,
        "The share of clients, as `identify_by` tells them apart: the same ones every time, after restarts and on every node. A larger share holds everybody of a smaller one.",
        "10%",
    )
    .required()],
};

const PENALISES: Key = Key::new(
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
        Key::new("after", Count(1), "How many refusals lock out.", "3").required(),
        Key::new("for", Duration, "How long the first lock-out lasts.", "1m").required(),
        Key::new(
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
    keys: &[REQUESTS, WINDOW, ALGORITHM, BURST, MODE, PENALISES],
};

pub(crate) static GLOBAL: Mapping = Mapping {
    name: "the global limit",
    path: "rate_limits.global",
    doc: "A limit for everybody together.",
    keys: &[REQUESTS, WINDOW, ALGORITHM, BURST, MODE],
};

pub(crate) static ENDPOINT: Mapping = Mapping {
    name: "an endpoint's limit",
    path: "rate_limits.endpoints.PATH",
    doc: "A limit for each client at an endpoint. In the path `*` and `{name}` stand for one segment, a final `**` for any rest.",
    keys: &[REQUESTS, WINDOW, ALGORITHM, BURST, MODE, PENALISES],
};

pub(crate) static RULE: Mapping = Mapping {
    name: "a rule",
    path: "rate_limits.rules[]",
    doc: "A limit of one's own: where it applies, whom it counts, what a request costs. Without `per` and `per_each` it counts each client.",
    keys: &[
        Key::new("name", Text("name"), "Its name. Counters belong to the name.", "login-bruteforce")
            .required(),
        Key::new("match", Object(&MATCH), "Where it applies.", "{ method: [POST], path: /login }")
            .default("every request"),
        Key::new(
            "per",
            Either(&[OneOrMany(&IDENTITY), Choice(&[EVERYBODY])]),
            "One counter for each combination of these; `everybody` is one counter for all. Where a request lacks one of them, the client that `identify_by` finds stands in its place.",
            "[ip, user]",
        )
            .default("each client"),
        Key::new(
            "per_each",
            OneOrMany(&IDENTITY),
            "A counter for each of these, apart; all must fit. Where a request lacks one of them, the client that `identify_by` finds stands in its place; no counter is charged twice.",
            "[ip, user, fingerprint]",
        ),
        REQUESTS.required_unless("required, unless `concurrent` is given"),
        WINDOW.required_unless("required, unless `concurrent` is given"),
        ALGORITHM,
        BURST,
        Key::new(
            "concurrent",
            Count(1),
            "How many requests at once, instead of `requests` in a `window`: counted from the decision to the end of the response, or of the tunnel, on this node.",
            "10",
        ),
        MODE,
        PENALISES,
        Key::new("cost", Either(&[Count(1), Object(&COST)]), "How much a request takes of the limit.", "5")
            .default("1"),
    ],
};

pub(crate) static MATCH: Mapping = Mapping {
    name: "`match`",
    path: "rate_limits.rules[].match",
    doc: "Where a rule applies: all that stands here must hold.",
    keys: &[
        Key::new("method", OneOrMany(&METHOD), "Any of these methods.", "[POST, PUT]").default("any"),
        Key::new("path", OneOrMany(&PATH), "Any of these paths.", "/login").default("any"),
        Key::new(
            "header",
            Named("header", &OneOrMany(&ANY_TEXT)),
            "Each of these headers has one of its values; `\"*\"` is any.",
            "{ X-Plan: [trial, free] }",
        )
        .default("any"),
        Key::new(
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
    doc: "What a request costs, where that is not one number for all.",
    keys: &[Key::new(
        "header",
        HEADER,
        "The request header that carries it as a whole number. A request without it, or with 0, costs 1; one whose header is given twice or is no whole number costs the whole limit; more than the limit never passes.",
        "X-Cost",
    )
    .required()],
};

pub(crate) static STORE: Mapping = Mapping {
    name: "`store`",
    path: "store",
    doc: "Where counters are kept, and what must outlive the process.",
    keys: &[
        Key::new(
            "url",
            Text("store URL"),
            "`memory` for this process alone; `redis://`, `rediss://` or `valkey://` to share them.",
            "redis://127.0.0.1:6379",
        )
        .default("memory"),
        Key::new("max_memory", Size, "How much memory the counters of this process may take.", "64MiB")
            .default("64MiB"),
        Key::new(
            "directory",
            Text("folder"),
            "Where bans and overrides survive restarts; looked for from the folder of the policy, and made if there is none.",
            "/var/lib/tidegate",
        )
        .default("the policy's name with `.state` instead of its ending, beside it"),
    ],
};

pub(crate) static LOG: Mapping = Mapping {
    name: "`log`",
    path: "log",
    doc: "Every event (start, reload, a server that fails, a ban, stop) is a line of JSON. Requests are too, as many as one wants.",
    keys: &[
        Key::new(
            "access",
            SAMPLE,
            "How many requests have a line: who asked for what, what was decided, by whom and how fast it was answered.",
            "1%",
        )
        .default("off"),
        Key::new("refused", SAMPLE, "How many of the requests that a limit refuses have one.", "all")
            .default("as `access`"),
        Key::new(
            "to",
            Either(&[Choice(&["stderr", "stdout"]), Text("file")]),
            "Where lines go. A file is written at its end, and opened anew at SIGHUP.",
            "/var/log/tidegate.log",
        )
        .default("stderr"),
    ],
};

const SAMPLE: Shape = Either(&[Choice(&["off", "all"]), Percent]);

pub(crate) static TRACES: Mapping = Mapping {
    name: "`traces`",
    path: "traces",
    doc: "OpenTelemetry: a span for each request, for its decision and for each try of an upstream.",
    keys: &[
        Key::new(
            "endpoint",
            Text("URL"),
            "The collector that takes spans, over OTLP with gRPC.",
            "http://127.0.0.1:4317",
        )
        .required(),
        Key::new(
            "sample",
            SAMPLE,
            "How many requests are traced. Where the sender of a request has decided that, its word counts.",
            "10%",
        )
        .default("1%"),
    ],
};
