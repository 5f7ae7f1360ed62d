//! `tidegate serve`: the gateway, from its policy to its last request.

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
mod store;
mod takeover;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use tidegate_gateway::{Gateway, Listener};
use tidegate_limiter::Limiter;
use tidegate_policy::{ActivePolicy, LogTo, Plan};
use tidegate_store::{Clock, SystemClock};
use tokio::sync::watch;

use crate::args::ServeArgs;
use activation::InheritedSockets;
use admin::{AdminBackend, AdminHandle, AdminListener};
use certificates::Certificates;
use file_watcher::FileStamp;
use logging::{Logging, log_warnings};
use reload::{End, Events};
use source::{Loaded, Source};
use state::State;
use store::SelectedStore;
use takeover::Predecessor;

/// What is under way at a stop gets this long to end.
const DRAIN: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let source = Source::of(args)?;
    let (loaded, files) = source.load();
    let Loaded { active, warnings } = loaded?;
    let plan = Arc::clone(active.matcher.plan());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let logging = Logging::open(&source, &plan, Arc::clone(&clock))?;
    log_warnings(&warnings);
    let ended = serve(args, &source, Start { active, files, clock }, &logging);
    logging.flush();
    ended
}

/// What a gateway is started with.
struct Start {
    active: ActivePolicy,
    files: Vec<FileStamp>,
    clock: Arc<dyn Clock>,
}

fn serve(args: &ServeArgs, source: &Source, start: Start, logging: &Logging) -> anyhow::Result<()> {
    let Start { active, files, clock } = start;
    let plan = Arc::clone(active.matcher.plan());
    let cores = args.cores.map_or_else(cores, NonZeroUsize::get);
    let mut predecessor = match &args.takeover {
        Some(path) => Predecessor::at(path)?,
        None => None,
    };
    let (listeners, certificates) = listen(args, &plan, cores, predecessor.as_mut())?;
    // A predecessor has let go of the file by now.
    let state = State::open(source.file(), &plan)?;
    let prepared = AdminListener::new(source.file(), &plan, predecessor.as_mut())?;
    let telemetry = logging.telemetry(cores, clock.now());
    let store = Arc::new(SelectedStore::new(&plan.store));
    let limiter = Arc::new(Limiter::new(active, store, Arc::clone(&clock))?);
    let gateway = Gateway::builder(limiter).resource_limits(rlimit::fitting(cores)).telemetry(telemetry);
    let gateway = Arc::new(gateway.build()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (served, reloads) = AdminBackend::new(Arc::clone(&gateway), source, Arc::clone(&certificates));
    // Before the first request: nobody who is banned slips through.
    let admin_state = runtime.block_on(served.restore(Arc::clone(&clock), state))?;
    runtime.spawn(Arc::clone(&admin_state).persist_penalties());
    let (stop, stopping) = watch::channel(false);
    let threads = gateway.start(&listeners, &stopping, DRAIN)?;
    // Whoever reads the welcome may already change the policy or send a signal.
    let mut events = runtime.block_on(async { Events::new(files, logging.clone(), reloads, clock) })?;
    if let Some(predecessor) = predecessor {
        predecessor.dismiss()?;
    }
    if let Some(path) = &args.takeover {
        let handed = takeover::sockets(&listeners, prepared.as_ref().map(|prepared| &prepared.listener))?;
        events.successor = Some(takeover::await_successor(path, handed, Arc::clone(&admin_state))?);
    }
    let notice = prepared.as_ref().map_or(String::new(), |prepared| prepared.notice.clone());
    let admin = prepared.map(|prepared| prepared.start(&served, &admin_state)).transpose()?;
    greet(source, &listeners, &plan, &notice);
    let end = runtime.block_on(events.until_stopped(&gateway, source, &certificates))?;
    if let (End::Told, Some(path)) = (end, &args.takeover) {
        // Nobody is waited for any more; whoever comes now starts afresh.
        let _ = std::fs::remove_file(path);
    }
    tracing::info!(event = "stopping", "stopping; what is under way gets {} s to end", DRAIN.as_secs());
    served.begin_stopping();
    if let (End::TakenOver, Some(admin)) = (end, &admin) {
        // Operators are the successor's from now on; otherwise they may watch until the last request has ended.
        admin.stop();
    }
    // The cores close theirs; as long as one is open the system would connect clients whom nobody answers.
    drop(listeners);
    stop.send_replace(true);
    for thread in threads {
        if thread.join().is_err() {
            bail!("a core has panicked");
        }
    }
    // After a takeover they are the successor's, and this is refused.
    let _ = runtime.block_on(admin_state.write_penalties());
    admin.map_or(Ok(()), AdminHandle::end)?;
    tracing::info!(event = "stopped", "stopped");
    Ok(())
}

/// Says what runs, to whoever started it.
fn greet(source: &Source, listeners: &[Listener], plan: &Plan, admin: &str) {
    let urls = urls(listeners);
    tracing::info!(event = "started", version = env!("CARGO_PKG_VERSION"), "listening on {urls}");
    if plan.log.to == LogTo::Stdout {
        // A token that is shown once is shown, but never in a log.
        eprint!("{admin}");
    } else {
        println!("{}", welcome(source, &urls, plan, admin));
    }
}

/// Opens the listeners, with sockets of the service manager or of the predecessor where there are any.
fn listen(
    args: &ServeArgs,
    plan: &Plan,
    cores: usize,
    mut predecessor: Option<&mut Predecessor>,
) -> anyhow::Result<(Vec<Listener>, Arc<Certificates>)> {
    let configs = listeners::configs(args.listen.as_deref(), plan)?;
    let mut given = InheritedSockets::from_environment()?;
    let listeners = listeners::bind(&configs, cores, &mut |address| match given.take(address, cores)? {
        None => predecessor.as_mut().map_or(Ok(None), |predecessor| predecessor.take(address, cores)),
        given => Ok(given),
    })?;
    given.must_be_none()?;
    let certificates = Certificates::new(args.listen.as_deref(), plan, &configs, &listeners);
    Ok((listeners, Arc::new(certificates)))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

fn urls(listeners: &[Listener]) -> String {
    let urls: Vec<_> = listeners
        .iter()
        .map(|listener| {
            let scheme = if listener.is_tls() { "https" } else { "http" };
            format!("{scheme}://{}", listener.address())
        })
        .collect();
    urls.join(", ")
}

fn welcome(source: &Source, urls: &str, plan: &Plan, admin: &str) -> String {
    let url = urls.split(", ").next().unwrap_or_default();
    let limits: Vec<_> = plan
        .rate_limits
        .iter()
        .map(|rule| format!("  limit      {}: {}\n", rule.name, rule.words()))
        .collect();
    let limits = limits.concat();
    let warning = if plan.clients.accepts_unverified_keys {
        "  warning    API keys are not verified: a client that invents a key for each request has no limit\n"
    } else {
        ""
    };
    let rest = match source {
        Source::File(path) => {
            format!("  policy     {}, read again when it changes or at SIGHUP\n", path.display())
        }
        Source::Line(yaml) => format!("\nAs a file, which could hold more:\n\n{yaml}"),
        Source::Demo(_) => {
            let requests = plan.rate_limits.default.as_ref().map_or(10, |rule| rule.requests);
            format!(
                "\x20 upstream   the built-in demo; put your own service behind it with --upstream http://localhost:3000

AttemptResult:
  curl -i {url}/
  for i in $(seq {}); do curl -s -o /dev/null -w '%{{http_code}}\\n' {url}/; done
  curl -i {url}/
",
                requests + 2
            )
        }
    };
    format!("tidegate is listening on {urls}\n{limits}{warning}{admin}{rest}\nCtrl-C stops it.")
}
