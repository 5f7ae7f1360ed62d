//! The configuration of the store.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use tidegate_core::{Coordination, Ratio, StoreFailureMode};

use crate::endpoint::Endpoint;

/// The configuration of a [`RedisStore`](crate::RedisStore).
#[derive(Clone)]
pub struct RedisConfig {
    /// Where Redis is.
    pub endpoint: Endpoint,
    /// The password, if it is not in the URL.
    pub password: Option<String>,
    /// Certificates for TLS, in PEM format.
    pub tls: TlsMaterial,
    /// The start of all key names.
    pub prefix: String,
    /// The secret for the hashes of client identifiers; the same on every node.
    pub secret: Vec<u8>,
    /// How long a request to Redis may take; a decision that needs several in turn may wait this long for each.
    pub timeout: Duration,
    /// How often nodes exchange counts under [`Coordination::Sync`].
    pub sync_interval: Duration,
    /// The coordination of rules without settings of their own.
    pub coordination: Coordination,
    /// The failure mode of rules without settings of their own.
    pub on_store_failure: StoreFailureMode,
    /// The part of the limit that all nodes together enforce while Redis fails.
    pub fallback_share: Ratio,
    /// The number of nodes, for [`Coordination::Static`] and until the live nodes are known.
    pub nodes: NonZeroU32,
    /// The maximum memory of counters in this process, in bytes.
    pub max_memory: usize,
    /// The clock that counts.
    pub time: TimeSource,
}

/// Certificates for TLS, in PEM format.
#[derive(Clone, Default)]
pub struct TlsMaterial {
    /// The certificate authorities to trust instead of those of the system.
    pub ca: Option<Vec<u8>>,
    /// The client's certificate and private key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

/// The clock that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSource {
    /// The Redis server's clock: all nodes agree.
    #[default]
    Server,
    /// The caller's `now`, to replay traces.
    Caller,
}

impl RedisConfig {
    /// The default timeout of a request to Redis.
    pub const TIMEOUT: Duration = Duration::from_millis(20);
    /// The default interval between exchanges of counts.
    pub const SYNC_INTERVAL: Duration = Duration::from_secs(1);
    /// The default start of key names.
    pub const PREFIX: &'static str = "tg:";

    /// The default configuration for `endpoint`.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            password: None,
            tls: TlsMaterial::default(),
            prefix: Self::PREFIX.to_owned(),
            secret: Vec::new(),
            timeout: Self::TIMEOUT,
            sync_interval: Self::SYNC_INTERVAL,
            coordination: Coordination::default(),
            on_store_failure: StoreFailureMode::default(),
            fallback_share: Ratio::from_percent(50),
            nodes: NonZeroU32::MIN,
            max_memory: 64 << 20,
            time: TimeSource::Server,
        }
    }
}

impl fmt::Debug for RedisConfig {
    /// Without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("endpoint", &self.endpoint)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("coordination", &self.coordination)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsMaterial")
            .field("ca", &self.ca.is_some())
            .field("client", &self.client.is_some())
            .finish()
    }
}
