//! The admin API of a gateway that runs.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, anyhow};
use tidegate_admin::{AdminServer, AdminState, AdminToken, Backend, ReloadError, ReloadReport};
use tidegate_gateway::Gateway;
use tidegate_limiter::Limiter;
use tidegate_policy::{AdminPlan, Plan};
use tidegate_store::{Clock, HeavyKey, MemoryUse};
use tidegate_telemetry::{Exposition, MetricKind, MetricsReader};
use tokio::sync::{mpsc, oneshot, watch};

use super::certificates::Certificates;
use super::source::Source;
use super::state::{self, Kept, State};
use super::store::SelectedStore;
use super::takeover::Predecessor;

/// Somebody wants the policy read again, and to hear how it went.
pub(crate) type ReloadRequest = oneshot::Sender<Result<ReloadReport, ReloadError>>;

/// The gateway, as its operators see it.
pub(crate) struct AdminBackend {
    gateway: Arc<Gateway<SelectedStore>>,
    certificates: Arc<Certificates>,
    source: String,
    reloads: mpsc::Sender<ReloadRequest>,
    is_ready: AtomicBool,
}

impl AdminBackend {
    pub(crate) fn new(
        gateway: Arc<Gateway<SelectedStore>>,
        source: &Source,
        certificates: Arc<Certificates>,
    ) -> (Arc<Self>, mpsc::Receiver<ReloadRequest>) {
        let (reloads, wanted) = mpsc::channel(8);
        let source = match source {
            Source::File(path) => path.display().to_string(),
            Source::Line(_) => "the command line".to_owned(),
            Source::Demo(_) => "the built-in demo".to_owned(),
        };
        let is_ready = AtomicBool::new(true);
        (Arc::new(Self { gateway, certificates, source, reloads, is_ready }), wanted)
    }

    /// From now on nobody should send requests here.
    pub(crate) fn begin_stopping(&self) {
        self.is_ready.store(false, Ordering::Release);
    }

    /// Puts in force what was in force when a gateway last ran with this state.
    pub(crate) async fn restore(
        self: &Arc<Self>,
        clock: Arc<dyn Clock>,
        state: State,
    ) -> anyhow::Result<Arc<AdminState<Self>>> {
        let State { durable, path, contents } = state;
        let place = path.clone().unwrap_or_default();
        let admin_state = AdminState::restore(Arc::clone(self), clock, (durable, path), contents).await;
        admin_state.with_context(|| format!("cannot use {}; put a backup in its place", place.display()))
    }
}

impl Backend for AdminBackend {
    type Store = SelectedStore;

    fn limiter(&self) -> &Limiter<SelectedStore> {
        self.gateway.limiter()
    }

    fn source(&self) -> String {
        self.source.clone()
    }

    fn heaviest(&self) -> Vec<HeavyKey> {
        self.limiter().store().heaviest()
    }

    fn connections(&self) -> usize {
        self.gateway.connections()
    }

    fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    fn metrics(&self, remembers: bool) -> (String, &'static str) {
        let mut page =
            self.gateway.page(if remembers { MetricsReader::Scraper } else { MetricsReader::OneShot });
        let MemoryUse { table_bytes, pool_bytes, overflowed, limits_in_use, limits_max } =
            self.limiter().store().memory_use();
        let (table, pool) = ("tidegate_store_table_bytes", "tidegate_store_pool_bytes");
        page.single(
            table,
            MetricKind::Gauge,
            "Memory of the table of counters, taken at the start.",
            table_bytes,
        );
        page.single(pool, MetricKind::Gauge, "Memory of counters that do not fit the table.", pool_bytes);
        let (shared, help) = ("tidegate_store_overflowed_total", "Checks on counters that clients share.");
        page.single(shared, MetricKind::Counter, help, overflowed);
        let help = "Different limits of the policy, of overrides and of counters that have not expired.";
        page.single("tidegate_limits_in_use", MetricKind::Gauge, help, limits_in_use);
        let help = "How many different limits can be in use at once.";
        page.single("tidegate_limits_max", MetricKind::Gauge, help, limits_max);
        let (bans, help) = ("tidegate_bans", "Bans that operators have made while it runs.");
        page.single(bans, MetricKind::Gauge, help, self.limiter().bans().len());
        self.certificates.write(&mut page);
        (page.into_text(), Exposition::CONTENT_TYPE)
    }

    fn log_event(&self, event: &str, message: &str, subject: &str) {
        tracing::info!(event, subject, "{message}");
    }

    async fn reload(&self) -> Result<ReloadReport, ReloadError> {
        let ending = || ReloadError { reason: "the process is ending".to_owned() };
        let (reply, outcome) = oneshot::channel();
        self.reloads.send(reply).await.map_err(|_| ending())?;
        outcome.await.map_err(|_| ending())?
    }
}

/// A socket and a token, before anybody is answered.
pub(crate) struct AdminListener {
    pub(crate) listener: TcpListener,
    token: AdminToken,
    /// What the welcome says of it.
    pub(crate) notice: String,
}

impl AdminListener {
    /// Binds the socket, unless a predecessor has it, and finds the token. `None` if the policy wants no admin API, or
    /// if another process holds the address that nobody chose.
    pub(crate) fn new(
        policy: Option<&Path>,
        plan: &Plan,
        predecessor: Option<&mut Predecessor>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(admin) = &plan.admin else { return Ok(None) };
        let address = admin.address();
        let inherited = predecessor.and_then(|predecessor| predecessor.take_one(address));
        let listener = match inherited.map_or_else(|| TcpListener::bind(address), Ok) {
            Ok(listener) => listener,
            Err(error) if admin.listen.is_none() => {
                tracing::warn!(
                    event = "no_admin",
                    "no admin API: cannot listen on {} ({error}); choose another address with `admin.listen`, or \
                     write `admin: off`",
                    AdminPlan::LISTEN
                );
                return Ok(None);
            }
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("cannot listen on {address}, the `admin.listen` of the policy")
                });
            }
        };
        let bound = listener.local_addr()?;
        let path = policy.map(|policy| state::token_file(policy, plan)).or_else(state::own_token_file);
        let (token, kept) = state::token(path.as_deref(), bound.ip().to_canonical().is_loopback())?;
        let kept = match kept {
            Kept::In(path) => format!("the token is in {}", path.display()),
            Kept::New(path) => {
                format!(
                    "its token is new, kept in {} and shown only now:\n             {}",
                    path.display(),
                    token.expose()
                )
            }
            Kept::Nowhere => format!("its token, until it ends:\n             {}", token.expose()),
        };
        Ok(Some(Self { listener, token, notice: format!("  admin      http://{bound}; {kept}\n") }))
    }

    /// Answers operators.
    pub(crate) fn start(
        self,
        served: &Arc<AdminBackend>,
        admin_state: &Arc<AdminState<AdminBackend>>,
    ) -> anyhow::Result<AdminHandle> {
        let console = AdminServer::new(Arc::clone(served), Arc::clone(admin_state), self.token);
        let (stop, stopping) = watch::channel(false);
        Ok(AdminHandle { stop, thread: console.start(self.listener, stopping)? })
    }
}

/// An admin API that answers.
pub(crate) struct AdminHandle {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl AdminHandle {
    /// Nobody else is answered.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Stops, and waits until it has ended.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        self.stop();
        self.thread.join().map_err(|_| anyhow!("the admin API has panicked"))
    }
}
