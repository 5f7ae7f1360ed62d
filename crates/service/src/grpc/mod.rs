//! Envoy's rate limit service over gRPC.

use tidegate_store::Store;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::accept::ServiceConnection;

/// Serves a connection until it ends or the service stops.
#[expect(clippy::unused_async, reason = "the protocol follows")]
pub(crate) async fn serve<S, IO>(connection: ServiceConnection<S, IO>)
where
    S: Store + 'static,
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    drop(connection);
}
