//! Sockets that whoever started us has opened: systemd's socket activation, and whatever speaks the same way.
//!
//! The service manager keeps them open over restarts, so no connection is refused while nobody serves.

use std::net::TcpListener;

use anyhow::{Context, bail};
use listenfd::ListenFd;
use tidegate_gateway::Listener;

use super::takeover::take;

/// Listening sockets that were given to this process.
pub(crate) struct InheritedSockets(Vec<TcpListener>);

impl InheritedSockets {
    /// What `LISTEN_FDS` and `LISTEN_PID` say; nothing if they speak of another process or are not there.
    pub(crate) fn from_environment() -> anyhow::Result<Self> {
        let mut fds = ListenFd::from_env();
        let mut sockets = Vec::new();
        for index in 0..fds.len() {
            let socket = fds.take_tcp_listener(index).with_context(|| {
                format!("socket {index} of LISTEN_FDS is no TCP socket; use ListenStream= with an address")
            })?;
            sockets.extend(socket);
        }
        Ok(Self(sockets))
    }

    /// Takes the sockets that listen at `address`, if any do.
    pub(crate) fn take(&mut self, address: &str, cores: usize) -> anyhow::Result<Option<Listener>> {
        let taken = take(&mut self.0, address);
        if taken.is_empty() {
            return Ok(None);
        }
        Ok(Some(Listener::adopt(taken, cores).context("cannot listen on the sockets of LISTEN_FDS")?))
    }

    /// A socket that nobody serves would let clients wait for ever.
    pub(crate) fn must_be_none(&self) -> anyhow::Result<()> {
        let Some(socket) = self.0.first() else { return Ok(()) };
        let address = socket.local_addr().map_or_else(|_| "an address".to_owned(), |at| at.to_string());
        bail!(
            "LISTEN_FDS has a socket for {address}, which is not listened at; give `listen: {address}` in the \
             policy, or --listen {address}"
        )
    }
}
