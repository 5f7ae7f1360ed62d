//! The table of keys. A key listed here is accepted, completed by editors and documented in docs/config.md.

use tidegate_headers::HeaderStyle;

use super::Shape::{self, Choice, Count, Duration, Either, List, Named, Object, OneOrMany, Percent, Text};
use super::actions::CACHE_KEY;
use super::limits::RATE_LIMITS;
use super::names::{FILE, HEADER, IDENTITY, KEY_VERIFICATIONS, NETWORK, OFF, PATH};
use super::rejections::ERROR_BODY_KEY;
use super::resilience::{
    BREAKER_KEY, BULKHEAD_KEY, EJECT_KEY, FALLBACK_KEY, RETRY_KEY, ROUTE_BULKHEAD_KEY, SHED_KEY, TIMEOUTS_KEY,
};
use super::service::SERVICE;
use super::store::STORE;
use crate::plan::{Balance, EncodedSlash, OnInvalid, PathCase, UnderscoreHeaders};

const SAMPLE: Shape = Either(&[Choice(&["off", "all"]), Percent]);

mappings! {
    /// The whole file.
    POLICY: "the policy" at "" {
        /// Where to accept requests: host and port, optionally with a certificate.
        listen: OneOrMany(&Either(&[Text("address"), Object(&LISTEN)])), example "0.0.0.0:8080", default "127.0.0.1:8080";
        /// The admin API, for metrics, bans and overrides; `off` disables it.
        admin: Either(&[Choice(OFF), Object(&ADMIN)]), example "{ listen: 127.0.0.1:9900 }", default "127.0.0.1:9900";
        /// The decision service for other proxies and programs.
        service: Object(&SERVICE), example "{ grpc: 127.0.0.1:8081, http: 127.0.0.1:8082, resp: 127.0.0.1:6380 }";
        /// The upstream services, by name.
        upstreams: Named("upstream", &Object(&UPSTREAM)), example "{ api: { servers: [http://10.0.0.1:3000] } }";
        /// Which requests go to which upstream. The first matching route is used.
        routes: List(&Object(&ROUTE)), example "[{ path: /**, upstream: api }]";
        /// How to interpret requests that upstream servers read differently.
        http: Object(&HTTP), example "{ encoded_slash: keep }";
        /// How clients are identified.
        clients: Object(&CLIENTS), example "{ identify_by: [api_key, ip] }";
        /// Banned clients. They get 403, even if they are exempt.
        bans: Object(&BANS), example "{ networks: [203.0.113.0/24] }";
        /// The only networks whose requests are served. Requests from elsewhere get 403.
        allow: Object(&ALLOW), example "{ networks: [10.0.0.0/8] }";
        /// The limits.
        rate_limits: Object(&RATE_LIMITS), example "{ default: { requests: 100, window: 60 } }";
        /// Which headers report limits to clients: `x_ratelimit` and `ratelimit_epoch` (reset in Unix seconds), `x_ratelimit_ms`
        /// (reset in Unix milliseconds) and `ratelimit_delta` (reset in seconds from now) report the tightest limit, `ratelimit`
        /// every limit as structured fields. `x_ratelimit` and `x_ratelimit_ms` use the same names, as do `ratelimit_epoch` and
        /// `ratelimit_delta`, so they exclude each other. docs/gateway.md has the numbers.
        headers: OneOrMany(&Choice(&HeaderStyle::NAMES)),
            example "[x_ratelimit, ratelimit]", default "[x_ratelimit, ratelimit]";
        CACHE_KEY;
        ERROR_BODY_KEY;
        /// What is logged, as lines of JSON.
        log: Object(&LOG), example "{ access: 1% }";
        /// Trace export with OpenTelemetry.
        traces: Object(&TRACES), example "{ endpoint: http://127.0.0.1:4317 }";
        /// Where counters are stored, and how nodes share them.
        store: Object(&STORE), example "{ url: redis://127.0.0.1:6379 }";
        /// When changed files are applied.
        reload: Object(&RELOAD), example "{ quiet: 2s, max_loss: 50% }";
    }

    /// The policy and the files it names are applied when they change. A file that is renamed into place is applied at once.
    /// SIGHUP and `tidegate reload` apply all files at once.
    RELOAD: "`reload`" at "reload" {
        /// How long a file that is written in place must stay unchanged before it is applied.
        quiet: Duration, example "5s", default "2s";
        /// The largest part of the bans, of the bans in `bans.file`, of the API keys or of the exempt API keys that a reload may
        /// remove. A reload that removes more is refused, because a file may be incomplete; `tidegate reload --force` applies it.
        /// The value of the running policy counts.
        max_loss: Percent, example "10%", default "50%";
    }

    /// A listener with an optional certificate. Clients choose HTTP/2 or HTTP/1.1.
    LISTEN: "a listener" at "listen[]" {
        /// Host and port.
        address: Text("address"), example "0.0.0.0:8443", required;
        /// The certificate. Without it, connections are not encrypted.
        tls: Object(&TLS), example "{ cert: cert.pem, key: key.pem }";
    }

    /// A certificate and its private key, both in PEM format.
    TLS: "`tls`" at "listen[].tls" {
        /// The certificate, followed by its intermediate certificates.
        cert: FILE, example "cert.pem", required;
        /// The private key of the certificate.
        key: FILE, example "key.pem", required;
    }

    /// The admin API: metrics, bans, overrides and the `tidegate` commands. See docs/operations.md.
    ADMIN: "`admin`" at "admin" {
        /// Host and port. An address that is not loopback requires a `token_file`. Connections are not encrypted.
        listen: Text("address"), example "127.0.0.1:9900", default "127.0.0.1:9900";
        /// The file with the token that all requests except health checks require. With a loopback address, a missing file is
        /// created at the first start.
        token_file: FILE, example "admin.token", default "`admin.token` in `store.directory`";
    }

    /// A service behind the gateway.
    UPSTREAM: "an upstream" at "upstreams.NAME" {
        /// The servers: http://, https:// or h2c:// (HTTP/2 without TLS), host, and port unless it is the default one.
        servers: OneOrMany(&Text("URL")), example "[http://10.0.0.1:3000, http://10.0.0.2:3000]", required;
        /// Which server gets a request: the next in turn (`round_robin`), the less busy of two (`least_loaded`), or always the
        /// same for one client (`sticky`).
        balance: Choice(&Balance::NAMES), example "least_loaded", default "round_robin";
        /// The health check of the servers.
        health: Object(&HEALTH), example "{ path: /healthz }";
        TIMEOUTS_KEY;
        RETRY_KEY;
        BREAKER_KEY;
        BULKHEAD_KEY;
        EJECT_KEY;
        SHED_KEY;
        FALLBACK_KEY;
    }

    /// The health check. A server that does not respond with 2xx or 3xx gets no requests until it does, unless all servers are
    /// unhealthy.
    HEALTH: "`health`" at "upstreams.NAME.health" {
        /// The path to request.
        path: Text("path"), example "/healthz", required;
        /// The interval, and the timeout of each check.
        every: Duration, example "5s", default "5s";
    }

    /// Sends matching requests to an upstream. The first matching route is used.
    ROUTE: "a route" at "routes[]" {
        /// The host of the request: a name, `*.` and a name for all subdomains, or `*` for any host.
        host: Text("host"), example "api.example.com", default "\"*\"";
        /// The path of the request.
        path: PATH, example "/api/**", default "/**";
        /// The name of an upstream.
        upstream: Text("name"), example "api", required;
        /// How to interpret requests of this route. Absent keys have the value of the policy's `http`.
        http: Object(&HTTP), example "{ encoded_slash: keep }";
        ROUTE_BULKHEAD_KEY;
    }

    /// How to interpret requests that upstream servers read differently. `routes[].http` has the same keys. With the defaults, no
    /// other spelling of a path or header bypasses a limit; change them for an upstream that needs it.
    HTTP: "`http`" at "http" {
        /// `%2F`, `%5C` and encoded control characters in a path. `reject`: 400. `keep`: forwarded as sent, and the limits of
        /// both readings apply, with `%2F` and with `/`. `decode`: `%2F` and `%5C` become `/` before routing, matching and
        /// forwarding, and encoded control characters get 400. `%00` always gets 400.
        encoded_slash: Choice(&EncodedSlash::NAMES), example "keep", default "reject";
        /// How endpoints and rules match paths. `insensitive`: `/LOGIN` counts against the limits of `/login` too. `sensitive`:
        /// case matters. Routes always match exactly, and the forwarded path keeps its case.
        path_case: Choice(&PathCase::NAMES), example "sensitive", default "insensitive";
        /// Request headers with an underscore or another unusual character in their name, such as `X_User_Id` and `X.User.Id`,
        /// which many servers read as `X-User-Id`. `drop`: removed before anything reads them, unless the policy uses the name;
        /// the decision service cannot remove them and answers 400 if they may be read as a header that the policy uses. `keep`:
        /// forwarded.
        underscore_headers: Choice(&UnderscoreHeaders::NAMES), example "keep", default "drop";
    }

    /// How clients are identified. Limits count each client separately.
    CLIENTS: "`clients`" at "clients" {
        /// The identities to try, in this order: the first one that a request has identifies the client. An API key counts only
        /// if it is verified.
        identify_by: OneOrMany(&IDENTITY), example "[api_key, user, ip]", default "[api_key, ip]";
        /// Where to find the API key.
        api_key: Object(&API_KEY), example "{ header: X-API-Key }";
        /// Where to find the user.
        user: Object(&USER), example "{ header: X-User-Id }";
        /// Where to find the tenant.
        tenant: Object(&TENANT), example "{ header: X-Tenant }";
        /// How the client's address is determined and counted.
        ip: Object(&IP), example "{ trusted_proxies: [10.0.0.0/8] }";
        /// Which headers identify clients that have no other identity.
        fingerprint: Object(&FINGERPRINT), example "{ headers: [user-agent, accept-language] }";
        /// A cookie that identifies the client.
        cookie: Object(&COOKIE), example "{ name: session }";
        /// What happens to a header with a token that is not valid, or with an API key that is not in the keys file. `forward`:
        /// it is forwarded and does not count. `remove`: it is removed before anything reads it; the decision service cannot
        /// remove it and answers 401. `reject`: 401 with `WWW-Authenticate`; the gateway counts the request as one without the
        /// header, so that guesses are limited.
        on_invalid: Choice(&OnInvalid::NAMES), example "reject", default "forward";
        /// Which client has which tier.
        tiers: Object(&TIERS), example "{ file: keys.csv, default: free }";
        /// Clients that are never limited.
        exempt: Object(&EXEMPT), example "{ networks: [10.1.0.0/16] }";
    }

    /// Where to find the API key. A request that has the header twice, or a comma in it, gets 400.
    API_KEY: "`api_key`" at "clients.api_key" {
        /// The header that contains the API key. In `Authorization`, a scheme such as `Bearer` before the key is not part of it:
        /// list and ban keys without it.
        header: HEADER, example "X-API-Key", default "X-API-Key";
        /// How API keys are verified. `keys_file`: only keys listed in `clients.tiers.file` count; without that file, no key
        /// counts. `none`: every key counts, so a client that sends a new key with each request has no limit.
        verify: Choice(KEY_VERIFICATIONS), example "none", default "keys_file";
    }

    /// Where to find the user: a header that a trusted proxy sets, or a verified token. Set one of these keys.
    USER: "`user`" at "clients.user" {
        /// The header that contains the user. It counts only if the peer is in `clients.ip.trusted_proxies`; from any other peer
        /// it is removed.
        header: HEADER, example "X-User-Id";
        /// A verified JSON Web Token.
        jwt: Object(&JWT), example "{ secret_file: jwt.secret }";
    }

    /// Where to find the tenant: a header that a trusted proxy sets, or a verified token. Set one of these keys.
    TENANT: "`tenant`" at "clients.tenant" {
        /// The header that contains the tenant. It counts only if the peer is in `clients.ip.trusted_proxies`; from any other
        /// peer it is removed.
        header: HEADER, example "X-Tenant";
        /// A verified JSON Web Token.
        jwt: Object(&JWT), example "{ claim: tenant, jwks_file: jwks.json }";
    }

    /// A JSON Web Token that is verified before it counts. `clients.tenant.jwt` has the same keys. Its user counts if a key
    /// verifies its signature. It is not valid, and causes no lock-out, if it has no `exp`, if it has expired, or if its `nbf` is
    /// in the future; clocks may differ by 60 s. `clients.on_invalid` says what happens to tokens that are not valid. `tidegate
    /// explain` shows why a token is not valid.
    JWT: "`jwt`" at "clients.user.jwt" {
        /// The header that contains the token, anywhere in its value.
        header: HEADER, example "Authorization", default "Authorization";
        /// The claim that contains the name: a text or a whole number.
        claim: Text("name"), example "sub", default "sub";
        /// A file with the shared secret (HS256).
        secret_file: FILE, example "jwt.secret";
        /// A file with the public keys as a JSON Web Key Set (RS256, ES256).
        jwks_file: FILE, example "jwks.json";
    }

    /// How the client's address is determined: the address of the peer, or the one that trusted proxies report.
    IP: "`ip`" at "clients.ip" {
        /// Proxies whose `Forwarded` and `X-Forwarded-For` headers are trusted (read from right to left), and whose headers for
        /// user, tenant and tier count.
        trusted_proxies: OneOrMany(&NETWORK), example "[10.0.0.0/8]";
        /// The prefix length of the IPv6 network that counts as one client.
        ipv6_prefix: Count(1), example "64", default "64";
    }

    /// A hash of request headers.
    FINGERPRINT: "`fingerprint`" at "clients.fingerprint" {
        /// The headers to hash.
        headers: OneOrMany(&HEADER),
            example "[user-agent, accept-language, accept-encoding]", default "[user-agent, accept-language, accept-encoding]";
    }

    /// A cookie that identifies the client.
    COOKIE: "`cookie`" at "clients.cookie" {
        /// The name of the cookie; its case does not matter, and a dot, a space and `[` are `_`.
        name: Text("name"), example "session", required;
    }

    /// Which client has which tier. `rate_limits.tiers` defines the limits of the tiers. The file takes precedence; then the
    /// claim or the header, of which one can be set; then `default`. A name that is not in `rate_limits.tiers` assigns no tier.
    TIERS: "`tiers`" at "clients.tiers" {
        /// A CSV file with API key, tier and tenant; or a YAML file that maps API keys to tiers or to `{ tier, tenant }`. In
        /// place of a key, the file may have `sha256:` and the SHA-256 hash of the key in hexadecimal.
        file: FILE, example "keys.csv";
        /// The claim that contains the tier, in the token of `clients.user.jwt`, or else of `clients.tenant.jwt`. Only a token
        /// that is valid now counts.
        claim: Text("name"), example "plan";
        /// The header that contains the tier. It counts only if the peer is in `clients.ip.trusted_proxies`; from any other peer
        /// it is removed.
        header: HEADER, example "X-Plan";
        /// The tier of clients to which nothing else assigns one.
        default: Text("name"), example "free";
    }

    /// Clients that are never limited, only counted. Bans still apply to them.
    EXEMPT: "`exempt`" at "clients.exempt" {
        /// The networks of exempt clients.
        networks: OneOrMany(&NETWORK), example "[10.1.0.0/16]";
        /// A file of API keys, one per line; `#` at the start of a line or after white space starts a comment. Keys may be hashed
        /// as in `clients.tiers.file`.
        api_keys_file: FILE, example "friends.txt";
    }

    /// Banned clients. They get 403, even if they are exempt.
    BANS: "`bans`" at "bans" {
        /// The banned networks.
        networks: OneOrMany(&NETWORK), example "[203.0.113.0/24]";
        /// A file of networks, one per line; `#` at the start of a line or after white space starts a comment.
        file: FILE, example "bans.txt";
    }

    /// The only networks whose requests are served, by the client's address. Requests from elsewhere get 403, like those of
    /// banned clients; requests from these networks are limited, unless they are exempt. Set one of these keys, or both.
    ALLOW: "`allow`" at "allow" {
        /// The networks.
        networks: OneOrMany(&NETWORK), example "[10.0.0.0/8]";
        /// A file of networks, one per line; `#` at the start of a line or after white space starts a comment.
        file: FILE, example "partners.txt";
    }

    /// Every event (start, reload, failed server, ban, stop) is one line of JSON. Requests can be logged too.
    LOG: "`log`" at "log" {
        /// Which requests are logged, with client, path, decision, upstream and timing.
        access: SAMPLE, example "1%", default "off";
        /// Which of the requests that a limit rejects are logged.
        rejected: SAMPLE, example "all", default "the value of `access`";
        /// Where log lines are written. A file is appended to, and reopened on SIGHUP.
        to: Either(&[Choice(&["stderr", "stdout"]), Text("file")]),
            example "/var/log/tidegate/tidegate.log", default "stderr";
    }

    /// Trace export with OpenTelemetry: a span for each request, for its decision and for each upstream attempt.
    TRACES: "`traces`" at "traces" {
        /// The collector, for OTLP over gRPC.
        endpoint: Text("URL"), example "http://127.0.0.1:4317", required;
        /// Which requests are traced. If a request has a trace context, its sampling decision is used instead.
        sample: SAMPLE, example "10%", default "1%";
    }
}
