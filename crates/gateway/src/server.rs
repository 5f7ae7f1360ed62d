//! All cores together.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use thiserror::Error;
use tidegate_limiter::Limiter;
use tidegate_policy::Active;
use tidegate_store::{Store, StoreError};
use tidegate_telemetry::{Kind, Page, Reader, Telemetry};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;

use crate::conn::connection::{self, Client, Speaking};
use crate::conn::connection_limit::{Guests, Place};
use crate::conn::listener::Listener;
use crate::resource_limits::Bounds;
use crate::snapshot::{Live, LiveError};
use crate::upstream::{Connector, TlsError, health};
use crate::worker::{Core, Shared};

/// When descriptors run out, accepting again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often a core that drains looks whether it is done.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// The reverse proxy: a limiter, the upstreams of its policy, and cores that serve requests.
#[derive(Debug)]
pub struct Gateway<S> {
    live: Arc<ArcSwap<Live>>,
    shared: Shared<S>,
    /// Held while a policy is replaced.
    replacing: Mutex<()>,
    connector: Connector,
    bounds: Bounds,
    guests: Arc<Guests>,
}

/// Why a gateway cannot start.
#[derive(Debug, Error)]
pub enum GatewayError {
    /// Its policy cannot be served.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// The store cannot count under the limits of its policy.
    #[error(transparent)]
    Limits(#[from] StoreError),
    /// TLS towards upstreams cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A core cannot start.
    #[error("cannot start a core")]
    Core(#[from] io::Error),
}

impl<S: Store + 'static> Gateway<S> {
    /// A gateway that asks `limiter` and serves the upstreams of its policy.
    pub fn new(limiter: Arc<Limiter<S>>, telemetry: Telemetry, bounds: Bounds) -> Result<Self, GatewayError> {
        let live = Live::new(limiter.policy(), None, telemetry.metrics())?;
        Ok(Self {
            live: Arc::new(ArcSwap::from_pointee(live)),
            shared: Shared { limiter, telemetry },
            replacing: Mutex::default(),
            connector: Connector::new(bounds.connect, &RootCertStore::empty())?,
            guests: Guests::new(bounds.connections, bounds.connections_per_address),
            bounds,
        })
    }

    /// The limiter.
    pub fn limiter(&self) -> &Arc<Limiter<S>> {
        &self.shared.limiter
    }

    /// What is counted, and what is known of connections and upstreams.
    pub fn page(&self, reader: Reader) -> Page {
        let mut page = self.shared.telemetry.page(reader, self.shared.limiter.clock().now());
        let open = self.connections();
        page.single("tidegate_connections_open", Kind::Gauge, "Connections of clients that are open.", open);
        self.live.load().write(&mut page);
        page
    }

    /// Puts another policy in force, whole or not at all. Requests under way keep theirs; counters stay.
    pub fn replace(&self, active: Active) -> Result<(), GatewayError> {
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let limiter = &self.shared.limiter;
        let prepared = limiter.prepare(active)?;
        let policy = Arc::clone(prepared.policy());
        let live = Live::new(policy, Some(&self.live.load()), self.shared.telemetry.metrics())?;
        limiter.activate(prepared);
        self.live.store(Arc::new(live));
        Ok(())
    }

    /// How many clients are connected.
    pub fn connections(&self) -> usize {
        self.guests.count()
    }

    /// Starts a thread for each core. They end when `stop` turns true and all requests under way have ended, or
    /// `drain` later.
    pub fn start(
        &self,
        listeners: &[Listener],
        stop: &watch::Receiver<bool>,
        drain: Duration,
    ) -> Result<Vec<JoinHandle<()>>, GatewayError> {
        let cores = listeners.iter().map(|listener| listener.sockets.len()).max().unwrap_or_default();
        (0..cores).map(|core| self.start_core(core, listeners, stop, drain)).collect()
    }

    fn start_core(
        &self,
        number: usize,
        listeners: &[Listener],
        stop: &watch::Receiver<bool>,
        drain: Duration,
    ) -> Result<JoinHandle<()>, GatewayError> {
        let mut doors = Vec::new();
        for listener in listeners {
            if let Some(socket) = listener.sockets.get(number) {
                doors.push((socket.try_clone()?, listener.tls.clone()));
            }
        }
        let (live, shared) = (Arc::clone(&self.live), self.shared.clone());
        let (connector, bounds, guests) = (self.connector.clone(), self.bounds, Arc::clone(&self.guests));
        let stop = stop.clone();
        let thread = std::thread::Builder::new().name(format!("core-{number}"));
        let (starts, started) = std::sync::mpsc::sync_channel(1);
        let handle = thread.spawn(move || {
            // Made here, where it stays: nothing of a request changes threads.
            let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(starts.send(Err(error))),
            };
            // If nobody listens any more, it is to stop, and finds out.
            let _ = starts.send(Ok(()));
            runtime.block_on(async {
                if number == 0 {
                    let log = shared.telemetry.log().clone();
                    tokio::task::spawn_local(health::watch(Arc::clone(&live), connector.clone(), log));
                }
                let core = Rc::new(Core::new(live, shared, connector, bounds, stop.clone()));
                run(core, doors, guests, stop, drain).await;
            });
        })?;
        // Who cannot say that it started has not.
        started.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(handle)
    }
}

type Door = (std::net::TcpListener, Option<tokio_rustls::TlsAcceptor>);

async fn run<S: Store + 'static>(
    core: Rc<Core<S>>,
    doors: Vec<Door>,
    guests: Arc<Guests>,
    mut stop: watch::Receiver<bool>,
    drain: Duration,
) {
    let inside = Rc::new(());
    tokio::task::spawn_local(Rc::clone(&core.rounds).go(core.bounds, stop.clone()));
    tokio::task::spawn_local(Rc::clone(&core.transport).run());
    for door in doors {
        let accepting = accept(Rc::clone(&core), door, Arc::clone(&guests), stop.clone(), Rc::clone(&inside));
        tokio::task::spawn_local(accepting);
    }
    // If nobody can stop it any more, it is to stop.
    let _ = stop.wait_for(|stop| *stop).await;
    core.begin_stopping();
    let drained = async {
        while Rc::strong_count(&inside) > 1 {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    };
    // What is still under way then is cut off.
    let _ = tokio::time::timeout(drain, drained).await;
}

/// Lets connections in until `stop`.
async fn accept<S: Store + 'static>(
    core: Rc<Core<S>>,
    (socket, tls): Door,
    guests: Arc<Guests>,
    mut stop: watch::Receiver<bool>,
    inside: Rc<()>,
) {
    let Ok(listener) = tokio::net::TcpListener::from_std(socket) else { return };
    let speaking = Rc::new(Speaking::new(&core.bounds));
    let let_in = {
        move |stream, peer: SocketAddr| {
            // Who finds no room is let go at once: a reset costs less than a wait.
            let guest = guests.enter(peer.ip());
            core.teller.connected(guest.is_some());
            let Some(guest) = guest else { return };
            let client = Client { stream, peer, place: Place::new(guest, &inside) };
            connection::serve(Rc::clone(&core), Rc::clone(&speaking), client, tls.clone());
        }
    };
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => let_in(stream, peer),
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
    // Who has connected by now counts on an answer; closing the socket would reset them.
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, peer)) = listener.accept() {
        if let Ok(stream) = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
            let_in(stream, peer);
        }
    }
}
