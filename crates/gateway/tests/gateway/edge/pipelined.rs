//! Early responses to uploads: the rest of the body is never parsed as a request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_testkit::client::RawClient;
use tidegate_testkit::message::read_request;
use tidegate_testkit::server::AcceptLoop;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::fixture::{TestGateway, ticking};

/// A connection without movement for this long is parked.
const TICK: Duration = Duration::from_millis(20);
/// Part of a body that looks like a request.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// The part of a request that an upstream has received when it responds.
#[derive(Clone, Copy, Debug)]
enum RespondsAfter {
    Head,
    FirstByte,
    End,
}

/// How a body is delimited.
#[derive(Clone, Copy, Debug)]
enum Framing {
    Length,
    Chunked,
}

/// One order of events: two requests with bodies and a third without one, over one connection.
#[derive(Clone, Copy, Debug)]
struct Case {
    number: usize,
    responds_after: [RespondsAfter; 2],
    framing: [Framing; 2],
    /// The end of the first body and the second head are sent in one piece.
    is_joined: bool,
    pauses: Pauses,
}

/// When the client is silent for longer than it takes to park a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pauses {
    Never,
    AfterResponses,
    AfterEveryPiece,
}

fn cases() -> Vec<Case> {
    const RESPONSE_TIMES: [RespondsAfter; 3] =
        [RespondsAfter::Head, RespondsAfter::FirstByte, RespondsAfter::End];
    const FRAMING: [Framing; 2] = [Framing::Length, Framing::Chunked];
    let mut cases = Vec::new();
    for first in RESPONSE_TIMES {
        for second in RESPONSE_TIMES {
            for framing in [[0, 0], [0, 1], [1, 0], [1, 1]] {
                for pauses in [Pauses::Never, Pauses::AfterResponses, Pauses::AfterEveryPiece] {
                    for is_joined in [false, true] {
                        let framing = framing.map(|index| FRAMING[index]);
                        let number = cases.len();
                        cases.push(Case {
                            number,
                            responds_after: [first, second],
                            framing,
                            is_joined,
                            pauses,
                        });
                    }
                }
            }
        }
    }
    cases
}

/// An upstream that responds at the time that the path names, and records every complete request by its path.
struct EarlyUpstream {
    accepting: AcceptLoop,
    seen: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    malformed: Arc<Mutex<Vec<String>>>,
}

impl EarlyUpstream {
    async fn start() -> Self {
        let (seen, malformed) = (Arc::default(), Arc::default());
        let (to_seen, to_malformed) = (Arc::clone(&seen), Arc::clone(&malformed));
        let accepting = AcceptLoop::start(move |_, stream| {
            serve(stream, Arc::clone(&to_seen), Arc::clone(&to_malformed))
        })
        .await;
        Self { accepting, seen, malformed }
    }
}

async fn serve(
    mut stream: TcpStream,
    seen: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    malformed: Arc<Mutex<Vec<String>>>,
) {
    let (mut unread, mut has_responded) = (Vec::new(), false);
    while let Ok(1..) = stream.read_buf(&mut unread).await {
        while let Some(head) = unread.windows(4).position(|end| end == b"\r\n\r\n") {
            let line = String::from_utf8_lossy(&unread[..head]).into_owned();
            let parsed = read_request(&unread);
            let is_due = match &line {
                line if line.contains("/at-head/") => true,
                line if line.contains("/at-first-byte/") => unread.len() > head + 4,
                _ => parsed.is_some(),
            };
            if is_due && !has_responded {
                has_responded = true;
                if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.is_err() {
                    return;
                }
            }
            match parsed {
                None => break,
                Some(Err(what)) => return malformed.lock().expect("no panic").push(what),
                Some(Ok((request, length))) => {
                    seen.lock().expect("no panic").insert(request.target, request.body);
                    unread.drain(..length);
                    has_responded = false;
                }
            }
        }
    }
}

impl Case {
    fn path(&self, request: usize) -> String {
        let responds_after = match self.responds_after[request] {
            RespondsAfter::Head => "at-head",
            RespondsAfter::FirstByte => "at-first-byte",
            RespondsAfter::End => "at-end",
        };
        format!("/{responds_after}/{}/{request}", self.number)
    }

    /// A head, and its body in pieces.
    fn message(&self, request: usize) -> (String, Vec<String>) {
        let body: Vec<String> = (0..4).map(|_| SMUGGLED.to_owned()).collect();
        let path = self.path(request);
        match self.framing[request] {
            Framing::Length => {
                let length = body.concat().len();
                (format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"), body)
            }
            Framing::Chunked => {
                let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
                // The data of a chunk comes apart from its size: by itself it looks like a request.
                let mut pieces = Vec::new();
                for piece in &body {
                    pieces.push(format!("{:x}\r\n", piece.len()));
                    pieces.push(format!("{piece}\r\n"));
                }
                pieces.push("0\r\n\r\n".to_owned());
                (head, pieces)
            }
        }
    }

    async fn pause(&self, has_responded: bool) {
        if self.pauses == Pauses::AfterEveryPiece || (has_responded && self.pauses == Pauses::AfterResponses)
        {
            // The client is silent in real time: the gateway parks connections in threads of its own.
            tokio::time::sleep(TICK * 4).await;
        }
    }

    /// Whether the upstream responds before it has the complete body.
    fn is_early(&self, request: usize) -> bool {
        !matches!(self.responds_after[request], RespondsAfter::End)
    }

    /// Whether the client waits for the response before it sends the complete body.
    fn is_awaited(&self, request: usize) -> bool {
        match self.responds_after[request] {
            RespondsAfter::Head => true,
            // A chunk begins with its size, which is forwarded with its data.
            RespondsAfter::FirstByte => matches!(self.framing[request], Framing::Length),
            RespondsAfter::End => false,
        }
    }

    /// Waits for a response. The gateway stops an upload after an early response, so it may close the connection
    /// instead of responding to what follows.
    async fn expect_response(&self, client: &mut RawClient, may_be_closed: bool) -> Option<()> {
        match client.response().await {
            Some(response) => {
                assert_eq!((response.status, response.text().as_str()), (200, "ok"), "{self:?}");
            }
            None if may_be_closed => return None,
            None => panic!("no response: {self:?}"),
        }
        self.pause(true).await;
        Some(())
    }

    /// Runs the case over `client`, until the gateway closes the connection.
    async fn run(self, mut client: RawClient) -> Option<()> {
        let [first, second] = [self.message(0), self.message(1)];
        let mut unsent = first.0.clone();
        for (request, (_, pieces)) in [&first, &second].into_iter().enumerate() {
            let is_after_early = request == 1 && self.is_early(0);
            client.send(std::mem::take(&mut unsent).as_bytes()).await;
            let mut pieces = pieces.clone();
            let last = pieces.pop().unwrap_or_default();
            if matches!(self.responds_after[request], RespondsAfter::Head) {
                self.expect_response(&mut client, is_after_early).await?;
            }
            for (number, piece) in pieces.iter().enumerate() {
                client.send(piece.as_bytes()).await;
                if number == 0
                    && matches!(self.responds_after[request], RespondsAfter::FirstByte)
                    && self.is_awaited(request)
                {
                    self.expect_response(&mut client, is_after_early).await?;
                }
                self.pause(false).await;
            }
            // A request whose response is awaited cannot be followed by another in the same piece: that would be
            // pipelining, which other cases cover.
            if request == 0 && self.is_joined && self.is_awaited(request) {
                unsent = last + &second.0;
            } else {
                client.send(last.as_bytes()).await;
                if !self.is_awaited(request) {
                    self.expect_response(&mut client, is_after_early).await?;
                }
                if request == 0 {
                    unsent.clone_from(&second.0);
                }
            }
        }
        let path = format!("/at-end/{}/last", self.number);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await;
        self.expect_response(&mut client, self.is_early(0) || self.is_early(1)).await
    }
}

#[tokio::test]
async fn body_after_an_early_response_is_never_parsed_as_a_request() {
    let upstream = EarlyUpstream::start().await;
    let policy = format!(
        "upstreams: {{ app: {{ servers: [\"{}\"] }} }}\nroutes: [{{ path: /**, upstream: app }}]\n",
        upstream.accepting.url()
    );
    let gateway = TestGateway::start(&policy, ticking(TICK));
    let mut running = JoinSet::new();
    for case in cases() {
        let client = gateway.client().await;
        running.spawn(case.run(client));
    }
    let mut failed = Vec::new();
    while let Some(result) = running.join_next().await {
        failed.extend(result.err());
    }
    assert!(failed.is_empty(), "{} of {} cases failed", failed.len(), cases().len());
    assert_eq!(*upstream.malformed.lock().expect("no panic"), Vec::<String>::new());
    let seen = upstream.seen.lock().expect("no panic");
    let body = SMUGGLED.repeat(4);
    let mut expected = 0;
    for case in cases() {
        for request in 0..2 {
            let seen = seen.get(&case.path(request)).map(|seen| String::from_utf8_lossy(seen));
            expected += usize::from(seen.is_some());
            // After an early response the rest of the upload, and what follows it, need not be read.
            let is_optional = case.is_early(0) || case.is_early(request);
            assert!(seen.is_some() || is_optional, "{case:?}");
            assert!(seen.is_none_or(|seen| seen == body), "{case:?}");
        }
        let is_last_seen = seen.contains_key(&format!("/at-end/{}/last", case.number));
        assert!(is_last_seen || case.is_early(0) || case.is_early(1), "{case:?}");
        expected += usize::from(is_last_seen);
    }
    assert_eq!(seen.len(), expected, "nothing else was forwarded");
}
