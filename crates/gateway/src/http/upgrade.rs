//! Upgraded connections: client and server have switched to another protocol than HTTP.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::conn::Activity;
use crate::http::hop_headers::ConnInfo;
use crate::upstream::PooledConn;

/// How often activity is checked within the idle timeout.
const CHECKS_PER_TIMEOUT: u32 = 8;
/// While draining, a connection that has been idle for this long is closed: nothing is in transit, and its client can
/// reconnect to the next process. A busy one has the whole drain time.
const DRAIN_IDLE: Duration = Duration::from_secs(1);

/// Copies bytes in both directions until both sides have closed, or neither has sent anything for `idle`. Until then the
/// request is in flight: `server_conn` has its permits, and `client_conn` the permit of the client connection.
pub(crate) async fn relay(
    (client, server): (OnUpgrade, OnUpgrade),
    server_conn: PooledConn,
    client_conn: Rc<ConnInfo>,
    idle: Duration,
    stop: watch::Receiver<bool>,
) {
    if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
        copy_until_idle(TokioIo::new(client), TokioIo::new(server), &client_conn.activity, idle, stop).await;
    }
    drop((server_conn, client_conn));
}

/// All bytes cross the client connection, so `activity` covers both directions.
async fn copy_until_idle(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    mut server: impl AsyncRead + AsyncWrite + Unpin,
    activity: &Activity,
    idle: Duration,
    mut stop: watch::Receiver<bool>,
) {
    let mut copying = pin!(copy_bidirectional(&mut client, &mut server));
    let ticks = |period: Duration| {
        let mut ticks = interval(period.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        ticks
    };
    let (mut check, mut max_idle, mut idle_checks) =
        (ticks(idle / CHECKS_PER_TIMEOUT), CHECKS_PER_TIMEOUT, 0);
    let mut is_stopping = false;
    loop {
        tokio::select! {
            biased;
            // An error of either side ends the relay too.
            _ = copying.as_mut() => return,
            _ = stop.wait_for(|stop| *stop), if !is_stopping => {
                is_stopping = true;
                (check, max_idle, idle_checks) = (ticks(DRAIN_IDLE), 1, 0);
                activity.take_traffic();
            }
            _ = check.tick() => {
                idle_checks = if activity.take_traffic() { 0 } else { idle_checks + 1 };
                if idle_checks >= max_idle {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::JoinHandle;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::conn::ClientSocket;
    use crate::conn::TrackedIo;

    const IDLE: Duration = Duration::from_mins(10);

    /// A client, a server, and the upgraded connection between them.
    fn tunnel() -> (DuplexStream, DuplexStream, watch::Sender<bool>, JoinHandle<()>) {
        let (client, near) = duplex(1 << 10);
        let (server, far) = duplex(1 << 10);
        let (stop, stopping) = watch::channel(false);
        let activity = Arc::new(Activity::default());
        let relay = tokio::spawn(async move {
            let near = ClientSocket::new(near, Arc::clone(&activity));
            copy_until_idle(TrackedIo::new(near, Arc::clone(&activity), 0), far, &activity, IDLE, stopping)
                .await;
        });
        (client, server, stop, relay)
    }

    async fn send(from: &mut DuplexStream, to: &mut DuplexStream) {
        from.write_all(b"hello").await.unwrap();
        let mut received = [0; 5];
        to.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"hello");
    }

    #[tokio::test(start_paused = true)]
    #[expect(clippy::disallowed_methods, reason = "paused time")]
    async fn upgraded_connection_idle_is_closed_and_one_with_traffic_is_kept() {
        let (mut client, mut server, _stop, relay) = tunnel();
        for turn in 0..20 {
            sleep(IDLE * 9 / 10).await;
            // Traffic in either direction counts.
            if turn % 2 == 0 {
                send(&mut client, &mut server).await;
            } else {
                send(&mut server, &mut client).await;
            }
        }
        let since = Instant::now();
        relay.await.unwrap();
        let idle = since.elapsed();
        assert!((IDLE..=IDLE * 5 / 4).contains(&idle), "{idle:?}");
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0, "closed for the client");
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0, "closed for the server");
    }

    #[tokio::test(start_paused = true)]
    #[expect(clippy::disallowed_methods, reason = "paused time")]
    async fn upgraded_connection_idle_while_draining_is_closed() {
        let (mut client, mut server, stop, relay) = tunnel();
        stop.send_replace(true);
        for _ in 0..100 {
            sleep(DRAIN_IDLE / 2).await;
            send(&mut client, &mut server).await;
            send(&mut server, &mut client).await;
        }
        let since = Instant::now();
        relay.await.unwrap();
        assert!(since.elapsed() <= 2 * DRAIN_IDLE, "{:?}", since.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn upgraded_connection_half_closed_copies_the_other_direction() {
        let (mut client, mut server, _stop, relay) = tunnel();
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
        send(&mut server, &mut client).await;
        drop(server);
        relay.await.unwrap();
    }
}
