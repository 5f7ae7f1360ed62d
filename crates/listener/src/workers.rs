//! One thread for each worker, with a runtime and a socket of each listener of its own: no part of a request changes threads.

use std::io;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::Listener;

/// Pause after a failed accept. Without it the loop would spin while no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why a worker cannot start.
#[derive(Debug, Error)]
pub enum WorkerStartError {
    /// It cannot use its socket of a listener.
    #[error("{worker} cannot listen on {address}")]
    Listener {
        /// The name of its thread.
        worker: String,
        /// The address of the listener.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The system cannot start its thread.
    #[error("cannot start the thread of {worker}")]
    Thread {
        /// The name of the thread.
        worker: String,
        /// The cause.
        source: io::Error,
    },
    /// Its async runtime cannot start.
    #[error("cannot start the runtime of {worker}")]
    Runtime {
        /// The name of its thread.
        worker: String,
        /// The cause.
        source: io::Error,
    },
    /// Its thread ended before it had started.
    #[error("the thread of {worker} failed to start")]
    Ended {
        /// The name of the thread.
        worker: String,
    },
}

/// The socket that a worker has of a listener.
pub struct WorkerSocket<T = TcpListener> {
    /// The position of the listener among those of the server.
    pub listener: usize,
    socket: T,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
}

/// Starts one thread for each worker. `prepare` makes what a worker does, given its number; it then runs on the thread, with a
/// socket of each listener that has one for the worker.
pub fn start_workers<W, F>(
    name: &str,
    listeners: &[&Listener],
    mut prepare: impl FnMut(usize) -> W,
) -> Result<Vec<JoinHandle<()>>, WorkerStartError>
where
    W: FnOnce(Vec<WorkerSocket>) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    let workers = listeners.iter().map(|listener| listener.sockets().len()).max().unwrap_or_default();
    let start =
        |worker| start_worker(format!("{name}-{worker}"), sockets_of(worker, listeners), prepare(worker));
    (0..workers).map(start).collect()
}

type OwnSockets = Vec<WorkerSocket<io::Result<std::net::TcpListener>>>;

fn sockets_of(worker: usize, listeners: &[&Listener]) -> OwnSockets {
    let socket = |(position, listener): (usize, &&Listener)| {
        let socket = listener.sockets().get(worker)?.try_clone();
        let tls = listener.tls().cloned();
        Some(WorkerSocket { listener: position, socket, address: listener.address(), tls })
    };
    listeners.iter().enumerate().filter_map(socket).collect()
}

fn start_worker<W, F>(worker: String, sockets: OwnSockets, run: W) -> Result<JoinHandle<()>, WorkerStartError>
where
    W: FnOnce(Vec<WorkerSocket>) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    let (starting, started) = std::sync::mpsc::sync_channel(1);
    let name = worker.clone();
    let handle = std::thread::Builder::new().name(worker.clone()).spawn(move || {
        let runtime = match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
            Ok(runtime) => runtime,
            Err(source) => {
                return drop(starting.send(Err(WorkerStartError::Runtime { worker: name, source })));
            }
        };
        runtime.block_on(async {
            let sockets: Result<_, _> = sockets.into_iter().map(|socket| socket.register(&name)).collect();
            let sockets = match sockets {
                Ok(sockets) => sockets,
                Err(error) => return drop(starting.send(Err(error))),
            };
            // A closed channel means that the start failed elsewhere; the server then stops this worker.
            let _ = starting.send(Ok(()));
            run(sockets).await;
        });
    });
    let handle = handle.map_err(|source| WorkerStartError::Thread { worker: worker.clone(), source })?;
    // A closed channel means the thread failed to start.
    started.recv().unwrap_or(Err(WorkerStartError::Ended { worker }))?;
    Ok(handle)
}

impl WorkerSocket<io::Result<std::net::TcpListener>> {
    /// Registers the socket with the runtime of this thread.
    fn register(self, worker: &str) -> Result<WorkerSocket, WorkerStartError> {
        let Self { listener, socket, address, tls } = self;
        let failed = |source| WorkerStartError::Listener { worker: worker.to_owned(), address, source };
        let socket = socket.and_then(TcpListener::from_std).map_err(failed)?;
        Ok(WorkerSocket { listener, socket, address, tls })
    }
}

impl WorkerSocket {
    /// How connections use TLS, if they do.
    pub fn tls(&self) -> Option<&TlsAcceptor> {
        self.tls.as_ref()
    }

    /// Serves connections until `stop` turns true, and then those that were already made.
    pub async fn accept(self, mut stop: watch::Receiver<bool>, mut serve: impl FnMut(TcpStream, SocketAddr)) {
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                accepted = self.socket.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => serve(stream, peer),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
        // Drain the accept queue; closing the socket would reset these connections.
        let Ok(socket) = self.socket.into_std() else { return };
        while let Ok((stream, peer)) = socket.accept() {
            if let Ok(stream) = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
                serve(stream, peer);
            }
        }
    }
}
