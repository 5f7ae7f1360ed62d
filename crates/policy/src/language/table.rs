//! The table of keys. A key listed here is accepted, completed by editors and documented in docs/config.md.

use tidegate_headers::HeaderStyle;

use super::Shape::{Choice, Count, Duration, Either, List, Named, Object, OneOrMany, Percent, Text};
use super::actions::CACHE_KEY;
use super::limits::RATE_LIMITS;
use super::names::{FILE, HEADER, IDENTITY, KEY_VERIFICATIONS, NETWORK, OFF, PATH};
use super::rejections::ERROR_BODY_KEY;
use super::resilience::{
    BREAKER_KEY, BULKHEAD_KEY, EJECT_KEY, FALLBACK_KEY, RETRY_KEY, ROUTE_BULKHEAD_KEY, SHED_KEY, TIMEOUTS_KEY,
};
use super::service::SERVICE;
use super::store::STORE;
use super::{Mapping, PolicyKey, Shape};
use crate::plan::{Balance, EncodedSlash, OnInvalid, PathCase, UnderscoreHeaders};

pub(crate) static POLICY: Mapping = Mapping {
    name: "the policy",
    path: "",
    doc: "The whole file.",
    keys: &[
        PolicyKey::new(
            "listen",
            OneOrMany(&Either(&[Text("address"), Object(&LISTEN)])),
            "Where to accept requests: host and port, optionally with a certificate.",
            "0.0.0.0:8080",
        )
        .default("127.0.0.1:8080"),
        PolicyKey::new(
            "admin",
            Either(&[Choice(OFF), Object(&ADMIN)]),
            "The admin API, for metrics, bans and overrides; `off` disables it.",
            "{ listen: 127.0.0.1:9900 }",
        )
        .default("127.0.0.1:9900"),
        PolicyKey::new(
            "service",
            Object(&SERVICE),
            "The decision service for other proxies and programs.",
            "{ grpc: 127.0.0.1:8081, http: 127.0.0.1:8082, resp: 127.0.0.1:6380 }",
        ),
        PolicyKey::new(
            "upstreams",
            Named("upstream", &Object(&UPSTREAM)),
            "The upstream services, by name.",
            "{ api: { servers: [http://10.0.0.1:3000] } }",
        ),
        PolicyKey::new(
            "routes",
            List(&Object(&ROUTE)),
            "Which requests go to which upstream. The first matching route is used.",
            "[{ path: /**, upstream: api }]",
        ),
        PolicyKey::new(
            "http",
            Object(&HTTP),
            "How to interpret requests that upstream servers read differently.",
            "{ encoded_slash: keep }",
        ),
        PolicyKey::new("clients", Object(&CLIENTS), "How clients are identified.", "{ identify_by: [api_key, ip] }"),
        PolicyKey::new(
            "bans",
            Object(&BANS),
            "Banned clients. They get 403, even if they are exempt.",
            "{ networks: [203.0.113.0/24] }",
        ),
        PolicyKey::new(
            "allow",
            Object(&ALLOW),
            "The only networks whose requests are served. Requests from elsewhere get 403.",
            "{ networks: [10.0.0.0/8] }",
        ),
        PolicyKey::new(
            "rate_limits",
            Object(&RATE_LIMITS),
            "The limits.",
            "{ default: { requests: 100, window: 60 } }",
        ),
        PolicyKey::new(
            "headers",
            OneOrMany(&Choice(&HeaderStyle::NAMES)),
            "Which headers report limits to clients: `x_ratelimit` and `ratelimit_epoch` (reset in Unix seconds), `x_ratelimit_ms` (reset in Unix milliseconds) and `ratelimit_delta` (reset in seconds from now) report the tightest limit, `ratelimit` every limit as structured fields. `x_ratelimit` and `x_ratelimit_ms` use the same names, as do `ratelimit_epoch` and `ratelimit_delta`, so they exclude each other. docs/gateway.md has the numbers.",
            "[x_ratelimit, ratelimit]",
        )
        .default("[x_ratelimit, ratelimit]"),
        CACHE_KEY,
        ERROR_BODY_KEY,
        PolicyKey::new("log", Object(&LOG), "What is logged, as lines of JSON.", "{ access: 1% }"),
        PolicyKey::new(
            "traces",
            Object(&TRACES),
            "Trace export with OpenTelemetry.",
            "{ endpoint: http://127.0.0.1:4317 }",
        ),
        PolicyKey::new("store", Object(&STORE), "Where counters are stored, and how nodes share them.", "{ url: redis://127.0.0.1:6379 }"),
        PolicyKey::new("reload", Object(&RELOAD), "When changed files are applied.", "{ quiet: 2s, max_loss: 50% }"),
    ],
};

pub(crate) static RELOAD: Mapping = Mapping {
    name: "`reload`",
    path: "reload",
    doc: "The policy and the files it names are applied when they change. A file that is renamed into place is applied at once. SIGHUP and `tidegate reload` apply all files at once.",
    keys: &[
        PolicyKey::new(
            "quiet",
            Duration,
            "How long a file that is written in place must stay unchanged before it is applied.",
            "5s",
        )
        .default("2s"),
        PolicyKey::new(
            "max_loss",
            Percent,
            "The largest part of the bans, of the bans in `bans.file`, of the API keys or of the exempt API keys that a reload may remove. A reload that removes more is refused, because a file may be incomplete; `tidegate reload --force` applies it. The value of the running policy counts.",
            "10%",
        )
        .default("50%"),
    ],
};

pub(crate) static LISTEN: Mapping = Mapping {
    name: "a listener",
    path: "listen[]",
    doc: "A listener with an optional certificate. Clients choose HTTP/2 or HTTP/1.1.",
    keys: &[
        PolicyKey::new("address", Text("address"), "Host and port.", "0.0.0.0:8443").required(),
        PolicyKey::new(
            "tls",
            Object(&TLS),
            "The certificate. Without it, connections are not encrypted.",
            "{ cert: cert.pem, key: key.pem }",
        ),
    ],
};

pub(crate) static TLS: Mapping = Mapping {
    name: "`tls`",
    path: "listen[].tls",
    doc: "A certificate and its private key, both in PEM format.",
    keys: &[
        PolicyKey::new(
            "cert",
            FILE,
            "The certificate, followed by its intermediate certificates.",
            "cert.pem",
        )
        .required(),
        PolicyKey::new("key", FILE, "The private key of the certificate.", "key.pem").required(),
    ],
};

pub(crate) static ADMIN: Mapping = Mapping {
    name: "`admin`",
    path: "admin",
    doc: "The admin API: metrics, bans, overrides and the `tidegate` commands. See docs/operations.md.",
    keys: &[
        PolicyKey::new(
            "listen",
            Text("address"),
            "Host and port. An address that is not loopback requires a `token_file`. Connections are not encrypted.",
            "127.0.0.1:9900",
        )
        .default("127.0.0.1:9900"),
        PolicyKey::new(
            "token_file",
            FILE,
            "The file with the token that all requests except health checks require. With a loopback address, a missing file is created at the first start.",
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
            "The servers: http://, https:// or h2c:// (HTTP/2 without TLS), host, and port unless it is the default one.",
            "[http://10.0.0.1:3000, http://10.0.0.2:3000]",
        )
        .required(),
        PolicyKey::new(
            "balance",
            Choice(&Balance::NAMES),
            "Which server gets a request: the next in turn (`round_robin`), the less busy of two (`least_loaded`), or always the same for one client (`sticky`).",
            "least_loaded",
        )
        .default("round_robin"),
        PolicyKey::new("health", Object(&HEALTH), "The health check of the servers.", "{ path: /healthz }"),
        TIMEOUTS_KEY,
        RETRY_KEY,
        BREAKER_KEY,
        BULKHEAD_KEY,
        EJECT_KEY,
        SHED_KEY,
        FALLBACK_KEY,
    ],
};

pub(crate) static HEALTH: Mapping = Mapping {
    name: "`health`",
    path: "upstreams.NAME.health",
    doc: "The health check. A server that does not respond with 2xx or 3xx gets no requests until it does, unless all servers are unhealthy.",
    keys: &[
        PolicyKey::new("path", Text("path"), "The path to request.", "/healthz").required(),
        PolicyKey::new("every", Duration, "The interval, and the timeout of each check.", "5s").default("5s"),
    ],
};

pub(crate) static ROUTE: Mapping = Mapping {
    name: "a route",
    path: "routes[]",
    doc: "Sends matching requests to an upstream. The first matching route is used.",
    keys: &[
        PolicyKey::new(
            "host",
            Text("host"),
            "The host of the request: a name, `*.` and a name for all subdomains, or `*` for any host.",
            "api.example.com",
        )
        .default("\"*\""),
        PolicyKey::new("path", PATH, "The path of the request.", "/api/**").default("/**"),
        PolicyKey::new("upstream", Text("name"), "The name of an upstream.", "api").required(),
        PolicyKey::new(
            "http",
            Object(&HTTP),
            "How to interpret requests of this route. Absent keys have the value of the policy's `http`.",
            "{ encoded_slash: keep }",
        ),
        ROUTE_BULKHEAD_KEY,
    ],
};

pub(crate) static HTTP: Mapping = Mapping {
    name: "`http`",
    path: "http",
    doc: "How to interpret requests that upstream servers read differently. `routes[].http` has the same keys. With the \
          defaults, no other spelling of a path or header bypasses a limit; change them for an upstream that needs it.",
    keys: &[
        PolicyKey::new(
            "encoded_slash",
            Choice(&EncodedSlash::NAMES),
            "`%2F`, `%5C` and encoded control characters in a path. `reject`: 400. `keep`: forwarded as sent, and the \
             limits of both readings apply, with `%2F` and with `/`. `decode`: `%2F` and `%5C` become `/` before \
             routing, matching and forwarding, and encoded control characters get 400. `%00` always gets 400.",
            "keep",
        )
        .default("reject"),
        PolicyKey::new(
            "path_case",
            Choice(&PathCase::NAMES),
            "How endpoints and rules match paths. `insensitive`: `/LOGIN` counts against the limits of `/login` too. \
             `sensitive`: case matters. Routes always match exactly, and the forwarded path keeps its case.",
            "sensitive",
        )
        .default("insensitive"),
        PolicyKey::new(
            "underscore_headers",
            Choice(&UnderscoreHeaders::NAMES),
            "Request headers with an underscore or another unusual character in their name, such as `X_User_Id` and \
             `X.User.Id`, which many servers read as `X-User-Id`. `drop`: removed before anything reads them, unless the policy \
             uses the name; the decision service cannot remove them and answers 400 if they may be read as a header that the \
             policy uses. `keep`: forwarded.",
            "keep",
        )
        .default("drop"),
    ],
};

pub(crate) static CLIENTS: Mapping = Mapping {
    name: "`clients`",
    path: "clients",
    doc: "How clients are identified. Limits count each client separately.",
    keys: &[
        PolicyKey::new(
            "identify_by",
            OneOrMany(&IDENTITY),
            "The identities to try, in this order: the first one that a request has identifies the client. An API key counts only if it is verified.",
            "[api_key, user, ip]",
        )
        .default("[api_key, ip]"),
        PolicyKey::new("api_key", Object(&API_KEY), "Where to find the API key.", "{ header: X-API-Key }"),
        PolicyKey::new("user", Object(&USER), "Where to find the user.", "{ header: X-User-Id }"),
        PolicyKey::new("tenant", Object(&TENANT), "Where to find the tenant.", "{ header: X-Tenant }"),
        PolicyKey::new(
            "ip",
            Object(&IP),
            "How the client's address is determined and counted.",
            "{ trusted_proxies: [10.0.0.0/8] }",
        ),
        PolicyKey::new(
            "fingerprint",
            Object(&FINGERPRINT),
            "Which headers identify clients that have no other identity.",
            "{ headers: [user-agent, accept-language] }",
        ),
        PolicyKey::new("cookie", Object(&COOKIE), "A cookie that identifies the client.", "{ name: session }"),
        PolicyKey::new(
            "on_invalid",
            Choice(&OnInvalid::NAMES),
            "What happens to a header with a token that is not valid, or with an API key that is not in the keys file. `forward`: it is forwarded and does not count. `remove`: it is removed before anything reads it; the decision service cannot remove it and answers 401. `reject`: 401 with `WWW-Authenticate`; the gateway counts the request as one without the header, so that guesses are limited.",
            "reject",
        )
        .default("forward"),
        PolicyKey::new(
            "tiers",
            Object(&TIERS),
            "Which client has which tier.",
            "{ file: keys.csv, default: free }",
        ),
        PolicyKey::new("exempt", Object(&EXEMPT), "Clients that are never limited.", "{ networks: [10.1.0.0/16] }"),
    ],
};

pub(crate) static API_KEY: Mapping = Mapping {
    name: "`api_key`",
    path: "clients.api_key",
    doc: "Where to find the API key. A request that has the header twice, or a comma in it, gets 400.",
    keys: &[
        PolicyKey::new(
            "header",
            HEADER,
            "The header that contains the API key. In `Authorization`, a scheme such as `Bearer` before the key is not part of it: \
             list and ban keys without it.",
            "X-API-Key",
        )
        .default("X-API-Key"),
        PolicyKey::new(
            "verify",
            Choice(KEY_VERIFICATIONS),
            "How API keys are verified. `keys_file`: only keys listed in `clients.tiers.file` count; without that file, no key counts. `none`: every key counts, so a client that sends a new key with each request has no limit.",
            "none",
        )
        .default("keys_file"),
    ],
};

pub(crate) static USER: Mapping = Mapping {
    name: "`user`",
    path: "clients.user",
    doc: "Where to find the user: a header that a trusted proxy sets, or a verified token. Set one of these keys.",
    keys: &[
        PolicyKey::new(
            "header",
            HEADER,
            "The header that contains the user. It counts only if the peer is in `clients.ip.trusted_proxies`; from any other peer it is removed.",
            "X-User-Id",
        ),
        PolicyKey::new("jwt", Object(&JWT), "A verified JSON Web Token.", "{ secret_file: jwt.secret }"),
    ],
};

pub(crate) static TENANT: Mapping = Mapping {
    name: "`tenant`",
    path: "clients.tenant",
    doc: "Where to find the tenant: a header that a trusted proxy sets, or a verified token. Set one of these keys.",
    keys: &[
        PolicyKey::new(
            "header",
            HEADER,
            "The header that contains the tenant. It counts only if the peer is in `clients.ip.trusted_proxies`; from any other peer it is removed.",
            "X-Tenant",
        ),
        PolicyKey::new(
            "jwt",
            Object(&JWT),
            "A verified JSON Web Token.",
            "{ claim: tenant, jwks_file: jwks.json }",
        ),
    ],
};

pub(crate) static JWT: Mapping = Mapping {
    name: "`jwt`",
    path: "clients.user.jwt",
    doc: "A JSON Web Token that is verified before it counts. `clients.tenant.jwt` has the same keys. Its user \
          counts if a key verifies its signature. It is not valid, and causes no lock-out, if it has no `exp`, if it has \
          expired, or if its `nbf` is in the future; clocks may differ by 60 s. `clients.on_invalid` says what happens to \
          tokens that are not valid. `tidegate explain` shows why a token is not valid.",
    keys: &[
        PolicyKey::new(
            "header",
            HEADER,
            "The header that contains the token, anywhere in its value.",
            "Authorization",
        )
        .default("Authorization"),
        PolicyKey::new(
            "claim",
            Text("name"),
            "The claim that contains the name: a text or a whole number.",
            "sub",
        )
        .default("sub"),
        PolicyKey::new("secret_file", FILE, "A file with the shared secret (HS256).", "jwt.secret"),
        PolicyKey::new(
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
    doc: "How the client's address is determined: the address of the peer, or the one that trusted proxies report.",
    keys: &[
        PolicyKey::new(
            "trusted_proxies",
            OneOrMany(&NETWORK),
            "Proxies whose `Forwarded` and `X-Forwarded-For` headers are trusted (read from right to left), and whose headers for user, tenant and tier count.",
            "[10.0.0.0/8]",
        ),
        PolicyKey::new(
            "ipv6_prefix",
            Count(1),
            "The prefix length of the IPv6 network that counts as one client.",
            "64",
        )
        .default("64"),
    ],
};

pub(crate) static FINGERPRINT: Mapping = Mapping {
    name: "`fingerprint`",
    path: "clients.fingerprint",
    doc: "A hash of request headers.",
    keys: &[PolicyKey::new(
        "headers",
        OneOrMany(&HEADER),
        "The headers to hash.",
        "[user-agent, accept-language, accept-encoding]",
    )
    .default("[user-agent, accept-language, accept-encoding]")],
};

pub(crate) static COOKIE: Mapping = Mapping {
    name: "`cookie`",
    path: "clients.cookie",
    doc: "A cookie that identifies the client.",
    keys: &[PolicyKey::new(
        "name",
        Text("name"),
        "The name of the cookie; its case does not matter, and a dot, a space and `[` are `_`.",
        "session",
    )
    .required()],
};

pub(crate) static TIERS: Mapping = Mapping {
    name: "`tiers`",
    path: "clients.tiers",
    doc: "Which client has which tier. `rate_limits.tiers` defines the limits of the tiers. The file takes precedence; then the claim or the \
          header, of which one can be set; then `default`. A name that is not in `rate_limits.tiers` assigns no tier.",
    keys: &[
        PolicyKey::new(
            "file",
            FILE,
            "A CSV file with API key, tier and tenant; or a YAML file that maps API keys to tiers or to `{ tier, tenant }`. In place of a key, the file may have `sha256:` and the SHA-256 hash of the key in hexadecimal.",
            "keys.csv",
        ),
        PolicyKey::new(
            "claim",
            Text("name"),
            "The claim that contains the tier, in the token of `clients.user.jwt`, or else of `clients.tenant.jwt`. Only a token that is valid now counts.",
            "plan",
        ),
        PolicyKey::new(
            "header",
            HEADER,
            "The header that contains the tier. It counts only if the peer is in `clients.ip.trusted_proxies`; from any other peer it is removed.",
            "X-Plan",
        ),
        PolicyKey::new(
            "default",
            Text("name"),
            "The tier of clients to which nothing else assigns one.",
            "free",
        ),
    ],
};

pub(crate) static EXEMPT: Mapping = Mapping {
    name: "`exempt`",
    path: "clients.exempt",
    doc: "Clients that are never limited, only counted. Bans still apply to them.",
    keys: &[
        PolicyKey::new("networks", OneOrMany(&NETWORK), "The networks of exempt clients.", "[10.1.0.0/16]"),
        PolicyKey::new(
            "api_keys_file",
            FILE,
            "A file of API keys, one per line; `#` at the start of a line or after white space starts a comment. Keys may be hashed as in `clients.tiers.file`.",
            "friends.txt",
        ),
    ],
};

pub(crate) static BANS: Mapping = Mapping {
    name: "`bans`",
    path: "bans",
    doc: "Banned clients. They get 403, even if they are exempt.",
    keys: &[
        PolicyKey::new("networks", OneOrMany(&NETWORK), "The banned networks.", "[203.0.113.0/24]"),
        PolicyKey::new(
            "file",
            FILE,
            "A file of networks, one per line; `#` at the start of a line or after white space starts a comment.",
            "bans.txt",
        ),
    ],
};

pub(crate) static ALLOW: Mapping = Mapping {
    name: "`allow`",
    path: "allow",
    doc: "The only networks whose requests are served, by the client's address. Requests from elsewhere get 403, like those of banned \
          clients; requests from these networks are limited, unless they are exempt. Set one of these keys, or both.",
    keys: &[
        PolicyKey::new("networks", OneOrMany(&NETWORK), "The networks.", "[10.0.0.0/8]"),
        PolicyKey::new(
            "file",
            FILE,
            "A file of networks, one per line; `#` at the start of a line or after white space starts a comment.",
            "partners.txt",
        ),
    ],
};

pub(crate) static LOG: Mapping = Mapping {
    name: "`log`",
    path: "log",
    doc: "Every event (start, reload, failed server, ban, stop) is one line of JSON. Requests can be logged too.",
    keys: &[
        PolicyKey::new(
            "access",
            SAMPLE,
            "Which requests are logged, with client, path, decision, upstream and timing.",
            "1%",
        )
        .default("off"),
        PolicyKey::new("rejected", SAMPLE, "Which of the requests that a limit rejects are logged.", "all")
            .default("the value of `access`"),
        PolicyKey::new(
            "to",
            Either(&[Choice(&["stderr", "stdout"]), Text("file")]),
            "Where log lines are written. A file is appended to, and reopened on SIGHUP.",
            "/var/log/tidegate/tidegate.log",
        )
        .default("stderr"),
    ],
};

const SAMPLE: Shape = Either(&[Choice(&["off", "all"]), Percent]);

pub(crate) static TRACES: Mapping = Mapping {
    name: "`traces`",
    path: "traces",
    doc: "Trace export with OpenTelemetry: a span for each request, for its decision and for each upstream attempt.",
    keys: &[
        PolicyKey::new(
            "endpoint",
            Text("URL"),
            "The collector, for OTLP over gRPC.",
            "http://127.0.0.1:4317",
        )
        .required(),
        PolicyKey::new(
            "sample",
            SAMPLE,
            "Which requests are traced. If a request has a trace context, its sampling decision is used instead.",
            "10%",
        )
        .default("1%"),
    ],
};
