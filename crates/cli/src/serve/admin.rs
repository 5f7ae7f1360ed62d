//! The admin API of the running gateway.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, anyhow, bail};
use serde_json::Value;
use tidegate_admin::{
    AdminServer, AdminState, AdminToken, Backend, BreakerAction, BreakerError, ReloadError, ReloadReport,
    ReloadState,
};
use tidegate_gateway::Gateway;
use tidegate_limiter::Limiter;
use tidegate_policy::{AdminPlan, Plan};
use tidegate_store::{Clock, HeavyKey, MemoryUse};
use tidegate_telemetry::{Exposition, MetricsReader};
use tokio::sync::{mpsc, oneshot, watch};

use super::certificates::Certificates;
use super::envoy_config::EnvoyConfig;
use super::reload_results::ReloadResults;
use super::source::{PolicyOrigin, PolicySource};
use super::state::{self, DurableState, TokenLocation};
use super::store::SelectedStore;
use super::takeover::Predecessor;
use super::upstreams;

/// A reload request.
#[derive(Default)]
pub(crate) struct ReloadRequest {
    /// Removes any number of bans and keys.
    pub(crate) is_forced: bool,
    /// Receives the result.
    pub(crate) reply_to: Option<oneshot::Sender<Result<ReloadReport, ReloadError>>>,
}

/// Gives the admin API access to the gateway.
pub(crate) struct AdminBackend {
    gateway: Arc<Gateway<SelectedStore>>,
    certificates: Arc<Certificates>,
    source: String,
    policy_file: Option<PathBuf>,
    envoy: Option<Arc<EnvoyConfig>>,
    reloads: mpsc::Sender<ReloadRequest>,
    reload_results: Arc<ReloadResults>,
    is_ready: AtomicBool,
}

impl AdminBackend {
    pub(crate) fn new(
        gateway: Arc<Gateway<SelectedStore>>,
        source: &PolicySource,
        certificates: Arc<Certificates>,
        envoy: Option<Arc<EnvoyConfig>>,
    ) -> (Arc<Self>, mpsc::Receiver<ReloadRequest>) {
        let (reloads, reload_requests) = mpsc::channel(8);
        let policy_file = source.file().and_then(|file| std::path::absolute(file).ok());
        let source = match &source.origin {
            PolicyOrigin::File(path) => path.display().to_string(),
            PolicyOrigin::CommandLine(_) => "the command line".to_owned(),
            PolicyOrigin::Demo(_) => "the built-in demo".to_owned(),
        };
        let started = gateway.limiter().clock().now();
        let (reload_results, is_ready) = (Arc::new(ReloadResults::new(started)), AtomicBool::new(true));
        let backend =
            Self { gateway, certificates, source, policy_file, envoy, reloads, reload_results, is_ready };
        (Arc::new(backend), reload_requests)
    }

    /// The results of reloads, which the admin API shows.
    pub(crate) fn reload_results(&self) -> Arc<ReloadResults> {
        Arc::clone(&self.reload_results)
    }

    /// Reports the gateway as not ready, so that load balancers stop sending requests.
    pub(crate) fn begin_stopping(&self) {
        self.is_ready.store(false, Ordering::Release);
    }

    /// Restores the bans, overrides and penalties of `state`.
    pub(crate) async fn restore(
        self: &Arc<Self>,
        clock: Arc<dyn Clock>,
        state: DurableState,
    ) -> anyhow::Result<Arc<AdminState<Self>>> {
        let DurableState { durable, path, contents } = state;
        let file = path.clone().unwrap_or_default();
        let admin_state = AdminState::restore(Arc::clone(self), clock, (durable, path), contents).await;
        admin_state.with_context(|| {
            format!(
                "cannot restore bans and overrides from {}; replace the file with a backup",
                file.display()
            )
        })
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

    fn policy_file(&self) -> Option<PathBuf> {
        self.policy_file.clone()
    }

    fn heaviest(&self) -> Vec<HeavyKey> {
        self.limiter().store().heaviest()
    }

    fn connections(&self) -> usize {
        self.gateway.connections()
    }

    fn shared_store(&self) -> Value {
        self.limiter().store().status()
    }

    fn envoy_domains(&self) -> Vec<Value> {
        let domains = self.envoy.iter().flat_map(|envoy| envoy.domains());
        domains.filter_map(|domain| serde_json::to_value(domain).ok()).collect()
    }

    fn upstreams(&self) -> Vec<Value> {
        upstreams::upstreams(&self.gateway)
    }

    fn routes(&self) -> Vec<Value> {
        upstreams::routes(&self.gateway)
    }

    fn change_breaker(
        &self,
        upstream: &str,
        server: Option<&str>,
        action: BreakerAction,
    ) -> Result<(), BreakerError> {
        upstreams::change_breaker(&self.gateway, upstream, server, action)
    }

    fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    fn metrics(&self, remembers: bool) -> (String, &'static str) {
        let mut page =
            self.gateway.metrics(if remembers { MetricsReader::Scraper } else { MetricsReader::OneShot });
        if let Some(memory_use) = self.limiter().store().memory_use() {
            write_memory_use(&mut page, memory_use);
        }
        self.limiter().store().write_metrics(&mut page);
        page.gauge("tidegate_bans", "Active bans set by operators.").value(self.limiter().bans().len());
        let penalties = self.limiter().penalties();
        let help = "Violations that lead to no lock-out because the table is full, or the name of the client too long.";
        page.counter("tidegate_violations_unrecorded_total", help).value(penalties.unrecorded());
        let help = "Lock-outs that ended early because the table was full of harder offenders.";
        page.counter("tidegate_lock_outs_dropped_total", help).value(penalties.dropped_lock_outs());
        self.certificates.write(&mut page);
        write_build(&mut page);
        self.reload_results.write(&mut page);
        (page.into_text(), Exposition::CONTENT_TYPE)
    }

    fn log_event(&self, event: &str, message: &str, subject: &str) {
        tracing::info!(event, subject, "{message}");
    }

    fn reload_state(&self) -> ReloadState {
        self.reload_results.state()
    }

    async fn reload(&self, is_forced: bool) -> Result<ReloadReport, ReloadError> {
        let stopping_error = || ReloadError::Invalid { reason: "the gateway is stopping".to_owned() };
        let (reply, outcome) = oneshot::channel();
        let request = ReloadRequest { is_forced, reply_to: Some(reply) };
        self.reloads.send(request).await.map_err(|_| stopping_error())?;
        outcome.await.map_err(|_| stopping_error())?
    }
}

/// Writes which program runs.
fn write_build(page: &mut Exposition) {
    let mut family = page.gauge("tidegate_build_info", "The running program; always 1.");
    let (version, os, arch) = (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    family.sample(&[("version", version), ("os", os), ("arch", arch)], 1);
}

/// Writes the metrics of counters in this process.
fn write_memory_use(page: &mut Exposition, memory_use: MemoryUse) {
    let MemoryUse { table_bytes, pool_bytes, overflowed, limits_in_use, limits_max, carried_limits } =
        memory_use;
    let help = "Memory of the counter table, allocated at the start.";
    page.gauge("tidegate_store_table_bytes", help).value(table_bytes);
    let help = "Memory of counters that do not fit in the table.";
    page.gauge("tidegate_store_pool_bytes", help).value(pool_bytes);
    let help = "Checks on counters that several clients share because the table is full.";
    page.counter("tidegate_store_overflowed_total", help).value(overflowed);
    let help = "Distinct limits in use by the policy, overrides and unexpired counters.";
    page.gauge("tidegate_limits_in_use", help).value(limits_in_use);
    page.gauge("tidegate_limits_max", "Maximum number of distinct limits in use.").value(limits_max);
    let help = "Counters stored with their limit, which is neither in the policy nor in an override.";
    page.gauge("tidegate_store_carried_limits", help).value(carried_limits);
}

/// The admin API before it starts.
#[derive(Default)]
pub(crate) struct AdminSetup {
    /// `None` if there is no admin API.
    pub(crate) listener: Option<AdminListener>,
    /// The line about the admin API in the start message; empty if the policy disables it.
    pub(crate) notice: String,
}

/// The socket and the token of the admin API.
pub(crate) struct AdminListener {
    pub(crate) listener: TcpListener,
    token: AdminToken,
}

impl AdminListener {
    /// Binds the socket, or takes it from the predecessor, and loads the token. There is none if the policy disables the
    /// admin API, or if another process uses the default address.
    pub(crate) fn open(
        policy: Option<&Path>,
        plan: &Plan,
        predecessor: Option<&mut Predecessor>,
    ) -> anyhow::Result<AdminSetup> {
        let Some(admin) = &plan.admin else { return Ok(AdminSetup::default()) };
        let address = admin.address();
        let inherited = predecessor.and_then(|predecessor| predecessor.take_one(address));
        let listener = match inherited.map_or_else(|| TcpListener::bind(address), Ok) {
            Ok(listener) => listener,
            Err(error) if admin.listen.is_none() => {
                tracing::warn!(
                    event = "admin_disabled",
                    "the admin API is disabled: cannot listen on {}: {error}; set another address in `admin.listen`, or \
                     write `admin: off`",
                    AdminPlan::LISTEN
                );
                let notice = format!(
                    "  admin      none: cannot listen on {address}: {error}; commands reach the process that does; set another \
                     address in `admin.listen`\n"
                );
                return Ok(AdminSetup { listener: None, notice });
            }
            Err(error) => {
                bail!("cannot listen on {address}: {error}; set another address in `admin.listen`");
            }
        };
        let bound = listener.local_addr()?;
        let directory = plan.store.directory.as_deref();
        let path =
            policy.map(|policy| state::token_file(policy, admin, directory)).or_else(state::user_token_file);
        let (token, location) =
            state::load_or_create_token(path.as_deref(), bound.ip().to_canonical().is_loopback())?;
        let token_text = match location {
            TokenLocation::File(path) => format!("token in {}", path.display()),
            TokenLocation::NewFile(path) => {
                format!(
                    "new token, saved in {} and shown only once:\n             {}",
                    path.display(),
                    token.expose()
                )
            }
            TokenLocation::Memory => {
                format!("token, valid until the gateway stops:\n             {}", token.expose())
            }
        };
        let notice = format!("  admin      http://{bound}; {token_text}\n");
        Ok(AdminSetup { listener: Some(Self { listener, token }), notice })
    }

    /// Starts to serve the admin API.
    pub(crate) fn start(
        self,
        backend: &Arc<AdminBackend>,
        admin_state: &Arc<AdminState<AdminBackend>>,
    ) -> anyhow::Result<AdminHandle> {
        let server = AdminServer::new(Arc::clone(backend), Arc::clone(admin_state), self.token);
        let (stop, stopping) = watch::channel(false);
        Ok(AdminHandle { stop, thread: server.start(self.listener, stopping)? })
    }
}

/// A running admin API.
pub(crate) struct AdminHandle {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl AdminHandle {
    /// Stops accepting requests.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Stops and waits for the thread to end.
    pub(crate) fn join(self) -> anyhow::Result<()> {
        self.stop();
        self.thread.join().map_err(|_| anyhow!("the thread of the admin API panicked"))
    }
}
