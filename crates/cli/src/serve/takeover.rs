//! Replaces a running process by a new one without rejecting connections.
//!
//! The old process listens on a Unix socket. The new one connects to it, receives the listening sockets, starts to serve and
//! confirms that. Only then does the old process stop accepting and drain. Both share the same sockets meanwhile, so either
//! one accepts the connections in their queues.

use std::fs::Permissions;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tidegate_admin::AdminState;
use tidegate_listener::Listener;
use tokio::sync::mpsc;

use super::admin::AdminBackend;
use super::owner::is_trusted_peer;

/// The kernel passes at most 253 descriptors in one message.
const MAX_SOCKETS: usize = 250;
/// A successor that takes longer to start has failed.
const HANDOVER_TIMEOUT: Duration = Duration::from_mins(1);
const GREETING: &[u8; 8] = b"tidegate";

/// A running process and the sockets received from it. It keeps serving until [`Predecessor::confirm`] is called.
pub(crate) struct Predecessor {
    stream: UnixStream,
    sockets: Vec<TcpListener>,
}

impl Predecessor {
    /// Connects to the process that listens at `path`, if there is one.
    pub(crate) fn connect(path: &Path) -> anyhow::Result<Option<Self>> {
        let is_other_file = std::fs::metadata(path).is_ok_and(|metadata| !metadata.file_type().is_socket());
        if is_other_file {
            bail!("--takeover {}: the file exists and is not a socket; choose another path", path.display());
        }
        let stream = match UnixStream::connect(path) {
            Ok(stream) => stream,
            // No process listens: the file is missing, or left over.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            Err(error) => return Err(describe_error(&error, path)),
        };
        if !is_trusted_peer(&stream)? {
            bail!(
                "--takeover {}: the process that listens there runs as another user, so its sockets are not used; choose a \
                 path in a folder that only this user can write to",
                path.display()
            );
        }
        stream.set_read_timeout(Some(HANDOVER_TIMEOUT))?;
        let mut greeting = [0; GREETING.len()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = [IoSliceMut::new(&mut greeting)];
        // A signal interrupts a call that has a timeout.
        let received = retry_on_intr(|| recvmsg(&stream, &mut buffer, &mut control, RecvFlags::CMSG_CLOEXEC))
            .with_context(|| {
                format!(
                    "cannot take over from the process that listens at {}: it sent no sockets",
                    path.display()
                )
            })?;
        if received.bytes != GREETING.len() || greeting != *GREETING {
            bail!(
                "the process that listens at {} is not tidegate; use another --takeover socket",
                path.display()
            );
        }
        let sockets = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(sockets) => sockets.map(TcpListener::from).collect(),
            _ => Vec::new(),
        });
        Ok(Some(Self { sockets: sockets.collect(), stream }))
    }

    /// Takes the sockets that listen on `address`, if there are any.
    pub(crate) fn take(&mut self, address: &str, cores: usize) -> anyhow::Result<Option<Listener>> {
        let taken = take_matching(&mut self.sockets, address);
        if taken.is_empty() {
            return Ok(None);
        }
        let adopted = Listener::adopt(taken, cores);
        Ok(Some(adopted.context("cannot use the sockets of the old process")?))
    }

    /// Takes one socket that listens on `address`, if there is one.
    pub(crate) fn take_one(&mut self, address: &str) -> Option<TcpListener> {
        take_matching(&mut self.sockets, address).pop()
    }

    /// Confirms that this process serves, so the old one can stop.
    pub(crate) fn confirm(mut self) -> anyhow::Result<()> {
        self.stream.write_all(b"!").context("cannot notify the old process: it has exited")
    }
}

/// Removes and returns the `sockets` that listen on `address`.
pub(super) fn take_matching(sockets: &mut Vec<TcpListener>, address: &str) -> Vec<TcpListener> {
    let wanted: Vec<_> = std::net::ToSocketAddrs::to_socket_addrs(address).into_iter().flatten().collect();
    let is_wanted = |socket: &TcpListener| socket.local_addr().is_ok_and(|at| wanted.contains(&at));
    let (taken, left) = std::mem::take(sockets).into_iter().partition(is_wanted);
    *sockets = left;
    taken
}

/// Duplicates the sockets for a successor.
pub(crate) fn duplicate_sockets<'l>(
    listeners: impl Iterator<Item = &'l Listener>,
    admin: Option<&'l TcpListener>,
) -> anyhow::Result<Vec<OwnedFd>> {
    let sockets: Vec<OwnedFd> = listeners
        .flat_map(Listener::sockets)
        .map(AsFd::as_fd)
        .chain(admin.map(AsFd::as_fd))
        .map(|socket| socket.try_clone_to_owned())
        .collect::<Result<_, _>>()?;
    if sockets.len() > MAX_SOCKETS {
        bail!(
            "too many sockets for --takeover: {} (maximum {MAX_SOCKETS}); use fewer --cores",
            sockets.len()
        );
    }
    Ok(sockets)
}

/// Listens at `path` for a successor. The receiver gets a message when one has taken over.
///
/// The durable file is released first. It contains all acknowledged changes, and this process acknowledges none afterwards. If
/// the successor fails to start, this process opens the file again.
pub(crate) fn listen_for_successor(
    path: &Path,
    sockets: Vec<OwnedFd>,
    admin_state: Arc<AdminState<AdminBackend>>,
) -> anyhow::Result<mpsc::UnboundedReceiver<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    // An existing socket file belongs to a process that has exited or has handed over.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(|error| describe_error(&error, path))?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))
        .map_err(|error| describe_error(&error, path))?;
    let (taken_over, receiver) = mpsc::unbounded_channel();
    std::thread::Builder::new().name("takeover".to_owned()).spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // Another user can connect before the permissions of the socket are set.
            if !is_trusted_peer(&stream).unwrap_or(false) {
                tracing::warn!(event = "takeover_refused", "a process of another user tried to take over");
                continue;
            }
            // An error means that the file is already released.
            let _ = runtime.block_on(admin_state.release());
            if hand_over(&stream, &sockets).is_ok() {
                // The receiver is dropped only when the process ends.
                let _ = taken_over.send(());
                return;
            }
            // If this fails, the next write opens the file.
            let _ = runtime.block_on(admin_state.resume());
        }
    })?;
    Ok(receiver)
}

/// Describes why the socket at `path` cannot be used, and how to fix it.
fn describe_error(error: &std::io::Error, path: &Path) -> anyhow::Error {
    let (reason, hint) = match error.kind() {
        ErrorKind::NotFound => ("its folder does not exist".to_owned(), "create the folder"),
        ErrorKind::PermissionDenied => (
            "permission denied".to_owned(),
            "choose a folder that this user can write to; both processes need the same user",
        ),
        // Only the length of the path is checked before the call.
        ErrorKind::InvalidInput => ("the path is too long".to_owned(), "choose a path of at most 100 bytes"),
        _ => (error.to_string(), "choose another path"),
    };
    anyhow!("cannot use --takeover {}: {reason}; {hint}", path.display())
}

/// Sends the sockets and waits until the successor serves.
fn hand_over(mut stream: &UnixStream, sockets: &[OwnedFd]) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(HANDOVER_TIMEOUT))?;
    let borrowed: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        bail!("too many sockets");
    }
    retry_on_intr(|| sendmsg(stream, &[IoSlice::new(GREETING)], &mut control, SendFlags::empty()))?;
    let mut ready = [0];
    stream.read_exact(&mut ready)?;
    Ok(())
}
