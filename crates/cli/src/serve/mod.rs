//! `tidegate serve`: runs the gateway.

mod activation;
mod admin;
mod certificates;
mod demo;
pub(crate) mod envoy_config;
mod file_watcher;
mod listeners;
mod logging;
pub(crate) mod owner;
mod reload;
mod reload_results;
mod restart_notes;
mod rlimit;
mod signals;
pub(crate) mod source;
pub(crate) mod state;
pub(crate) mod store;
mod store_report;
mod takeover;
mod upstreams;

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::bail;
use tidegate_gateway::Gateway;
use tidegate_limiter::Limiter;
use tidegate_listener::Listener;
use tidegate_policy::{ActivePolicy, LogTarget, Plan};
use tidegate_service::{Service, ServiceListener};
use tidegate_store::{Clock, SystemClock};
use tidegate_telemetry::Protocol;
use tokio::sync::watch;

use crate::args::ServeArgs;
use crate::print::{write_stderr, write_stdout};
use activation::InheritedSockets;
use admin::{AdminBackend, AdminHandle, AdminListener, AdminSetup};
use certificates::Certificates;
use envoy_config::{DomainReport, EnvoyConfig};
use file_watcher::{FileStamp, FileWatcher};
use listeners::ListenerConfigError;
use logging::{Logging, log_warnings};
use reload::{ReloadTargets, ServeEvents, StopReason};
use signals::Signals;
use source::{LoadError, LoadedPolicy, PolicyOrigin, PolicySource};
use state::DurableState;
use store::SelectedStore;
use takeover::Predecessor;

/// How long requests in progress may continue after a stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    // First of all: a signal during the start must neither be lost nor end the process by accident.
    let signals = Signals::listen()?;
    let source = Arc::new(PolicySource::from_args(args)?);
    let (loaded, files) = source.load();
    let LoadedPolicy { active, warnings } = match loaded {
        Ok(loaded) => loaded,
        Err(LoadError::Problems(problems)) => {
            write_stderr(problems);
            match source.file() {
                Some(file) => bail!("{}: invalid policy; fix the problems listed above", file.display()),
                None => bail!("invalid command line; fix the problems listed above"),
            }
        }
        Err(error) => return Err(error.into()),
    };
    let plan = Arc::clone(active.matcher.plan());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let logging = Logging::open(&source, &plan, Arc::clone(&clock))?;
    log_warnings(&envoy_config::relevant_warnings(args.envoy_config.is_some(), warnings));
    let result = serve(args, &source, Startup { active, files, clock, signals }, &logging);
    logging.flush();
    result
}

/// The loaded policy, the files it was read from, the clock, and the signals.
struct Startup {
    active: ActivePolicy,
    files: Vec<FileStamp>,
    clock: Arc<dyn Clock>,
    signals: Signals,
}

fn serve(
    args: &ServeArgs,
    source: &Arc<PolicySource>,
    startup: Startup,
    logging: &Logging,
) -> anyhow::Result<()> {
    let Startup { active, mut files, clock, signals } = startup;
    let plan = Arc::clone(active.matcher.plan());
    let cores = args.cores.map_or_else(available_cores, NonZeroUsize::get);
    let mut predecessor = args.takeover.as_deref().map(Predecessor::connect).transpose()?.flatten();
    let BoundListeners { gateway: listeners, service: service_listeners, certificates } =
        listen(args, &plan, cores, predecessor.as_mut())?;
    // The predecessor has released the durable file by now.
    let state = DurableState::open(source.file(), &plan)?;
    let AdminSetup { listener: admin_listener, notice } =
        AdminListener::open(source.file(), &plan, predecessor.as_mut())?;
    let telemetry = logging.telemetry(cores, clock.now());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = Arc::new(SelectedStore::new(&plan.store, &clock)?);
    let limiter = Arc::new(Limiter::new(active, store, Arc::clone(&clock))?);
    let (resource_limits, service_connections) =
        rlimit::divide(rlimit::raise_and_derive(cores), !listeners.is_empty(), !service_listeners.is_empty());
    let service = Service::new(Arc::clone(&limiter), telemetry.clone()).max_connections(service_connections);
    let envoy = args.envoy_config.as_deref().map(|folder| Arc::new(EnvoyConfig::new(folder)));
    if let Some(envoy) = &envoy {
        files.extend(envoy.start(&service, &plan)?);
    }
    let gateway = Gateway::builder(limiter).resource_limits(resource_limits).telemetry(telemetry);
    let gateway = Arc::new(gateway.build()?);
    let (backend, reloads) =
        AdminBackend::new(Arc::clone(&gateway), source, Arc::clone(&certificates), envoy.clone());
    // Restore bans before the first request is accepted.
    let admin_state = runtime.block_on(backend.restore(Arc::clone(&clock), state))?;
    runtime.spawn(Arc::clone(&admin_state).persist_penalties());
    store::start_sharing(&runtime, &gateway, &admin_state);
    let (stop, stopping) = watch::channel(false);
    // From here on requests are accepted: a stop must drain them.
    signals.finish_start();
    let mut threads = gateway.start(&listeners, &stopping, DRAIN_TIMEOUT)?;
    threads.extend(service.start(&service_listeners, &stopping, DRAIN_TIMEOUT)?);
    // Watch the files before the start message is printed.
    let file_watcher = FileWatcher::new(files, reload::quiet_time(&plan))?;
    let (results, logging) = (backend.reload_results(), logging.clone());
    let mut events = ServeEvents { signals, file_watcher, logging, clock, reloads, results, successor: None };
    predecessor.map(Predecessor::confirm).transpose()?;
    if let Some(path) = &args.takeover {
        let all = listeners.iter().chain(service_listeners.iter().map(|service| &service.listener));
        let sockets = takeover::duplicate_sockets(all, admin_listener.as_ref().map(|admin| &admin.listener))?;
        events.successor = Some(takeover::listen_for_successor(path, sockets, Arc::clone(&admin_state))?);
    }
    let admin = admin_listener.map(|listener| listener.start(&backend, &admin_state)).transpose()?;
    let domains = format_domains(&envoy.as_ref().map(|envoy| envoy.domains()).unwrap_or_default());
    let notice = domains + &notice + &runtime.block_on(upstreams::reachability_notice(&gateway));
    announce(source, &format_urls(&listeners, &service_listeners), &plan, &notice);
    let envoy = envoy.as_ref().map(|config| (config, &service));
    let targets = ReloadTargets { gateway: &gateway, certificates: &certificates, envoy };
    let reason = runtime.block_on(events.run_until_stopped(source, targets));
    announce_stop(reason, args.takeover.as_deref());
    backend.begin_stopping();
    if let (StopReason::TakenOver, Some(admin)) = (reason, &admin) {
        // The successor serves the admin API now. Without a successor, it stays available until the last request has ended.
        admin.stop();
    }
    // Workers close their own copies. While any copy is open, the kernel accepts connections that are never served.
    drop((listeners, service_listeners));
    stop.send_replace(true);
    join_all(threads)?;
    runtime.block_on(gateway.limiter().store().close());
    // After a takeover the successor owns the file, and this write is rejected.
    let _ = runtime.block_on(admin_state.write_penalties());
    admin.map_or(Ok(()), AdminHandle::join)?;
    tracing::info!(event = "stopped", "stopped");
    Ok(())
}

/// Waits for the worker threads.
fn join_all(threads: Vec<JoinHandle<()>>) -> anyhow::Result<()> {
    for thread in threads {
        if thread.join().is_err() {
            bail!("a worker thread panicked");
        }
    }
    Ok(())
}

/// Logs that the gateway has started and prints the start message.
fn announce(source: &PolicySource, urls: &str, plan: &Plan, admin: &str) {
    tracing::info!(event = "started", version = env!("CARGO_PKG_VERSION"), "listening on {urls}");
    if plan.log.to == LogTarget::Stdout {
        // Print the notice, which may contain the token, to stderr: the token must not appear in the log.
        write_stderr(admin);
    } else {
        let message = start_message(source, urls, plan, admin);
        // The log has what matters: a full disk does not end the gateway.
        let _ = write_stdout(|output| writeln!(output, "{message}"));
    }
}

/// Logs that the gateway stops, and removes its takeover socket.
fn announce_stop(reason: StopReason, takeover: Option<&Path>) {
    if let (StopReason::Signal, Some(path)) = (reason, takeover) {
        // This process no longer hands over, so the next one must start normally.
        let _ = std::fs::remove_file(path);
    }
    tracing::info!(event = "stopping", "stopping; draining for up to {} s", DRAIN_TIMEOUT.as_secs());
}

/// The open listeners and their certificates.
struct BoundListeners {
    gateway: Vec<Listener>,
    service: Vec<ServiceListener>,
    certificates: Arc<Certificates>,
}

/// Opens the listeners. Uses sockets of the service manager or of the predecessor if available.
fn listen(
    args: &ServeArgs,
    plan: &Plan,
    cores: usize,
    mut predecessor: Option<&mut Predecessor>,
) -> anyhow::Result<BoundListeners> {
    let configs = listeners::configs(args.listen.as_deref(), plan)
        .and_then(|configs| Ok((configs, listeners::service_configs(plan)?)));
    let (configs, service) = match configs {
        Err(ListenerConfigError::InvalidCertificates(problems)) => {
            write_stderr(problems);
            bail!("invalid certificates; fix the problems listed above");
        }
        configs => configs?,
    };
    let mut inherited = InheritedSockets::from_environment()?;
    let mut taken = |address: &str| match inherited.take(address, cores)? {
        None => predecessor.as_mut().map_or(Ok(None), |predecessor| predecessor.take(address, cores)),
        listener => Ok(listener),
    };
    let listeners = listeners::bind(&configs, cores, &mut taken)?;
    let service_configs = service.iter().map(|(_, config)| config);
    let bound = listeners::bind(service_configs.clone(), cores, &mut taken)?;
    inherited.ensure_all_used()?;
    let all = configs.iter().chain(service_configs).zip(listeners.iter().chain(&bound));
    let certificates = Arc::new(Certificates::new(args.listen.as_deref(), plan, all));
    let protocols = service.iter().map(|(protocol, _)| *protocol);
    let service =
        protocols.zip(bound).map(|(protocol, listener)| ServiceListener { protocol, listener }).collect();
    Ok(BoundListeners { gateway: listeners, service, certificates })
}

fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// The URLs of all listeners, those of the gateway first.
fn format_urls(listeners: &[Listener], service: &[ServiceListener]) -> String {
    let gateway = listeners.iter().map(|listener| (Protocol::Gateway, listener));
    let service = service.iter().map(|service| (service.protocol, &service.listener));
    let url = |(protocol, listener): (Protocol, &Listener)| {
        let scheme = match (protocol, listener.is_tls()) {
            (Protocol::Grpc, false) => "grpc",
            (Protocol::Grpc, true) => "grpcs",
            (Protocol::Resp, false) => "redis",
            (Protocol::Resp, true) => "rediss",
            (Protocol::Gateway | Protocol::Http, false) => "http",
            (Protocol::Gateway | Protocol::Http, true) => "https",
        };
        format!("{scheme}://{}", listener.address())
    };
    gateway.chain(service).map(url).collect::<Vec<_>>().join(", ")
}

/// The domains of an Envoy configuration with their limits, for the start message.
fn format_domains(domains: &[DomainReport]) -> String {
    const MOST_SHOWN: usize = 20;
    let format_limits = |DomainReport { domain, limits }: &DomainReport| {
        let shown = limits.iter().take(MOST_SHOWN);
        let shown =
            shown.map(|limit| format!("  limit      {domain}/{}: {}\n", limit.descriptor, limit.limit));
        let rest = match limits.len().saturating_sub(MOST_SHOWN) {
            0 => String::new(),
            rest => format!("  limit      {domain}: {rest} more\n"),
        };
        let none =
            if limits.is_empty() { format!("  domain     {domain}: no limits\n") } else { String::new() };
        shown.collect::<String>() + &rest + &none
    };
    domains.iter().map(format_limits).collect()
}

fn start_message(source: &PolicySource, urls: &str, plan: &Plan, admin: &str) -> String {
    let url = urls.split(", ").next().unwrap_or_default();
    let limits: Vec<_> = plan
        .rate_limits
        .iter()
        .map(|rule| (&rule.name, rule.describe()))
        .chain(plan.rate_limits.concurrent.iter().map(|rule| (&rule.name, rule.describe())))
        .map(|(name, limit)| format!("  limit      {name}: {limit}\n"))
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
