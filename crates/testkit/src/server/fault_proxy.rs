//! A TCP proxy that breaks what it forwards.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::AcceptLoop;

/// What a [`FaultProxy`] does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    /// Forwards them.
    Pass,
    /// Keeps them until the mode changes, like a network that loses every packet.
    Blackhole,
    /// Forwards them after this time, in each direction.
    Delay(Duration),
    /// Resets every connection, at once and when it is accepted.
    Reset,
}

/// Forwards connections to one address.
#[derive(Debug)]
pub struct FaultProxy {
    accepting: AcceptLoop,
    mode: watch::Sender<ProxyMode>,
}

impl FaultProxy {
    /// Listens at a free port and forwards everything to `target`.
    pub async fn start(target: SocketAddr) -> Self {
        let (mode, current) = watch::channel(ProxyMode::Pass);
        let accepting = AcceptLoop::start(move |_, stream| forward(stream, target, current.clone())).await;
        Self { accepting, mode }
    }

    /// The same in a thread of its own, for tests without a runtime.
    pub fn start_in_thread(target: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let proxy = runtime.block_on(Self::start(target));
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        proxy
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.accepting.address
    }

    /// Changes what happens with all connections.
    pub fn set(&self, mode: ProxyMode) {
        self.mode.send_replace(mode);
    }
}

async fn forward(client: TcpStream, target: SocketAddr, mode: watch::Receiver<ProxyMode>) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let mut reset = mode.clone();
    let (client_socket, server_socket) = (client, server);
    // Small messages must not wait for acknowledgements.
    let _ = (client_socket.set_nodelay(true), server_socket.set_nodelay(true));
    let _ = (client_socket.set_zero_linger(), server_socket.set_zero_linger());
    let (from_client, to_client) = client_socket.into_split();
    let (from_server, to_server) = server_socket.into_split();
    tokio::select! {
        () = copy(from_client, to_server, mode.clone()) => {}
        () = copy(from_server, to_client, mode) => {}
        // Dropped sockets without linger send a reset.
        _ = reset.wait_for(|mode| *mode == ProxyMode::Reset) => {}
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut mode: watch::Receiver<ProxyMode>,
) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if mode.wait_for(|mode| *mode != ProxyMode::Blackhole).await.is_err() {
            return;
        }
        let current = *mode.borrow();
        if let ProxyMode::Delay(time) = current {
            tokio::time::sleep(time).await;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
