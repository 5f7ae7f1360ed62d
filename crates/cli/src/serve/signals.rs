//! Signals. A thread of its own handles them from the first moment on, so that nothing slow delays them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::exit::CommandOutcome;

/// The signals that this process has received.
pub(crate) struct Signals {
    stop: watch::Receiver<bool>,
    /// Several hangups before the next reload cause one reload.
    hangups: mpsc::Receiver<()>,
    is_starting: Arc<AtomicBool>,
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalEvent {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
}

impl Signals {
    /// Handles signals from now on. Until [`finish_start`](Self::finish_start), SIGTERM and SIGINT end the process at once.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let (mut terminate, mut interrupt, mut hangup) = {
            let _entered = runtime.enter();
            // A handler prevents that a write beyond `ulimit -f` ends the process: it fails and is reported instead.
            let _ = signal(SignalKind::from_raw(libc::SIGXFSZ)).context("cannot handle SIGXFSZ")?;
            (
                signal(SignalKind::terminate()).context("cannot handle SIGTERM")?,
                signal(SignalKind::interrupt()).context("cannot handle SIGINT")?,
                signal(SignalKind::hangup()).context("cannot handle SIGHUP")?,
            )
        };
        let (stopping, stop) = watch::channel(false);
        let (hung_up, hangups) = mpsc::channel(1);
        let is_starting = Arc::new(AtomicBool::new(true));
        let starting = Arc::clone(&is_starting);
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                        _ = hangup.recv() => {
                            // If the channel is full, a reload is still to come.
                            let _ = hung_up.try_send(());
                            continue;
                        }
                    }
                    if starting.load(Ordering::Acquire) {
                        // Nothing is served yet, and a predecessor keeps serving.
                        std::process::exit(CommandOutcome::Success as i32);
                    }
                    stopping.send_replace(true);
                }
            });
        })?;
        Ok(Self { stop, hangups, is_starting })
    }

    /// From now on [`stopped`](Self::stopped) reports SIGTERM and SIGINT.
    pub(crate) fn finish_start(&self) {
        self.is_starting.store(false, Ordering::Release);
    }

    /// Returns when the process must stop.
    pub(crate) async fn stopped(&mut self) {
        if self.stop.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the next signal. SIGHUP counts once, however often it was received since the last call.
    pub(crate) async fn next(&mut self) -> SignalEvent {
        tokio::select! {
            biased;
            Ok(_) = self.stop.wait_for(|stop| *stop) => SignalEvent::Stop,
            Some(()) = self.hangups.recv() => SignalEvent::Reload,
            else => std::future::pending().await,
        }
    }
}
