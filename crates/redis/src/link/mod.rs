//! The connection to Redis: sends operations and returns their replies.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::ConnectionManager;
use tidegate_core::Timestamp;
use tidegate_store::{Clock, StoreError};
use tokio::sync::{OnceCell, mpsc};

use crate::config::{RedisConfig, TimeSource};
use crate::endpoint::Deployment;
use crate::key::KeyNames;
use crate::operation::{Operation, OperationReply};
use crate::script;

/// The connection to Redis.
#[derive(Debug)]
pub(crate) struct Link {
    config: RedisConfig,
    names: KeyNames,
    clock: Arc<dyn Clock>,
    connection: OnceCell<ConnectionManager>,
}

impl Link {
    /// A link that connects when it is first used.
    pub(crate) fn new(config: RedisConfig, clock: Arc<dyn Clock>) -> Self {
        let names = KeyNames::new(&config.prefix, &config.secret);
        Self { config, names, clock, connection: OnceCell::new() }
    }

    /// Derives the names of keys.
    pub(crate) fn names(&self) -> &KeyNames {
        &self.names
    }

    /// The configuration.
    pub(crate) fn config(&self) -> &RedisConfig {
        &self.config
    }

    /// The clock of this process.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Whether keys of different slots need separate operations.
    pub(crate) fn has_slots(&self) -> bool {
        self.config.endpoint.is_cluster()
    }

    /// Runs `operation` within the timeout. An operation whose result is unknown is never sent again. `now` counts only with
    /// [`TimeSource::Caller`].
    pub(crate) async fn call(
        &self,
        operation: Operation,
        now: Timestamp,
    ) -> Result<OperationReply, StoreError> {
        let now = match self.config.time {
            TimeSource::Server => None,
            TimeSource::Caller => Some(now),
        };
        let call = script::encode(&[&operation], now)?;
        let mut connection = self.connect().await?;
        let script = script::source(operation.script());
        let mut invocation = script.prepare_invoke();
        for key in &call.keys {
            invocation.key(key);
        }
        for argument in &call.arguments {
            invocation.arg(argument);
        }
        let value = invocation.invoke_async(&mut connection).await.map_err(store_error)?;
        let mut replies = script::decode(&[&operation], &value)?;
        replies.pop().ok_or_else(|| StoreError::Protocol { reason: "no reply to the operation".to_owned() })
    }

    /// Sends a command of the store itself to the server of hash slot `slot`, within the timeout.
    pub(crate) async fn command(&self, _slot: u16, command: &redis::Cmd) -> Result<redis::Value, StoreError> {
        let mut connection = self.connect().await?;
        command.query_async(&mut connection).await.map_err(store_error)
    }

    /// Whether Redis is believed to work: calls are sent to it.
    pub(crate) fn is_available(&self) -> bool {
        true
    }

    /// Runs a background task of the store until the link is dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(task);
    }

    /// Subscribes to a channel, and again whenever the connection was lost.
    pub(crate) fn subscribe(&self, channel: &str) -> mpsc::Receiver<ChannelEvent> {
        let (sender, receiver) = mpsc::channel(1_024);
        let (url, channel) = (self.url(), channel.to_owned());
        self.spawn(async move {
            let Ok(client) = redis::Client::open(url) else { return };
            let Ok(mut subscriber) = client.get_async_pubsub().await else { return };
            if subscriber.subscribe(&channel).await.is_err()
                || sender.send(ChannelEvent::Subscribed).await.is_err()
            {
                return;
            }
            let mut messages = subscriber.into_on_message();
            while let Some(message) = messages.next().await {
                if sender.send(ChannelEvent::Message(message.get_payload_bytes().to_vec())).await.is_err() {
                    return;
                }
            }
            let _ = sender.send(ChannelEvent::Lost).await;
        });
        receiver
    }

    fn url(&self) -> String {
        match &self.config.endpoint.deployment {
            Deployment::Single(address) => format!("redis://{address}"),
            Deployment::Sentinel { .. } | Deployment::Cluster(_) => String::new(),
        }
    }

    async fn connect(&self) -> Result<ConnectionManager, StoreError> {
        let Deployment::Single(address) = &self.config.endpoint.deployment else {
            return Err(StoreError::Protocol { reason: "only a single server is supported".to_owned() });
        };
        let connect = async || {
            let client = redis::Client::open(format!("redis://{address}")).map_err(store_error)?;
            let config =
                redis::aio::ConnectionManagerConfig::new().set_response_timeout(Some(Duration::from_secs(1)));
            ConnectionManager::new_with_config(client, config).await.map_err(store_error)
        };
        self.connection.get_or_try_init(connect).await.cloned()
    }
}

/// What happens on a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChannelEvent {
    /// From now on every message arrives.
    Subscribed,
    /// A message.
    Message(Vec<u8>),
    /// Messages may be missed until the next `Subscribed`.
    Lost,
}

/// An error reply of the server is not an outage: its cause is the script, the user's permissions or the server's version.
fn store_error(error: redis::RedisError) -> StoreError {
    match error.kind() {
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => {
            StoreError::Protocol { reason: format!("{error} (Redis 7.0 or newer is required)") }
        }
        _ => StoreError::Unavailable(Box::new(error)),
    }
}
