//! `tidegate serve`: listen, identify, decide, answer.

mod client;
mod demo;
mod headers;
mod refusal;
mod respond;

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tidegate_store::SystemClock;
use tokio::net::{TcpListener, TcpStream};

use crate::args::ServeArgs;
use respond::Responder;

/// A client that takes longer to send its headers is not coming.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// What is under way at a stop gets this long to end.
const DRAIN: Duration = Duration::from_secs(10);
/// When descriptors run out, accepting again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let listener = listen(&args.listen).await?;
        let address = listener.local_addr().context("cannot tell the address listened on")?;
        let responder = Responder::new(demo::policy()?, SystemClock::new());
        println!("{}", demo::welcome(address, responder.policy()));
        serve(listener, responder, stop_signal()?).await;
        Ok(())
    })
}

async fn listen(address: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => {
                "stop what holds it, or choose another with --listen; port 0 takes a free one"
            }
            ErrorKind::PermissionDenied => "choose a port from 1024 on, or give the right to lower ones",
            ErrorKind::AddrNotAvailable => "that address is not this machine's",
            ErrorKind::InvalidInput => "write it as 127.0.0.1:8080 or localhost:8080",
            _ => "tidegate serve --help shows the form",
        };
        anyhow::Error::from(error).context(format!("cannot listen on {address} ({hint})"))
    })
}

/// Serves until `stop` is ready, then lets what is under way end.
async fn serve(listener: TcpListener, responder: Responder, stop: impl Future<Output = ()>) {
    let responder = Arc::new(responder);
    let graceful = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    tokio::spawn(connection(stream, peer, Arc::clone(&responder), graceful.watcher()));
                }
                Err(error) => {
                    eprintln!("tidegate: cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            () = &mut stop => break,
        }
    }
    drop(listener);
    eprintln!("tidegate: stopping; Ctrl-C again ends what is still under way");
    tokio::select! {
        () = graceful.shutdown() => {}
        () = tokio::time::sleep(DRAIN) => {
            eprintln!("tidegate: stopped with requests still under way after {} s", DRAIN.as_secs());
        }
        _ = tokio::signal::ctrl_c() => {}
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    responder: Arc<Responder>,
    watcher: hyper_util::server::graceful::Watcher,
) {
    let service = service_fn(move |request| {
        let responder = Arc::clone(&responder);
        async move { Ok::<_, Infallible>(responder.respond(&request, peer.ip()).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    // A connection that breaks off is the client's business; there is nobody left to tell.
    let _ = watcher.watch(connection).await;
}

/// Ready at Ctrl-C or, on Unix, SIGTERM.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .context("cannot listen for SIGTERM")?;
    Ok(async move {
        #[cfg(unix)]
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
    })
}
