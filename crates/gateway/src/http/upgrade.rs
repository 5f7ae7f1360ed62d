//! Two connections that have agreed to speak something else than HTTP.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::conn::Activity;
use crate::http::hop_headers::Hop;
use crate::upstream::Lease;

/// Silence is looked for so many times in the time it may last.
const LOOKS: u32 = 8;
/// When stopping, a tunnel that has been silent for so long is closed: nothing is on its way, and its client can come
/// back to whoever serves from now on. One that is busy has the whole drain.
const LINGER: Duration = Duration::from_secs(1);

/// Passes bytes both ways until both sides have ended, or neither has said anything for `idle`. As long the server
/// counts as busy, the client keeps its place, and the lease has its permits.
pub(crate) async fn between(
    (client, server): (OnUpgrade, OnUpgrade),
    lease: Lease,
    hop: Rc<Hop>,
    idle: Duration,
    stop: watch::Receiver<bool>,
) {
    if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
        pass(TokioIo::new(client), TokioIo::new(server), &hop.activity, idle, stop).await;
    }
    drop((lease, hop));
}

/// Whatever passes goes over the client's connection, so its activity is that of both.
async fn pass(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    mut server: impl AsyncRead + AsyncWrite + Unpin,
    activity: &Activity,
    idle: Duration,
    mut stop: watch::Receiver<bool>,
) {
    let mut passing = pin!(copy_bidirectional(&mut client, &mut server));
    let ticks = |period: Duration| {
        let mut look = interval(period.max(Duration::from_millis(1)));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        look.reset();
        look
    };
    let (mut look, mut most, mut silent) = (ticks(idle / LOOKS), LOOKS, 0);
    let mut is_stopping = false;
    loop {
        tokio::select! {
            biased;
            // That either side breaks off is how tunnels end.
            _ = passing.as_mut() => return,
            _ = stop.wait_for(|stop| *stop), if !is_stopping => {
                is_stopping = true;
                (look, most, silent) = (ticks(LINGER), 1, 0);
                activity.take_moved();
            }
            _ = look.tick() => {
                silent = if activity.take_moved() { 0 } else { silent + 1 };
                if silent >= most {
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
    use crate::conn::{ClientSocket, TrackedIo};

    const IDLE: Duration = Duration::from_mins(10);

    /// A client, a server, and the tunnel between them.
    fn tunnel() -> (DuplexStream, DuplexStream, watch::Sender<bool>, JoinHandle<()>) {
        let (client, near) = duplex(1 << 10);
        let (server, far) = duplex(1 << 10);
        let (stop, stopping) = watch::channel(false);
        let activity = Arc::new(Activity::default());
        let passing = tokio::spawn(async move {
            let near = ClientSocket::new(near, Arc::clone(&activity));
            pass(TrackedIo::new(near, Arc::clone(&activity)), far, &activity, IDLE, stopping).await;
        });
        (client, server, stop, passing)
    }

    async fn says(from: &mut DuplexStream, to: &mut DuplexStream) {
        from.write_all(b"hello").await.unwrap();
        let mut heard = [0; 5];
        to.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"hello");
    }

    #[tokio::test(start_paused = true)]
    #[expect(clippy::disallowed_methods, reason = "paused time")]
    async fn a_silent_tunnel_ends_and_one_that_says_a_word_now_and_then_stays() {
        let (mut client, mut server, _stop, passing) = tunnel();
        for turn in 0..20 {
            sleep(IDLE * 9 / 10).await;
            // Either side's word counts.
            if turn % 2 == 0 {
                says(&mut client, &mut server).await;
            } else {
                says(&mut server, &mut client).await;
            }
        }
        let since = Instant::now();
        passing.await.unwrap();
        let silent = since.elapsed();
        assert!((IDLE..=IDLE * 5 / 4).contains(&silent), "{silent:?}");
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0, "the client sees its end");
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0, "and so does the server");
    }

    #[tokio::test(start_paused = true)]
    #[expect(clippy::disallowed_methods, reason = "paused time")]
    async fn when_stopping_a_busy_tunnel_stays_and_a_silent_one_ends_soon() {
        let (mut client, mut server, stop, passing) = tunnel();
        stop.send_replace(true);
        for _ in 0..100 {
            sleep(LINGER / 2).await;
            says(&mut client, &mut server).await;
            says(&mut server, &mut client).await;
        }
        let since = Instant::now();
        passing.await.unwrap();
        assert!(since.elapsed() <= 2 * LINGER, "{:?}", since.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_side_that_has_ended_leaves_the_other_its_words() {
        let (mut client, mut server, _stop, passing) = tunnel();
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
        says(&mut server, &mut client).await;
        drop(server);
        passing.await.unwrap();
    }
}
