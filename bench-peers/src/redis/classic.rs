//! The peer: one EVALSHA per decision with the classic token-bucket script, all callers on one multiplexed connection.

use redis::Script;
use redis::aio::MultiplexedConnection;

/// A caller of the classic script.
#[derive(Clone)]
pub(crate) struct Classic {
    connection: MultiplexedConnection,
    script: Script,
}

impl Classic {
    pub(crate) async fn connect(client: &redis::Client) -> anyhow::Result<Self> {
        let connection = client.get_multiplexed_async_connection().await?;
        Ok(Self { connection, script: Script::new(include_str!("classic.lua")) })
    }

    /// Decides one request of `client` under `capacity` per `seconds`.
    pub(crate) async fn decide(
        &mut self,
        client: usize,
        capacity: u64,
        seconds: u64,
    ) -> anyhow::Result<bool> {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let rate = capacity as f64 / seconds as f64;
        let mut call = self.script.key(format!("ratelimit:{{user:{client:07}}}"));
        let (allowed, _tokens): (i64, String) =
            call.arg(rate).arg(capacity).arg(1).invoke_async(&mut self.connection).await?;
        Ok(allowed == 1)
    }
}
