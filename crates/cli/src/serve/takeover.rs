//! A new process in the place of an old one, without a refused connection.
//!
//! The old one listens on a Unix socket. The new one connects to it, gets the listening sockets themselves, starts to
//! serve, and says so; only then does the old one stop accepting and drain. At no moment is nobody listening: both
//! hold the same sockets, and what waits in their queues is accepted by either.

use std::fs::Permissions;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tidegate_admin::AdminState;
use tidegate_gateway::Listener;
use tokio::sync::mpsc;

use super::admin::AdminBackend;

/// The kernel passes at most so many descriptors at once.
const MOST: usize = 250;
/// A successor that takes longer to start is not coming.
const PATIENCE: Duration = Duration::from_mins(1);
const GREETING: &[u8; 8] = b"tidegate";

/// Sockets taken from a process that still serves. It goes on until [`Predecessor::dismiss`] is called.
pub(crate) struct Predecessor {
    stream: UnixStream,
    sockets: Vec<TcpListener>,
}

impl Predecessor {
    /// The process that waits at `path`, if there is one.
    pub(crate) fn at(path: &Path) -> anyhow::Result<Option<Self>> {
        let Ok(stream) = UnixStream::connect(path) else { return Ok(None) };
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut greeting = [0; GREETING.len()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&stream, &mut [IoSliceMut::new(&mut greeting)], &mut control, RecvFlags::CMSG_CLOEXEC)
                .with_context(|| format!("the process at {} hands nothing over", path.display()))?;
        if received.bytes != GREETING.len() || greeting != *GREETING {
            bail!("what listens at {} is not tidegate", path.display());
        }
        let sockets = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(sockets) => sockets.map(TcpListener::from).collect(),
            _ => Vec::new(),
        });
        Ok(Some(Self { sockets: sockets.collect(), stream }))
    }

    /// Takes the sockets that listen at `address`, if any do.
    pub(crate) fn take(&mut self, address: &str, cores: usize) -> anyhow::Result<Option<Listener>> {
        let taken = take(&mut self.sockets, address);
        if taken.is_empty() {
            return Ok(None);
        }
        let adopted = Listener::adopt(taken, cores);
        Ok(Some(adopted.context("cannot listen on sockets that were handed over")?))
    }

    /// Takes one socket that listens at `address`, if any does.
    pub(crate) fn take_one(&mut self, address: &str) -> Option<TcpListener> {
        take(&mut self.sockets, address).pop()
    }

    /// Tells the old process that it may go.
    pub(crate) fn dismiss(mut self) -> anyhow::Result<()> {
        self.stream.write_all(b"!").context("the old process is gone")
    }
}

/// Takes those out of `sockets` that listen at `address`.
pub(super) fn take(sockets: &mut Vec<TcpListener>, address: &str) -> Vec<TcpListener> {
    let wanted: Vec<_> = std::net::ToSocketAddrs::to_socket_addrs(address).into_iter().flatten().collect();
    let is_wanted = |socket: &TcpListener| socket.local_addr().is_ok_and(|at| wanted.contains(&at));
    let (taken, left) = std::mem::take(sockets).into_iter().partition(is_wanted);
    *sockets = left;
    taken
}

/// What a successor gets.
pub(crate) fn sockets(listeners: &[Listener], admin: Option<&TcpListener>) -> anyhow::Result<Vec<OwnedFd>> {
    let sockets: Vec<OwnedFd> = listeners
        .iter()
        .flat_map(Listener::sockets)
        .map(AsFd::as_fd)
        .chain(admin.map(AsFd::as_fd))
        .map(|socket| socket.try_clone_to_owned())
        .collect::<Result<_, _>>()?;
    if sockets.len() > MOST {
        bail!("{} sockets are more than can be handed over; use fewer --cores", sockets.len());
    }
    Ok(sockets)
}

/// Waits at `path` for a successor. What is received says that one has taken over.
///
/// The durable file goes over first: what was acknowledged is in it, and from then on nothing is acknowledged here. A
/// successor that does not come after all leaves it as it was, and it is taken back.
pub(crate) fn await_successor(
    path: &Path,
    sockets: Vec<OwnedFd>,
    admin_state: Arc<AdminState<AdminBackend>>,
) -> anyhow::Result<mpsc::UnboundedReceiver<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    // What is left there belongs to a process that has gone, or has handed over.
    let _ = std::fs::remove_file(path);
    let at = || format!("cannot wait for a successor at {}", path.display());
    let listener = UnixListener::bind(path).with_context(at)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).with_context(at)?;
    let (taken_over, told) = mpsc::unbounded_channel();
    std::thread::Builder::new().name("takeover".to_owned()).spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // If nobody keeps the file any more, there is nothing to let go of.
            let _ = runtime.block_on(admin_state.release());
            if hand_over(&stream, &sockets).is_ok() {
                // The receiver is gone only when the process ends.
                let _ = taken_over.send(());
                return;
            }
            // If it cannot be had yet, whoever wants to write next opens it.
            let _ = runtime.block_on(admin_state.resume());
        }
    })?;
    Ok(told)
}

/// Hands the sockets over and waits until they are served.
fn hand_over(mut stream: &UnixStream, sockets: &[OwnedFd]) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let borrowed: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        bail!("too many sockets");
    }
    sendmsg(stream, &[IoSlice::new(GREETING)], &mut control, SendFlags::empty())?;
    let mut ready = [0];
    stream.read_exact(&mut ready)?;
    Ok(())
}
