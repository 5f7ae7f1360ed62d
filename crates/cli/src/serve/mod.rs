//! `tidegate serve`: runs the gateway.

mod activation;
mod admin;
mod certificates;
mod demo;
mod file_watcher;
mod listeners;
mod logging;
mod reload;
mod rlimit;
pub(crate) mod source;
pub(crate) mod state;
pub(crate) mod store;
mod store_report;
mod takeover;
mod upstreams;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use tidegate_gateway::Gateway;
use tidegate_limiter::Limiter;
use tidegate_listener::Listener;
use tidegate_policy::{ActivePolicy, LogTarget, Plan};
use tidegate_store::{Clock, SystemClock};
use tokio::sync::watch;

use crate::args::ServeArgs;
use activation::InheritedSockets;
use admin::{AdminBackend, AdminHandle, AdminListener};
use certificates::Certificates;
use file_watcher::FileStamp;
use listeners::ListenerConfigError;
use logging::{Logging, log_warnings};
use reload::{ServeEvents, StopReason};
use source::{LoadError, LoadedPolicy, PolicyOrigin, PolicySource};
use state::DurableState;
use store::SelectedStore;
use takeover::Predecessor;

/// How long requests in progress may continue after a stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let source = PolicySource::from_args(args)?;
    let (loaded, files) = source.load();
    let LoadedPolicy { active, warnings } = match loaded {
        Ok(loaded) => loaded,
        Err(LoadError::Problems(problems)) => {
            eprint!("{problems}");
            match source.file() {
                Some(file) => bail!("{}: invalid policy; fix the problems listed above", file.display()),
                None => bail!("invalid --upstream, --limit or --store; fix the problems listed above"),
            }
        }
        Err(error) => return Err(error.into()),
    };
    let plan = Arc::clone(active.matcher.plan());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let logging = Logging::open(&source, &plan, Arc::clone(&clock))?;
    log_warnings(&warnings);
    let result = serve(args, &source, Startup { active, files, clock }, &logging);
    logging.flush();
    result
}

/// The loaded policy, the files it was read from, and the clock.
struct Startup {
    active: ActivePolicy,
    files: Vec<FileStamp>,
    clock: Arc<dyn Clock>,
}

fn serve(args: &ServeArgs, source: &PolicySource, startup: Startup, logging: &Logging) -> anyhow::Result<()> {
    let Startup { active, files, clock } = startup;
    let plan = Arc::clone(active.matcher.plan());
    let cores = args.cores.map_or_else(available_cores, NonZeroUsize::get);
    let mut predecessor = match &args.takeover {
        Some(path) => Predecessor::connect(path)?,
        None => None,
    };
    let (listeners, certificates) = listen(args, &plan, cores, predecessor.as_mut())?;
    // The predecessor has released the durable file by now.
    let state = DurableState::open(source.file(), &plan)?;
    let admin_listener = AdminListener::new(source.file(), &plan, predecessor.as_mut())?;
    let telemetry = logging.telemetry(cores, clock.now());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = Arc::new(SelectedStore::new(&plan.store, &clock)?);
    let limiter = Arc::new(Limiter::new(active, store, Arc::clone(&clock))?);
    let gateway =
        Gateway::builder(limiter).resource_limits(rlimit::raise_and_derive(cores)).telemetry(telemetry);
    let gateway = Arc::new(gateway.build()?);
    let (backend, reloads) = AdminBackend::new(Arc::clone(&gateway), source, Arc::clone(&certificates));
    // Restore bans before the first request is accepted.
    let admin_state = runtime.block_on(backend.restore(Arc::clone(&clock), state))?;
    runtime.spawn(Arc::clone(&admin_state).persist_penalties());
    store::start_sharing(&runtime, &gateway, &admin_state);
    let (stop, stopping) = watch::channel(false);
    let threads = gateway.start(&listeners, &stopping, DRAIN_TIMEOUT)?;
    // Handle signals and file changes before the start message is printed.
    let mut events = runtime.block_on(async { ServeEvents::new(files, logging.clone(), reloads, clock) })?;
    if let Some(predecessor) = predecessor {
        predecessor.confirm()?;
    }
    if let Some(path) = &args.takeover {
        let sockets =
            takeover::duplicate_sockets(&listeners, admin_listener.as_ref().map(|admin| &admin.listener))?;
        events.successor = Some(takeover::listen_for_successor(path, sockets, Arc::clone(&admin_state))?);
    }
    let notice = admin_listener.as_ref().map_or(String::new(), |admin| admin.notice.clone());
    let admin = admin_listener.map(|listener| listener.start(&backend, &admin_state)).transpose()?;
    announce(source, &listeners, &plan, &notice);
    let reason = runtime.block_on(events.run_until_stopped(&gateway, source, &certificates))?;
    if let (StopReason::Signal, Some(path)) = (reason, &args.takeover) {
        // This process no longer hands over, so the next one must start normally.
        let _ = std::fs::remove_file(path);
    }
    tracing::info!(event = "stopping", "stopping; draining for up to {} s", DRAIN_TIMEOUT.as_secs());
    backend.begin_stopping();
    if let (StopReason::TakenOver, Some(admin)) = (reason, &admin) {
        // The successor serves the admin API now. Without a successor, it stays available until the last request has ended.
        admin.stop();
    }
    // Workers close their own copies. While any copy is open, the kernel accepts connections that are never served.
    drop(listeners);
    stop.send_replace(true);
    for thread in threads {
        if thread.join().is_err() {
            bail!("a worker thread panicked");
        }
    }
    runtime.block_on(gateway.limiter().store().leave());
    // After a takeover the successor owns the file, and this write is rejected.
    let _ = runtime.block_on(admin_state.write_penalties());
    admin.map_or(Ok(()), AdminHandle::join)?;
    tracing::info!(event = "stopped", "stopped");
    Ok(())
}

/// Logs that the gateway has started and prints the start message.
fn announce(source: &PolicySource, listeners: &[Listener], plan: &Plan, admin: &str) {
    let urls = format_urls(listeners);
    tracing::info!(event = "started", version = env!("CARGO_PKG_VERSION"), "listening on {urls}");
    if plan.log.to == LogTarget::Stdout {
        // Print the notice, which may contain the token, to stderr: the token must not appear in the log.
        eprint!("{admin}");
    } else {
        println!("{}", start_message(source, &urls, plan, admin));
    }
}

/// Opens the listeners. Uses sockets of the service manager or of the predecessor if available.
fn listen(
    args: &ServeArgs,
    plan: &Plan,
    cores: usize,
    mut predecessor: Option<&mut Predecessor>,
) -> anyhow::Result<(Vec<Listener>, Arc<Certificates>)> {
    let configs = match listeners::configs(args.listen.as_deref(), plan) {
        Err(ListenerConfigError::InvalidCertificates(problems)) => {
            eprint!("{problems}");
            bail!("invalid certificates; fix the problems listed above");
        }
        configs => configs?,
    };
    let mut inherited = InheritedSockets::from_environment()?;
    let listeners = listeners::bind(&configs, cores, &mut |address| match inherited.take(address, cores)? {
        None => predecessor.as_mut().map_or(Ok(None), |predecessor| predecessor.take(address, cores)),
        listener => Ok(listener),
    })?;
    inherited.ensure_all_used()?;
    let certificates = Certificates::new(args.listen.as_deref(), plan, &configs, &listeners);
    Ok((listeners, Arc::new(certificates)))
}

fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

fn format_urls(listeners: &[Listener]) -> String {
    let urls: Vec<_> = listeners
        .iter()
        .map(|listener| {
            let scheme = if listener.is_tls() { "https" } else { "http" };
            format!("{scheme}://{}", listener.address())
        })
        .collect();
    urls.join(", ")
}

fn start_message(source: &PolicySource, urls: &str, plan: &Plan, admin: &str) -> String {
    let url = urls.split(", ").next().unwrap_or_default();
    let limits: Vec<_> = plan
        .rate_limits
        .iter()
        .map(|rule| format!("  limit      {}: {}\n", rule.name, rule.describe()))
        .collect();
    let limits = limits.concat();
    let warning = if plan.clients.accepts_unverified_keys {
        "  warning    API keys are not verified: a client can evade limits by inventing keys; see `clients.api_key.verify`\n"
    } else {
        ""
    };
    let rest = match &source.origin {
        PolicyOrigin::File(path) => {
            format!("  policy     {}; reloaded when it changes and on SIGHUP\n", path.display())
        }
        PolicyOrigin::CommandLine(yaml) => format!("\nEquivalent policy file:\n\n{yaml}"),
        PolicyOrigin::Demo(_) => {
            let requests = plan.rate_limits.default.as_ref().map_or(10, |rule| rule.requests);
            format!(
                "\x20 upstream   built-in demo; forward to your own service with --upstream http://localhost:3000

Try it:
  curl -i {url}/
  for i in $(seq {}); do curl -s -o /dev/null -w '%{{http_code}}\\n' {url}/; done
  curl -i {url}/
",
                requests + 2
            )
        }
    };
    let store = plan.store.url.as_ref().map(|url| format!("  store      {url}\n")).unwrap_or_default();
    format!("tidegate is listening on {urls}\n{limits}{store}{warning}{admin}{rest}\nPress Ctrl-C to stop.")
}
