//! The part of the table for `store`, and the keys of a rule that say how nodes share its counters.

use tidegate_core::{Coordination, StoreFailureMode};

use super::Shape::{Choice, Count, Duration, Object, Percent, Size, Text};
use super::names::FILE;
use super::{Mapping, PolicyKey};

/// `coordination` of a rule.
pub(super) const RULE_COORDINATION: PolicyKey = PolicyKey::new(
    "coordination",
    Choice(&Coordination::NAMES),
    "How nodes share this limit, if not as `store.coordination` says. A change starts with empty counters.",
    "lease",
)
.default("that of `store`");

/// `on_store_failure` of a rule.
pub(super) const RULE_FAILURE_MODE: PolicyKey = PolicyKey::new(
    "on_store_failure",
    Choice(&StoreFailureMode::NAMES),
    "What happens to this limit while Redis fails, if not what `store.on_store_failure` says. An error with `coordination: static`, which does not use Redis.",
    "deny",
)
.default("that of `store`");

pub(crate) static STORE: Mapping = Mapping {
    name: "`store`",
    path: "store",
    doc: "Where counters, bans and overrides are stored, and how several nodes share them. See docs/distributed.md.",
    keys: &[
        PolicyKey::new(
            "url",
            Text("store URL"),
            "Where counters are stored: `memory` for this process only, or Redis or Valkey to share them between nodes: `redis://`, `redis-sentinel://`, `redis-cluster://`; with TLS `rediss://`, `rediss-sentinel://`, `rediss-cluster://`. `valkey` can replace `redis`. Sentinel and cluster URLs can list several hosts, separated by commas, which need quotes inside braces; a Sentinel URL ends with the name of the service.",
            "redis://127.0.0.1:6379",
        )
        .default("memory"),
        PolicyKey::new(
            "coordination",
            Choice(&Coordination::NAMES),
            "How nodes share limits. `central`: Redis makes every decision; exact. `lease`: a node leases blocks of units and spends them without asking; never admits too much. `sync`: a node counts alone and exchanges counts every `sync_interval`; may admit more, within a bound. `static`: each node enforces the limit divided by `nodes`, without Redis. `lease` and `sync` support `token_bucket`, `fixed_window` and `sliding_window_counter`.",
            "lease",
        )
        .default("central"),
        PolicyKey::new("timeout", Duration, "How long a request to Redis may take; a decision that needs several in turn may wait this long for each.", "20ms").default("20ms"),
        PolicyKey::new(
            "sync_interval",
            Duration,
            "How often nodes exchange counts with `coordination: sync`.",
            "1s",
        )
        .default("1s"),
        PolicyKey::new(
            "on_store_failure",
            Choice(&StoreFailureMode::NAMES),
            "What happens to limits while Redis fails. `local`: each node enforces its part of `fallback_share`. `allow`: requests pass. `deny`: requests get 503.",
            "local",
        )
        .default("local"),
        PolicyKey::new(
            "fallback_share",
            Percent,
            "The part of a limit that all nodes together admit while Redis fails (`on_store_failure: local`).",
            "50%",
        )
        .default("50%"),
        PolicyKey::new(
            "nodes",
            Count(1),
            "The number of nodes: divides the limits of `coordination: static`, and the fallback until the live nodes are known. Required with `coordination: static`.",
            "3",
        )
        .default("1"),
        PolicyKey::new(
            "secret_file",
            FILE,
            "A file with at least 16 bytes, the same on every node. It keys the hashes by which Redis knows clients and encrypts bans and overrides there, so that a copy of Redis reveals no API key.",
            "store.secret",
        ),
        PolicyKey::new(
            "password_file",
            FILE,
            "A file with the password for Redis, instead of a password in the URL.",
            "redis.password",
        ),
        PolicyKey::new(
            "prefix",
            Text("text"),
            "The start of all key and channel names, so that several fleets can use one Redis.",
            "\"tg:\"",
        )
        .default("\"tg:\""),
        PolicyKey::new(
            "tls",
            Object(&STORE_TLS),
            "Certificates for the connection to Redis, with a `rediss` or `valkeys` URL.",
            "{ ca: redis-ca.pem }",
        ),
        PolicyKey::new("max_memory", Size, "The maximum memory for the counters of this process.", "64MiB")
            .default("64MiB"),
        PolicyKey::new(
            "directory",
            Text("directory"),
            "The directory where bans and overrides are persisted. The path is relative to the policy's directory. A missing directory is created.",
            "/var/lib/tidegate",
        )
        .default("next to the policy, its name with the extension `.state`"),
    ],
};

pub(crate) static STORE_TLS: Mapping = Mapping {
    name: "`tls`",
    path: "store.tls",
    doc: "Certificates for the connection to Redis, in PEM format.",
    keys: &[
        PolicyKey::new(
            "ca",
            FILE,
            "The certificate authorities to trust instead of those of the system.",
            "redis-ca.pem",
        ),
        PolicyKey::new(
            "cert",
            FILE,
            "The client certificate, followed by its intermediate certificates; requires `key`.",
            "client.pem",
        ),
        PolicyKey::new("key", FILE, "The private key of the client certificate.", "client.key"),
    ],
};
