//! The Redis protocol, RESP2 and RESP3.
//!
//! bytes → command → decide → reply: `connection` reads and writes, `frame` and `inline` find commands in the bytes, `batch`
//! executes the commands of one read, `command` has the table of commands and finds the route of each, and `reply` encodes.
//! `throttle_batch` collects `CL.THROTTLE` commands and `throttle` decides them together; `rule_commands` has the commands about
//! rules of the policy; the other commands are those that clients send when they connect.
//!
//! The parser is our own: a command is parsed in place, without an allocation, and its lengths are checked before its bytes
//! are buffered.

mod batch;
mod check_reply;
mod client_state;
mod command;
mod connection;
mod connection_commands;
mod frame;
mod inline;
mod limit_cache;
mod reply;
mod rule_commands;
mod server_commands;
mod throttle;
mod throttle_batch;
mod transaction;

use tidegate_store::Store;
use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) use batch::RespState;
pub use frame::{Arguments, CommandParser, FrameError};

use crate::accept::ServiceConnection;
use connection::RespConnection;

/// Serves a connection until it ends or the service stops.
pub(crate) async fn serve<S, IO>(connection: ServiceConnection<S, IO>)
where
    S: Store + 'static,
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    RespConnection::new(connection).run().await;
}
