//! Probes: exact bytes over one HTTP/1 connection, and the expected result.
//!
//! Unless a probe ends the connection itself, a valid request follows its bytes at once. So every probe also shows whether
//! the gateway still reads that connection: after a rejected message it must not.

mod chunks;
mod codings;
mod connections;
mod deviations;
mod headers;
mod hosts;
mod lengths;
mod nginx;
mod request_lines;
mod responses;
mod sequences;
mod targets;

use std::collections::HashSet;
use std::net::SocketAddr;

use tidegate_testkit::client::RawClient;
use tidegate_testkit::message::{Request, read_response_to};
use tidegate_testkit::server::{RecordingServer, Reply, ok};

use crate::fixture::{ResourceLimits, TestGateway};

type Targets = &'static [&'static str];

/// The expected result of a probe. Targets are written as the upstream sees them.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// These requests are forwarded, and the connection stays open.
    Forwarded(Targets),
    /// These requests are forwarded, then the gateway closes.
    ForwardedThenClosed(Targets),
    /// These requests are forwarded, then a message is rejected with this status and the gateway closes.
    ForwardedThenRejected(Targets, u16),
    /// Nothing is forwarded, and the gateway closes after this status.
    Rejected(u16),
    /// One request is charged, because its head is valid, but the upstream never gets a complete one.
    Aborted(u16),
    /// The client closed its side: a request without a response by then may or may not be forwarded, but is charged first.
    Abandoned(Targets),
    /// The gateway responds with this status itself, and the connection stays open.
    RespondedByGateway(u16),
    /// Nothing is forwarded, and the gateway closes without a response.
    Closed,
}

use Expected::{
    Abandoned, Aborted, Closed, Forwarded, ForwardedThenClosed, ForwardedThenRejected, Rejected,
    RespondedByGateway,
};

/// What follows the bytes of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Then {
    /// A valid request, `AFTER`.
    Request,
    /// The client ends its side and reads on.
    HalfClose,
    /// The client closes and reads nothing.
    Close,
}

#[derive(Clone, Debug)]
struct Probe {
    name: String,
    bytes: Vec<u8>,
    then: Then,
    expected: Expected,
}

impl Probe {
    fn new(theme: &str, name: &str, bytes: impl Into<Vec<u8>>, expected: Expected) -> Self {
        Self { name: format!("{theme}: {name}"), bytes: bytes.into(), then: Then::Request, expected }
    }

    fn then(self, then: Then) -> Self {
        Self { then, ..self }
    }
}

/// A name, the part of a request in which the probes of a table differ, and the expected result.
type Row<'a> = (&'a str, &'a [u8], Expected);

/// Probes that are `before`, what their row says, and `after`.
fn table(theme: &str, before: &[u8], rows: &[Row<'_>], after: &[u8]) -> Vec<Probe> {
    let probe =
        |(name, part, expected): &Row<'_>| Probe::new(theme, name, [before, part, after].concat(), *expected);
    rows.iter().map(probe).collect()
}

/// More requests than all probes have.
const LIMIT: u32 = 1_000_000;
const AFTER: &str = "/after";
const AFTER_BYTES: &[u8] = b"GET /after HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// The result of a probe.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// The targets of the complete requests that the upstream parsed.
    forwarded: Vec<String>,
    /// The status of each response; 0 where bytes came that are no response.
    statuses: Vec<u16>,
}

/// Sends a probe to the proxy at `address`, which forwards to `upstream`. Returns the result, and the requests that the
/// proxy has left for this client if it reports them.
async fn send(address: SocketAddr, upstream: &RecordingServer, probe: &Probe) -> (Outcome, Option<u64>) {
    let before = upstream.count();
    let mut client = RawClient::connect(address).await;
    let mut bytes = probe.bytes.clone();
    if probe.then == Then::Request {
        bytes.extend(AFTER_BYTES);
    }
    client.send(&bytes).await;
    let response_bytes = match probe.then {
        Then::Request => client.rest().await,
        Then::HalfClose => {
            client.shut_down().await;
            client.rest().await
        }
        Then::Close => Vec::new(),
    };
    drop(client);
    // A request of its own, so that whatever was forwarded before has arrived.
    let mut counting = RawClient::connect(address).await;
    counting.send(b"GET /count HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let count = counting.response().await.expect("a response");
    let remaining = count.header("x-ratelimit-remaining").and_then(|remaining| remaining.parse().ok());
    let mut seen = upstream.since(before);
    seen.retain(|request| request.target != "/count");
    let statuses = statuses(&response_bytes, &seen);
    (Outcome { forwarded: seen.into_iter().map(|request| request.target).collect(), statuses }, remaining)
}

/// The statuses of the responses in `bytes` to these requests.
fn statuses(mut bytes: &[u8], requests: &[Request]) -> Vec<u16> {
    let mut statuses = Vec::new();
    let mut methods = requests.iter().map(|request| request.method.as_str());
    while !bytes.is_empty() {
        let method = methods.next().unwrap_or("GET");
        if let Some((response, length)) = read_response_to(method, bytes, true) {
            statuses.push(response.status);
            bytes = &bytes[length..];
        } else {
            let status = bytes.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3));
            let status = status.and_then(|status| std::str::from_utf8(status).ok()?.parse().ok());
            statuses.push(status.unwrap_or(0));
            break;
        }
    }
    statuses
}

/// Replies to `/204` and `/304` without a body, to all others with one.
async fn upstream() -> RecordingServer {
    RecordingServer::replying(|request| match (request.method.as_str(), request.target.as_str()) {
        (_, "/204") => Reply::Keep(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
        (_, "/304") => Reply::Keep(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n".to_vec()),
        ("HEAD", _) => Reply::Keep(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n".to_vec()),
        _ => ok("ok"),
    })
    .await
}

/// Sends every probe to a gateway and fails with a list of those that have another result than expected.
///
/// The invariant: charged = forwarded = parsed by the upstream, and nothing is forwarded after a rejected message.
async fn assert_expected(probes: &[Probe]) {
    let upstream = upstream().await;
    let gateway = TestGateway::with_limit(&[&upstream], LIMIT, ResourceLimits::default());
    let mut remaining = u64::from(LIMIT);
    let mut failures = Vec::new();
    for probe in probes {
        let (outcome, now) = send(gateway.address, &upstream, probe).await;
        let malformed = upstream.take_malformed();
        let now = now.expect("a limit");
        let charged = remaining - now - 1;
        remaining = now;
        if !malformed.is_empty() || !is_expected(probe, &outcome, charged) {
            let Probe { name, expected, .. } = probe;
            let got = format!("{:?} {:?}, charged {charged}", outcome.forwarded, outcome.statuses);
            failures.push(format!("{name}: expected {expected:?}, got {got} {malformed:?}"));
        }
    }
    let count = probes.len();
    assert!(failures.is_empty(), "{} of {count} probes failed:\n{}", failures.len(), failures.join("\n"));
}

fn is_expected(probe: &Probe, outcome: &Outcome, charged: u64) -> bool {
    let (targets, own, stays_open, incomplete) = match probe.expected {
        Forwarded(targets) => (targets, None, true, 0),
        ForwardedThenClosed(targets) => (targets, None, false, 0),
        ForwardedThenRejected(targets, status) => (targets, Some(status), false, 0),
        Rejected(status) => (&[][..], Some(status), false, 0),
        Aborted(status) => (&[][..], Some(status), false, 1),
        RespondedByGateway(status) => {
            return outcome.statuses == [status, 200] && outcome.forwarded == [AFTER] && charged == 1;
        }
        Abandoned(targets) => {
            let parsed = outcome.forwarded.len();
            return targets.get(..parsed).is_some_and(|parsed| outcome.forwarded == parsed)
                && (parsed..=targets.len()).contains(&usize::try_from(charged).unwrap_or(usize::MAX));
        }
        Closed => (&[][..], None, false, 0),
    };
    let follows = stays_open && probe.then == Then::Request;
    let forwarded: Vec<_> = targets.iter().copied().chain(follows.then_some(AFTER)).collect();
    let accepted = outcome.statuses.iter().take_while(|status| matches!(status, 200..=399)).count();
    let has_expected_statuses = probe.then == Then::Close
        || (accepted == forwarded.len() && outcome.statuses[accepted..] == *own.as_slice());
    outcome.forwarded == forwarded
        && charged == (forwarded.len() + incomplete) as u64
        && has_expected_statuses
}

/// Every probe of every theme.
fn all() -> Vec<Probe> {
    [
        request_lines::probes(),
        targets::probes(),
        hosts::probes(),
        headers::probes(),
        lengths::probes(),
        codings::probes(),
        chunks::probes(),
        sequences::probes(),
        connections::probes(),
        responses::probes(),
    ]
    .concat()
}

#[test]
fn probes_are_at_least_200_and_distinct() {
    let probes = all();
    println!("{} probes", probes.len());
    let (mut names, mut contents) = (HashSet::new(), HashSet::new());
    for Probe { name, bytes, then, .. } in &probes {
        assert!(names.insert(name), "two probes are named `{name}`");
        assert!(contents.insert((bytes, then)), "`{name}` sends what another probe sends");
    }
    assert!(probes.len() >= 200);
}
