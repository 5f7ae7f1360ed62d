//! The part of the table for `store`, and the keys of a rule that say how nodes share its counters.

use tidegate_core::{Coordination, StoreFailureMode};

use super::Shape::{Choice, Count, Duration, Object, Percent, Size, Text};
use super::names::FILE;

shared_keys! {
    /// How nodes share this limit, if not as `store.coordination` says. A change starts with empty counters.
    RULE_COORDINATION = coordination: Choice(&Coordination::NAMES), example "lease", default "that of `store`";

    /// What happens to this limit while Redis fails, if not what `store.on_store_failure` says. An error with `coordination:
    /// static`, which does not use Redis.
    RULE_FAILURE_MODE = on_store_failure: Choice(&StoreFailureMode::NAMES), example "deny", default "that of `store`";
}

mappings! {
    /// Where counters, bans and overrides are stored, and how several nodes share them. See docs/distributed.md.
    STORE: "`store`" at "store" {
        /// Where counters are stored: `memory` for this process only, or Redis or Valkey to share them between nodes: `redis://`,
        /// `redis-sentinel://`, `redis-cluster://`; with TLS `rediss://`, `rediss-sentinel://`, `rediss-cluster://`. `valkey` can
        /// replace `redis`. Sentinel and cluster URLs can list several hosts, separated by commas, which need quotes inside
        /// braces; a Sentinel URL ends with the name of the service.
        url: Text("store URL"), example "redis://127.0.0.1:6379", default "memory";
        /// How nodes share limits. `central`: Redis makes every decision; exact. `lease`: a node leases blocks of units and
        /// spends them without asking; never admits too much. `sync`: a node counts alone and exchanges counts every
        /// `sync_interval`; may admit more, within a bound. `static`: each node enforces the limit divided by `nodes`, without
        /// Redis. `lease` and `sync` support `token_bucket`, `fixed_window` and `sliding_window_counter`.
        coordination: Choice(&Coordination::NAMES), example "lease", default "central";
        /// How long a request to Redis may take; a decision that needs several in turn may wait this long for each.
        timeout: Duration, example "20ms", default "20ms";
        /// How often nodes exchange counts with `coordination: sync`.
        sync_interval: Duration, example "1s", default "1s";
        /// What happens to limits while Redis fails. `local`: each node enforces its part of `fallback_share`. `allow`: requests
        /// pass. `deny`: requests get 503.
        on_store_failure: Choice(&StoreFailureMode::NAMES), example "local", default "local";
        /// The part of a limit that all nodes together admit while Redis fails (`on_store_failure: local`).
        fallback_share: Percent, example "50%", default "50%";
        /// The number of nodes: divides the limits of `coordination: static`, and the fallback until the live nodes are known.
        /// Required with `coordination: static`.
        nodes: Count(1), example "3", default "1";
        /// A file with at least 16 bytes, the same on every node. It keys the hashes by which Redis knows clients and encrypts
        /// bans and overrides there, so that a copy of Redis reveals no API key.
        secret_file: FILE, example "store.secret";
        /// A file with the password for Redis, instead of a password in the URL.
        password_file: FILE, example "redis.password";
        /// The start of all key and channel names, so that several fleets can use one Redis.
        prefix: Text("text"), example "\"tg:\"", default "\"tg:\"";
        /// Certificates for the connection to Redis, with a `rediss` or `valkeys` URL.
        tls: Object(&STORE_TLS), example "{ ca: redis-ca.pem }";
        /// The maximum memory for the counters of this process.
        max_memory: Size, example "64MiB", default "64MiB";
        /// The directory where bans and overrides are persisted. The path is relative to the policy's directory. A missing
        /// directory is created.
        directory: Text("directory"),
            example "/var/lib/tidegate", default "next to the policy, its name with the extension `.state`";
    }

    /// Certificates for the connection to Redis, in PEM format.
    STORE_TLS: "`tls`" at "store.tls" {
        /// The certificate authorities to trust instead of those of the system.
        ca: FILE, example "redis-ca.pem";
        /// The client certificate, followed by its intermediate certificates; requires `key`.
        cert: FILE, example "client.pem";
        /// The private key of the client certificate.
        key: FILE, example "client.key";
    }
}
