//! Socket activation as in systemd: uses listening sockets that the service manager has opened.
//!
//! The service manager keeps the sockets open during restarts, so no connection is rejected meanwhile.

use std::net::TcpListener;

use anyhow::{Context, bail};
use listenfd::ListenFd;
use tidegate_listener::Listener;

use super::takeover::take_matching;

/// Listening sockets that the service manager passed to this process.
pub(crate) struct InheritedSockets(Vec<TcpListener>);

impl InheritedSockets {
    /// Reads `LISTEN_FDS` and `LISTEN_PID`. There are no sockets if these are unset or meant for another process.
    pub(crate) fn from_environment() -> anyhow::Result<Self> {
        let mut fds = ListenFd::from_env();
        let (count, mut sockets) = (fds.len(), Vec::new());
        for index in 0..count {
            let socket = fds.take_tcp_listener(index).with_context(|| {
                format!(
                    "socket {} of LISTEN_FDS={count} is not a listening TCP socket; use ListenStream= with an address",
                    index + 1
                )
            })?;
            sockets.extend(socket);
        }
        Ok(Self(sockets))
    }

    /// Takes the sockets that listen on `address`, if there are any.
    pub(crate) fn take(&mut self, address: &str, cores: usize) -> anyhow::Result<Option<Listener>> {
        let taken = take_matching(&mut self.0, address);
        if taken.is_empty() {
            return Ok(None);
        }
        Ok(Some(Listener::adopt(taken, cores).context("cannot use the sockets of LISTEN_FDS")?))
    }

    /// Fails if a socket is unused: its clients would wait forever.
    pub(crate) fn ensure_all_used(&self) -> anyhow::Result<()> {
        let Some(socket) = self.0.first() else { return Ok(()) };
        let address = socket
            .local_addr()
            .map_or_else(|_| "an unknown address".to_owned(), |address| address.to_string());
        bail!(
            "LISTEN_FDS has a socket for {address}, but nothing listens there; add `listen: {address}` to the \
             policy, or pass --listen {address}"
        )
    }
}
