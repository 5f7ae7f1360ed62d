mod mixed_pipelines;

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::Timestamp;
use tidegate_limiter::Limiter;
use tidegate_policy::{ActivePolicy, compile};
use tidegate_store::{Clock, ManualClock, MemoryStore};
use tidegate_telemetry::Telemetry;
use tokio::io::DuplexStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::http::HttpState;

/// A listener that requires a token.
const LOCKED: &str = "service: { resp: { address: \"127.0.0.1:6380\", token_file: t } }";

/// A served connection on paused time: the end of its client, and the switch that stops the service.
fn connect(capacity: usize) -> (DuplexStream, watch::Sender<bool>) {
    connect_to("{}", capacity)
}

fn connect_to(policy: &str, capacity: usize) -> (DuplexStream, watch::Sender<bool>) {
    let (client, io) = tokio::io::duplex(capacity);
    (client, serve(policy, io).1)
}

/// Serves a connection, and returns its task and the switch that stops the service.
fn serve<IO>(policy: &str, io: IO) -> (JoinHandle<()>, watch::Sender<bool>)
where
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (stop, stopping) = watch::channel(false);
    (serve_on(&worker(policy), io, stopping), stop)
}

fn worker(policy: &str) -> Rc<ServiceWorker<MemoryStore>> {
    let files = BTreeMap::from([("t".to_owned(), b"token-0123456789-0123456789-0123456789".to_vec())]);
    let plan = compile("policy.yaml", policy.as_bytes(), &files).expect("a valid policy").plan;
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000))) as Arc<dyn Clock>;
    let store = Arc::new(MemoryStore::with_cap(1 << 20));
    let limiter = Limiter::new(ActivePolicy::new(plan), store, Arc::clone(&clock)).expect("few limits");
    let (telemetry, http) = (Telemetry::metrics_only(1, clock), HttpState::new(Arc::default()));
    Rc::new(ServiceWorker::new(Arc::new(limiter), telemetry, http, Arc::default()))
}

fn serve_on<IO>(
    worker: &Rc<ServiceWorker<MemoryStore>>,
    io: IO,
    stop: watch::Receiver<bool>,
) -> JoinHandle<()>
where
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (peer, worker) = (([127, 0, 0, 1], 1).into(), Rc::clone(worker));
    let connection = RespConnection::new(ServiceConnection { io, peer, worker, stop });
    tokio::task::spawn_local(connection.run())
}

/// Runs `test` on paused time.
fn run(test: impl Future<Output = ()>) {
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// Reads until the service closes the connection, and returns the bytes and the time.
#[expect(clippy::disallowed_methods, reason = "time is paused: no clock is read")]
async fn read_to_end(client: &mut DuplexStream) -> (Vec<u8>, Duration) {
    let start = tokio::time::Instant::now();
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).await.expect("no error");
    (bytes, start.elapsed())
}

#[test]
fn incomplete_command_is_closed_after_two_checks() {
    run(async {
        let (mut client, _stop) = connect(1 << 16);
        client.write_all(b"PING\r\n*2\r\n$4\r\nEC").await.expect("room");
        let (bytes, after) = read_to_end(&mut client).await;
        assert_eq!(bytes, b"+PONG\r\n");
        assert!(after >= CHECK_INTERVAL && after <= 2 * CHECK_INTERVAL + LINGER, "{after:?}");
    });
}

#[test]
fn command_that_arrives_slowly_is_answered_within_the_time() {
    run(async {
        let (mut client, stop) = connect(1 << 16);
        for part in [&b"*1\r\n"[..], b"$4\r\nPI", b"NG\r\n"] {
            tokio::time::sleep(CHECK_INTERVAL / 3).await;
            client.write_all(part).await.expect("room");
        }
        let mut reply = [0; 7];
        client.read_exact(&mut reply).await.expect("a reply");
        assert_eq!(&reply, b"+PONG\r\n");
        stop.send_replace(true);
        assert_eq!(read_to_end(&mut client).await.0, b"");
    });
}

#[test]
fn idle_connection_is_closed_after_an_hour() {
    run(async {
        let (mut client, _stop) = connect(1 << 16);
        let (bytes, after) = read_to_end(&mut client).await;
        assert_eq!(bytes, b"");
        assert!(after > Duration::from_secs(3_500) && after < Duration::from_secs(3_700), "{after:?}");
    });
}

#[test]
fn client_that_never_reads_has_bounded_memory_and_is_closed() {
    run(async {
        let (mut client, _stop) = connect(1 << 12);
        let commands = b"COMMAND\r\n".repeat(100);
        let mut taken = 0;
        let write = async {
            while let Ok(len) = client.write(&commands).await {
                taken += len;
            }
        };
        // The service reads no more, and closes the connection when nothing was read for two checks.
        let written = tokio::time::timeout(2 * CHECK_INTERVAL + 2 * LINGER, write).await;
        assert!(written.is_ok(), "still open");
        // One read, and what the pipe holds.
        assert!(taken <= (64 << 10) + (1 << 12) + commands.len() + MAX_LINGER, "{taken}");
    });
}

#[test]
fn client_without_the_token_is_closed_after_ten_seconds() {
    run(async {
        let (mut client, _stop) = connect_to(LOCKED, 1 << 16);
        client.write_all(b"PING\r\n").await.expect("room");
        let (bytes, after) = read_to_end(&mut client).await;
        assert_eq!(bytes, b"+PONG\r\n");
        assert!(after >= AUTHENTICATION_TIMEOUT && after < AUTHENTICATION_TIMEOUT + LINGER, "{after:?}");
        let (mut client, _stop) = connect_to(LOCKED, 1 << 16);
        client.write_all(b"AUTH token-0123456789-0123456789-0123456789\r\n").await.expect("room");
        let (bytes, after) = read_to_end(&mut client).await;
        assert_eq!(bytes, b"+OK\r\n");
        assert!(after > Duration::from_secs(3_500), "{after:?}");
    });
}

/// A client that always sends and reads.
struct Flood;

impl AsyncRead for Flood {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        buffer.put_slice(b"PING\r\n");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Flood {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn client_without_the_token_that_always_sends_is_closed_after_ten_seconds() {
    run(async {
        let (connection, _stop) = serve(LOCKED, Flood);
        let (mut after, second) = (Duration::ZERO, Duration::from_secs(1));
        while !connection.is_finished() {
            tokio::time::advance(second).await;
            after += second;
            assert!(after < 2 * AUTHENTICATION_TIMEOUT, "still open");
        }
        assert!(after >= AUTHENTICATION_TIMEOUT, "{after:?}");
    });
}

#[test]
fn client_that_reads_slowly_gets_every_reply() {
    run(async {
        let (mut client, _stop) = connect(1 << 12);
        let writer = async {
            // Far more replies than are kept.
            let echo = [&b"ECHO "[..], &[b'x'; 4_000], b"\r\n"].concat();
            echo.repeat(16)
        };
        let commands = writer.await;
        let (mut reading, mut writing) = tokio::io::split(&mut client);
        let write = async {
            for _ in 0..10 {
                writing.write_all(&commands).await.expect("still open");
            }
        };
        let expected = 160 * (4_000 + b"$4000\r\n\r\n".len());
        let read = async {
            let (mut buffer, mut total) = ([0; 2_000], 0);
            while total < expected {
                tokio::time::sleep(Duration::from_secs(1)).await;
                total += reading.read(&mut buffer).await.expect("still open");
            }
        };
        tokio::join!(write, read);
    });
}

#[test]
fn client_that_always_sends_does_not_delay_a_stop() {
    run(async {
        let (mut client, stop) = connect(1 << 16);
        let commands = b"PING\r\n".repeat(100);
        client.write_all(&commands).await.expect("room");
        let mut reply = [0; 7];
        client.read_exact(&mut reply).await.expect("a reply");
        stop.send_replace(true);
        client.write_all(&commands).await.expect("room");
        let (bytes, _) = read_to_end(&mut client).await;
        assert_eq!(bytes.len(), 99 * b"+PONG\r\n".len(), "commands after the stop are not read");
    });
}

/// A `CL.THROTTLE` command with a limit of 4.
fn throttle(key: &str) -> Vec<u8> {
    format!("*5\r\n$11\r\nCL.THROTTLE\r\n${}\r\n{key}\r\n$1\r\n3\r\n$1\r\n1\r\n$2\r\n60\r\n", key.len())
        .into_bytes()
}

async fn read_reply(client: &mut DuplexStream) -> String {
    let mut bytes = vec![0; 64];
    let len = client.read(&mut bytes).await.expect("a reply");
    String::from_utf8(bytes[..len].to_vec()).expect("text")
}

#[test]
fn single_commands_that_arrive_together_get_the_replies_to_their_own_keys() {
    run(async {
        let (worker, (_stop, stopping)) = (worker("{}"), watch::channel(false));
        // More than fit into one batch.
        let mut clients: Vec<_> = (0..300)
            .map(|_| {
                let (client, io) = tokio::io::duplex(1 << 10);
                serve_on(&worker, io, stopping.clone());
                client
            })
            .collect();
        for round in 0..6 {
            for (number, client) in clients.iter_mut().enumerate() {
                client.write_all(&throttle(&format!("key {number}"))).await.expect("room");
            }
            for (number, client) in clients.iter_mut().enumerate() {
                let reply = read_reply(client).await;
                let expected = match round {
                    0..4 => format!("*5\r\n:0\r\n:4\r\n:{}\r\n:-1\r\n:{}\r\n", 3 - round, 60 * (round + 1)),
                    _ => "*5\r\n:1\r\n:4\r\n:0\r\n:60\r\n:240\r\n".to_owned(),
                };
                assert_eq!(reply, expected, "round {round}, client {number}");
            }
        }
    });
}

#[test]
fn single_commands_that_arrive_together_share_the_counter_of_their_key() {
    run(async {
        let (worker, (_stop, stopping)) = (worker("{}"), watch::channel(false));
        let connect = || {
            let (client, io) = tokio::io::duplex(1 << 10);
            serve_on(&worker, io, stopping.clone());
            client
        };
        let mut leaving = connect();
        let mut clients: Vec<_> = (0..9).map(|_| connect()).collect();
        leaving.write_all(&throttle("shared")).await.expect("room");
        drop(leaving);
        for (number, client) in clients.iter_mut().enumerate() {
            // Others have an invalid limit, or a second command: they are executed alone.
            let command = match number {
                7 => b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\na\r\n$1\r\n3\r\n$1\r\n0\r\n$2\r\n60\r\n".to_vec(),
                8 => [throttle("other"), b"PING\r\n".to_vec()].concat(),
                _ => throttle("shared"),
            };
            client.write_all(&command).await.expect("room");
        }
        let mut replies = Vec::new();
        for client in &mut clients {
            replies.push(read_reply(client).await);
        }
        let admitted = replies[..7].iter().filter(|reply| reply.starts_with("*5\r\n:0\r\n:4\r\n")).count();
        assert_eq!(admitted, 3, "the client that left was charged: {replies:?}");
        assert!(replies[7].starts_with("-ERR"), "{}", replies[7]);
        assert!(replies[8].ends_with(":60\r\n+PONG\r\n"), "{}", replies[8]);
    });
}
