//! The table itself. A key that stands here is accepted, offered by editors and explained in docs/config.md.

use super::Shape::{Choice, Count, Duration, Either, List, Named, Object, OneOrMany, Percent, Size, Text};
use super::limits::RATE_LIMITS;
use super::names::{
    BALANCES, ENCODED_SLASHES, ERROR_BODIES, FILE, HEADER, HEADER_STYLES, IDENTITY, KEY_VERIFICATIONS,
    NETWORK, OFF, PATH, PATH_CASES, UNDERSCORE_HEADERS,
};
use super::{Mapping, PolicyKey, Shape};

pub(crate) static POLICY: Mapping = Mapping {
    name: "the policy",
    path: "",
    doc: "The whole file.",
    keys: &[
        PolicyKey::new(
            "listen",
            OneOrMany(&Either(&[Text("address"), Object(&LISTEN)])),
            "Where to answer requests: host and port, or these with a certificate.",
            "0.0.0.0:8080",
        )
        .default("127.0.0.1:8080"),
        PolicyKey::new(
            "admin",
            Either(&[Choice(OFF), Object(&ADMIN)]),
            "Where operators ask and change what is in force while it runs; `off` for nowhere.",
            "{ listen: 127.0.0.1:9900 }",
        )
        .default("127.0.0.1:9900"),
        PolicyKey::new(
            "upstreams",
            Named("upstream", &Object(&UPSTREAM)),
            "The services behind, by name.",
            "{ api: { servers: [http://10.0.0.1:3000] } }",
        ),
        PolicyKey::new(
            "routes",
            List(&Object(&ROUTE)),
            "Which requests go to which upstream; the first that matches.",
            "[{ path: /**, upstream: api }]",
        ),
        PolicyKey::new(
            "http",
            Object(&HTTP),
            "How requests are read where upstream servers disagree.",
            "{ encoded_slash: keep }",
        ),
        PolicyKey::new("clients", Object(&CLIENTS), "Who a request comes from.", "{ identify_by: [api_key, ip] }"),
        PolicyKey::new(
            "bans",
            Object(&BANS),
            "Who is refused with 403, whatever limits and exemptions say.",
            "{ networks: [203.0.113.0/24] }",
        ),
        PolicyKey::new(
            "rate_limits",
            Object(&RATE_LIMITS),
            "How much may pass.",
            "{ default: { requests: 100, window: 60 } }",
        ),
        PolicyKey::new(
            "headers",
            OneOrMany(&Choice(HEADER_STYLES)),
            "Which headers report limits to clients: `x_ratelimit` and `ratelimit_epoch` (reset in Unix seconds) and `ratelimit_delta` (reset in seconds from now) report the tightest limit, `ratelimit` every limit as structured fields. docs/gateway.md has the numbers.",
            "[x_ratelimit, ratelimit]",
        )
        .default("[x_ratelimit, ratelimit]"),
        PolicyKey::new("error_body", Choice(ERROR_BODIES), "The form of a refusal's body.", "flat").default("flat"),
        PolicyKey::new("log", Object(&LOG), "What is logged, as lines of JSON.", "{ access: 1% }"),
        PolicyKey::new(
            "traces",
            Object(&TRACES),
            "Who is told of requests as traces.",
            "{ endpoint: http://127.0.0.1:4317 }",
        ),
        PolicyKey::new("store", Object(&STORE), "Where counters are kept.", "{ max_memory: 64MiB }"),
    ],
};

pub(crate) static LISTEN: Mapping = Mapping {
    name: "a place to listen",
    path: "listen[]",
    doc: "Where to answer requests, and with which certificate. Clients choose HTTP/2 or HTTP/1.1.",
    keys: &[
        PolicyKey::new("address", Text("address"), "Host and port.", "0.0.0.0:8443").required(),
        PolicyKey::new(
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
        PolicyKey::new("cert", FILE, "The certificate, followed by those that vouch for it.", "cert.pem")
            .required(),
        PolicyKey::new("key", FILE, "Its private key.", "key.pem").required(),
    ],
};

pub(crate) static ADMIN: Mapping = Mapping {
    name: "`admin`",
    path: "admin",
    doc: "The admin API: metrics, bans, overrides, and what the `tidegate` commands ask. docs/operations.md tells more.",
    keys: &[
        PolicyKey::new(
            "listen",
            Text("address"),
            "Host and port. One that others can reach wants a `token_file`; nothing there is encrypted.",
            "127.0.0.1:9900",
        )
        .default("127.0.0.1:9900"),
        PolicyKey::new(
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
        PolicyKey::new(
            "servers",
            OneOrMany(&Text("URL")),
            "Its servers: http://, https:// or h2c:// (HTTP/2 without TLS) and host, with a port where it is not the usual one.",
            "[http://10.0.0.1:3000, http://10.0.0.2:3000]",
        )
        .required(),
        PolicyKey::new(
            "balance",
            Choice(BALANCES),
            "Which server takes a request: one after another, the less busy of two, or always the same for one client.",
            "least_loaded",
        )
        .default("round_robin"),
        PolicyKey::new("health", Object(&HEALTH), "How servers are asked whether they are well.", "{ path: /healthz }"),
    ],
};

pub(crate) static HEALTH: Mapping = Mapping {
    name: "`health`",
    path: "upstreams.NAME.health",
    doc: "A server that does not answer this with 2xx or 3xx gets no requests until it does, unless no server is well.",
    keys: &[
        PolicyKey::new("path", Text("path"), "What is asked for.", "/healthz").required(),
        PolicyKey::new("every", Duration, "How often, and how long an answer may take.", "5s").default("5s"),
    ],
};

pub(crate) static ROUTE: Mapping = Mapping {
    name: "a route",
    path: "routes[]",
    doc: "Sends what matches to an upstream. The first route that matches is taken.",
    keys: &[
        PolicyKey::new(
            "host",
            Text("host"),
            "The host asked for: a name, `*.` and a name, or `*` for any.",
            "api.example.com",
        )
        .default("\"*\""),
        PolicyKey::new("path", PATH, "The path asked for.", "/api/**").default("/**"),
        PolicyKey::new("upstream", Text("name"), "The name of an upstream.", "api").required(),
        PolicyKey::new(
            "http",
            Object(&HTTP),
            "How requests of this route are read. A key that is absent here has the value of the policy's `http`.",
            "{ encoded_slash: keep }",
        ),
    ],
};

pub(crate) static HTTP: Mapping = Mapping {
    name: "`http`",
    path: "http",
    doc: "How requests are read where upstream servers disagree. `routes[].http` has the same keys. The defaults let no \
          other spelling of a path or header escape a limit; change them for an upstream that needs it.",
    keys: &[
        PolicyKey::new(
            "encoded_slash",
            Choice(ENCODED_SLASHES),
            "`%2F`, `%5C` and encoded control characters in a path. `reject`: 400. `keep`: forwarded as sent, and the \
             limits of both readings apply, with `%2F` and with `/`. `decode`: `%2F` and `%5C` become `/` before \
             routing, matching and forwarding, and encoded control characters get 400. `%00` always gets 400.",
            "keep",
        )
        .default("reject"),
        PolicyKey::new(
            "path_case",
            Choice(PATH_CASES),
            "How endpoints and rules match paths. `insensitive`: `/LOGIN` counts against the limits of `/login` too. \
             `sensitive`: case matters. Routes always match exactly, and the forwarded path keeps its case.",
            "sensitive",
        )
        .default("insensitive"),
        PolicyKey::new(
            "underscore_headers",
            Choice(UNDERSCORE_HEADERS),
            "Request headers with an underscore in their name, such as `X_User_Id`, which many servers read as \
             `X-User-Id`. `drop`: removed before anything reads them, unless the policy uses the name. `keep`: forwarded.",
            "keep",
        )
        .default("drop"),
    ],
};

pub(crate) static CLIENTS: Mapping = Mapping {
    name: "`clients`",
    path: "clients",
    doc: "Who a request comes from. Limits count each client apart.",
    keys: &[
        PolicyKey::new(
            "identify_by",
            OneOrMany(&IDENTITY),
            "What names a client: the first of these that a request has. An API key counts only if it is verified.",
            "[api_key, user, ip]",
        )
        .default("[api_key, ip]"),
        PolicyKey::new("api_key", Object(&API_KEY), "Where the API key stands.", "{ header: X-API-PolicyKey }"),
        PolicyKey::new("user", Object(&USER), "Where the user stands.", "{ header: X-User-Id }"),
        PolicyKey::new("tenant", Object(&TENANT), "Where the tenant stands.", "{ header: X-Tenant }"),
        PolicyKey::new(
            "ip",
            Object(&IP),
            "How the client's address is found and counted.",
            "{ trusted_proxies: [10.0.0.0/8] }",
        ),
        PolicyKey::new(
            "fingerprint",
            Object(&FINGERPRINT),
            "What tells clients apart that have no name.",
            "{ headers: [user-agent, accept-language] }",
        ),
        PolicyKey::new("cookie", Object(&COOKIE), "A cookie that names the client.", "{ name: session }"),
        PolicyKey::new(
            "tiers",
            Object(&TIERS),
            "Which client has which tier.",
            "{ file: keys.csv, default: free }",
        ),
        PolicyKey::new("exempt", Object(&EXEMPT), "Who is never limited.", "{ networks: [10.1.0.0/16] }"),
    ],
};

pub(crate) static API_KEY: Mapping = Mapping {
    name: "`api_key`",
    path: "clients.api_key",
    doc: "Where the API key stands. A request that has the header twice, or a comma in it, gets 400.",
    keys: &[
        PolicyKey::new("header", HEADER, "The header that carries it.", "X-API-PolicyKey").default("X-API-PolicyKey"),
        PolicyKey::new(
            "verify",
            Choice(KEY_VERIFICATIONS),
            "What verifies a key before it counts: `keys_file` is `clients.tiers.file`, and without one no key counts; `none` counts every key, so a client that invents a key for each request has no limit.",
            "none",
        )
        .default("keys_file"),
    ],
};

pub(crate) static USER: Mapping = Mapping {
    name: "`user`",
    path: "clients.user",
    doc: "Where the user stands: a header that a trusted proxy sets, or a verified token.",
    keys: &[
        PolicyKey::new(
            "header",
            HEADER,
            "The header that names the user. It counts only if the peer is in `clients.ip.trusted_proxies`; from any other peer it is removed.",
            "X-User-Id",
        ),
        PolicyKey::new("jwt", Object(&JWT), "A token that is verified.", "{ secret_file: jwt.secret }"),
    ],
};

pub(crate) static TENANT: Mapping = Mapping {
    name: "`tenant`",
    path: "clients.tenant",
    doc: "Where the tenant stands: a header that a trusted proxy sets, or a verified token.",
    keys: &[
        PolicyKey::new(
            "header",
            HEADER,
            "The header that names the tenant. It counts only if the peer is in `clients.ip.trusted_proxies`; from any other peer it is removed.",
            "X-Tenant",
        ),
        PolicyKey::new(
            "jwt",
            Object(&JWT),
            "A token that is verified.",
            "{ claim: tenant, jwks_file: jwks.json }",
        ),
    ],
};

pub(crate) static JWT: Mapping = Mapping {
    name: "`jwt`",
    path: "clients.user.jwt",
    doc: "A JSON Web Token that is verified before it counts. `clients.tenant.jwt` has the same keys. A token is rejected, \
          and counts as absent, if no key verifies its signature, if it has no `exp`, if it has expired, or if its `nbf` \
          lies ahead; clocks may differ by 60 s. `tidegate explain` says why a token is rejected.",
    keys: &[
        PolicyKey::new(
            "header",
            HEADER,
            "The header that carries the token, with or without `Bearer`.",
            "Authorization",
        )
        .default("Authorization"),
        PolicyKey::new("claim", Text("name"), "The claim that is the name.", "sub").default("sub"),
        PolicyKey::new("secret_file", FILE, "A file with the shared secret (HS256).", "jwt.secret"),
        PolicyKey::new(
            "jwks_file",
            FILE,
            "A file with the public keys as a JSON Web PolicyKey Set (RS256, ES256).",
            "jwks.json",
        ),
    ],
};

pub(crate) static IP: Mapping = Mapping {
    name: "`ip`",
    path: "clients.ip",
    doc: "How the client's address is found: the connection's own, or what trusted proxies say of it.",
    keys: &[
        PolicyKey::new(
            "trusted_proxies",
            OneOrMany(&NETWORK),
            "Proxies whose `Forwarded` and `X-Forwarded-For` are believed, read from right to left, and whose headers for user and tenant count.",
            "[10.0.0.0/8]",
        ),
        PolicyKey::new("ipv6_prefix", Count(1), "How many bits of an IPv6 address are one client.", "64")
            .default("64"),
    ],
};

pub(crate) static FINGERPRINT: Mapping = Mapping {
    name: "`fingerprint`",
    path: "clients.fingerprint",
    doc: "A hash over some headers.",
    keys: &[PolicyKey::new(
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
    keys: &[PolicyKey::new("name", Text("name"), "The cookie's name.", "session").required()],
};

pub(crate) static TIERS: Mapping = Mapping {
    name: "`tiers`",
    path: "clients.tiers",
    doc: "Which client has which tier. The limits of the tiers stand in `rate_limits.tiers`.",
    keys: &[
        PolicyKey::new(
            "file",
            FILE,
            "A CSV file: API key, tier and tenant; or YAML, a mapping from API keys to tiers or to `{ tier, tenant }`.",
            "keys.csv",
        ),
        PolicyKey::new("default", Text("name"), "The tier of everybody whom the file does not name.", "free"),
    ],
};

pub(crate) static EXEMPT: Mapping = Mapping {
    name: "`exempt`",
    path: "clients.exempt",
    doc: "Who is never limited, only counted. A ban is stronger.",
    keys: &[
        PolicyKey::new("networks", OneOrMany(&NETWORK), "Addresses.", "[10.1.0.0/16]"),
        PolicyKey::new(
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
    doc: "Who is refused with 403, whatever limits and exemptions say.",
    keys: &[
        PolicyKey::new("networks", OneOrMany(&NETWORK), "Addresses.", "[203.0.113.0/24]"),
        PolicyKey::new("file", FILE, "A file of networks, one on a line; `#` begins a comment.", "bans.txt"),
    ],
};

pub(crate) static STORE: Mapping = Mapping {
    name: "`store`",
    path: "store",
    doc: "Where counters are kept, and what must outlive the process.",
    keys: &[
        PolicyKey::new(
            "url",
            Text("store URL"),
            "`memory` for this process alone; `redis://`, `rediss://` or `valkey://` to share them.",
            "redis://127.0.0.1:6379",
        )
        .default("memory"),
        PolicyKey::new("max_memory", Size, "How much memory the counters of this process may take.", "64MiB")
            .default("64MiB"),
        PolicyKey::new(
            "directory",
            Text("folder"),
            "Where bans and overrides survive restarts; looked for from the folder of the policy, and made if there is none.",
            "/var/lib/tidegate",
        )
        .default("the policy's name with `.state` instead of its ending, pending_cost it"),
    ],
};

pub(crate) static LOG: Mapping = Mapping {
    name: "`log`",
    path: "log",
    doc: "Every event (start, reload, a server that fails, a ban, stop) is a line of JSON. Requests are too, as many as one wants.",
    keys: &[
        PolicyKey::new(
            "access",
            SAMPLE,
            "How many requests have a line: who asked for what, what was decided, by whom and how fast it was answered.",
            "1%",
        )
        .default("off"),
        PolicyKey::new("refused", SAMPLE, "How many of the requests that a limit refuses have one.", "all")
            .default("as `access`"),
        PolicyKey::new(
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
        PolicyKey::new(
            "endpoint",
            Text("URL"),
            "The collector that takes spans, over OTLP with gRPC.",
            "http://127.0.0.1:4317",
        )
        .required(),
        PolicyKey::new(
            "sample",
            SAMPLE,
            "How many requests are traced. Where the sender of a request has decided that, its word counts.",
            "10%",
        )
        .default("1%"),
    ],
};
