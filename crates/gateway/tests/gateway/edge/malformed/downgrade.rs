//! HTTP/2 that would mean something else in HTTP/1.1: what is forwarded is what was parsed and charged.

use tidegate_testkit::server::RecordingServer;
use tidegate_testkit::wait::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{ResourceLimits, TestGateway};

type Field = (&'static [u8], &'static [u8]);

/// What becomes of a request of these fields and this body.
#[derive(Clone, Copy, Debug)]
enum Law {
    Refused,
    /// Forwarded to this target, at this host.
    Forwarded(&'static str, &'static str),
    /// Its head may be forwarded, but no whole request is.
    BrokenOff,
}

use Law::{BrokenOff, Forwarded, Refused};

type Case = (&'static str, &'static [Field], &'static [u8], Law);

const METHOD: Field = (b":method", b"GET");
const POST: Field = (b":method", b"POST");
const SCHEME: Field = (b":scheme", b"http");
const PATH: Field = (b":path", b"/a");
const AUTHORITY: Field = (b":authority", b"a");

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a small frame").to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Fields as they are, none of them looked at and none remembered.
fn block(fields: &[Field]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).ok().filter(|length| *length < 127).expect("a short text"));
            block.extend_from_slice(text);
        }
    }
    block
}

/// Sends one request and says whether it was answered with success; anything else is a refusal.
async fn ask(served: &TestGateway, fields: &[Field], body: &[u8]) -> bool {
    let mut stream = TcpStream::connect(served.address).await.expect("a connection");
    let mut bytes = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &[])].concat();
    let ends = u8::from(body.is_empty());
    bytes.extend(frame(1, 4 | ends, 1, &block(fields)));
    if !body.is_empty() {
        bytes.extend(frame(0, 1, 1, body));
    }
    stream.write_all(&bytes).await.expect("a request");
    loop {
        let mut head = [0; 9];
        if within("a frame", stream.read_exact(&mut head)).await.is_err() {
            return false;
        }
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        if within("a frame", stream.read_exact(&mut payload)).await.is_err() {
            return false;
        }
        match (head[3], head[8]) {
            // The first field is the status; 200 has a byte of its own.
            (1, 1) => return payload[0] == 0x88,
            // The stream is reset, or the connection ends.
            (3, 1) | (7, _) => return false,
            _ => {}
        }
    }
}

async fn hold(cases: &[Case]) {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 100_000, ResourceLimits::default());
    let mut left = served.get_raw("/count").await.remaining();
    for (name, fields, body, law) in cases {
        let before = upstream.requests().len();
        let is_served = ask(&served, fields, body).await;
        let now = served.get_raw("/count").await.remaining();
        let charged = left - now - 1;
        left = now;
        let mut seen = upstream.requests()[before..].to_vec();
        assert_eq!(seen.pop().map(|last| last.target).as_deref(), Some("/count"), "{name}");
        match law {
            Refused => assert_eq!((is_served, seen.len(), charged), (false, 0, 0), "{name}"),
            BrokenOff => assert!(!is_served && seen.is_empty() && charged <= 1, "{name}"),
            Forwarded(target, host) => {
                let [seen] = &seen[..] else { panic!("{name}: {seen:?}") };
                let told = (seen.target.as_str(), seen.header("host"), seen.body.as_slice());
                assert_eq!(told, (*target, Some(*host), *body), "{name}");
                assert_eq!((is_served, charged), (true, 1), "{name}");
            }
        }
    }
}

#[tokio::test]
async fn fields_that_would_be_more_than_one_are_refused() {
    let cases: &[Case] = &[
        ("a plain request", &[METHOD, SCHEME, PATH, AUTHORITY], b"", Forwarded("/a", "a")),
        ("CR LF in a value", &[METHOD, SCHEME, PATH, AUTHORITY, (b"x", b"a\r\nx-evil: 1")], b"", Refused),
        ("LF in a value", &[METHOD, SCHEME, PATH, AUTHORITY, (b"x", b"a\nb")], b"", Refused),
        ("CR in a value", &[METHOD, SCHEME, PATH, AUTHORITY, (b"x", b"a\rb")], b"", Refused),
        ("NUL in a value", &[METHOD, SCHEME, PATH, AUTHORITY, (b"x", b"a\0b")], b"", Refused),
        ("a name in capitals", &[METHOD, SCHEME, PATH, AUTHORITY, (b"X-A", b"a")], b"", Refused),
        ("a space in a name", &[METHOD, SCHEME, PATH, AUTHORITY, (b"x a", b"a")], b"", Refused),
        ("a colon in a name", &[METHOD, SCHEME, PATH, AUTHORITY, (b"x: a", b"a")], b"", Refused),
        ("CR LF in a name", &[METHOD, SCHEME, PATH, AUTHORITY, (b"x\r\ny", b"a")], b"", Refused),
        ("no name", &[METHOD, SCHEME, PATH, AUTHORITY, (b"", b"a")], b"", Refused),
    ];
    hold(cases).await;
}

#[tokio::test]
async fn a_request_line_is_made_of_one_of_each_or_refused() {
    let cases: &[Case] = &[
        ("no method", &[SCHEME, PATH, AUTHORITY], b"", Refused),
        ("two methods", &[METHOD, POST, SCHEME, PATH, AUTHORITY], b"", Refused),
        ("a method in lower case", &[(b":method", b"get"), SCHEME, PATH, AUTHORITY], b"", Refused),
        (
            "a method with a line",
            &[(b":method", b"GET /b HTTP/1.1\r\nx: "), SCHEME, PATH, AUTHORITY],
            b"",
            Refused,
        ),
        ("CONNECT", &[(b":method", b"CONNECT"), AUTHORITY], b"", Refused),
        (
            "CONNECT to a protocol",
            &[(b":method", b"CONNECT"), (b":protocol", b"websocket"), SCHEME, PATH, AUTHORITY],
            b"",
            Refused,
        ),
        ("no path", &[METHOD, SCHEME, AUTHORITY], b"", Refused),
        ("an empty path", &[METHOD, SCHEME, (b":path", b""), AUTHORITY], b"", Refused),
        ("two paths", &[METHOD, SCHEME, PATH, (b":path", b"/b"), AUTHORITY], b"", Refused),
        ("a path with a space", &[METHOD, SCHEME, (b":path", b"/a b"), AUTHORITY], b"", Refused),
        (
            "a path with a request in it",
            &[METHOD, SCHEME, (b":path", b"/a HTTP/1.1\r\nhost: a\r\n\r\nGET /b"), AUTHORITY],
            b"",
            Refused,
        ),
        ("a path without a slash", &[METHOD, SCHEME, (b":path", b"a"), AUTHORITY], b"", Refused),
        ("an asterisk", &[METHOD, SCHEME, (b":path", b"*"), AUTHORITY], b"", Refused),
        ("no scheme", &[METHOD, PATH, AUTHORITY], b"", Refused),
        ("a field before them", &[(b"x", b"a"), METHOD, SCHEME, PATH, AUTHORITY], b"", Refused),
        ("one that there is not", &[METHOD, SCHEME, PATH, AUTHORITY, (b":odd", b"a")], b"", Refused),
        ("a status", &[METHOD, SCHEME, PATH, AUTHORITY, (b":status", b"200")], b"", Refused),
    ];
    hold(cases).await;
}

#[tokio::test]
async fn a_request_has_one_host_or_is_refused() {
    let cases: &[Case] = &[
        ("none", &[METHOD, SCHEME, PATH], b"", Refused),
        ("two", &[METHOD, SCHEME, PATH, AUTHORITY, (b":authority", b"b")], b"", Refused),
        ("a line in it", &[METHOD, SCHEME, PATH, (b":authority", b"a\r\nx: b")], b"", Refused),
        ("a user in it", &[METHOD, SCHEME, PATH, (b":authority", b"u@a")], b"", Refused),
        ("a path in it", &[METHOD, SCHEME, PATH, (b":authority", b"a/b")], b"", Refused),
        ("a space in it", &[METHOD, SCHEME, PATH, (b":authority", b"a b")], b"", Refused),
        // One of them is named by the protocol: that counts, and the other is not passed on.
        (
            "another in a field",
            &[METHOD, SCHEME, PATH, AUTHORITY, (b"host", b"b")],
            b"",
            Forwarded("/a", "a"),
        ),
    ];
    hold(cases).await;
}

#[tokio::test]
async fn a_body_is_as_long_as_it_is_or_refused() {
    let cases: &[Case] = &[
        ("a plain body", &[POST, SCHEME, PATH, AUTHORITY], b"abc", Forwarded("/a", "a")),
        (
            "its length",
            &[POST, SCHEME, PATH, AUTHORITY, (b"content-length", b"3")],
            b"abc",
            Forwarded("/a", "a"),
        ),
        ("too short", &[POST, SCHEME, PATH, AUTHORITY, (b"content-length", b"9")], b"abc", BrokenOff),
        ("too long", &[POST, SCHEME, PATH, AUTHORITY, (b"content-length", b"1")], b"abc", BrokenOff),
        ("none at all", &[POST, SCHEME, PATH, AUTHORITY, (b"content-length", b"3")], b"", BrokenOff),
        (
            "two lengths",
            &[POST, SCHEME, PATH, AUTHORITY, (b"content-length", b"3"), (b"content-length", b"0")],
            b"abc",
            BrokenOff,
        ),
        ("no number", &[POST, SCHEME, PATH, AUTHORITY, (b"content-length", b"+3")], b"abc", Refused),
        ("a list", &[POST, SCHEME, PATH, AUTHORITY, (b"content-length", b"3, 3")], b"abc", Refused),
        (
            "chunks",
            &[POST, SCHEME, PATH, AUTHORITY, (b"transfer-encoding", b"chunked")],
            b"0\r\n\r\nGET /b HTTP/1.1\r\nhost: a\r\n\r\n",
            Refused,
        ),
        ("another connection", &[METHOD, SCHEME, PATH, AUTHORITY, (b"connection", b"close")], b"", Refused),
        ("another protocol", &[METHOD, SCHEME, PATH, AUTHORITY, (b"upgrade", b"websocket")], b"", Refused),
        ("a coding", &[METHOD, SCHEME, PATH, AUTHORITY, (b"te", b"gzip")], b"", Refused),
    ];
    hold(cases).await;
}
