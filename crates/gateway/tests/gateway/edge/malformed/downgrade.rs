//! HTTP/2 requests that would mean something else in HTTP/1.1: the gateway forwards what it parsed and charged.

use tidegate_testkit::server::RecordingServer;
use tidegate_testkit::wait::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{ResourceLimits, TestGateway};

type Field = (&'static [u8], &'static [u8]);

/// The expected result of a request.
#[derive(Clone, Copy, Debug)]
enum Expected {
    Rejected,
    /// Forwarded to this target, at this host.
    Forwarded(&'static str, &'static str),
    /// The head may be forwarded, but no complete request is.
    Aborted,
}

use Expected::{Aborted, Forwarded, Rejected};

type Case = (&'static str, &'static [Field], &'static [u8], Expected);

const METHOD: Field = (b":method", b"GET");
const POST: Field = (b":method", b"POST");
const SCHEME: Field = (b":scheme", b"http");
const PATH: Field = (b":path", b"/a");
const AUTHORITY: Field = (b":authority", b"a");

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a small frame").to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Encodes fields as they are, as literals without indexing.
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

/// Sends one request. Returns whether the status is 200; anything else is a rejection.
async fn send_request(gateway: &TestGateway, fields: &[Field], body: &[u8]) -> bool {
    let mut stream = TcpStream::connect(gateway.address).await.expect("a connection");
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

async fn check_cases(cases: &[Case]) {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 100_000, ResourceLimits::default());
    let mut remaining = gateway.get_raw("/count").await.remaining();
    for (name, fields, body, expected) in cases {
        let before = upstream.requests().len();
        let is_accepted = send_request(&gateway, fields, body).await;
        let now = gateway.get_raw("/count").await.remaining();
        let charged = remaining - now - 1;
        remaining = now;
        let mut seen = upstream.requests()[before..].to_vec();
        assert_eq!(seen.pop().map(|last| last.target).as_deref(), Some("/count"), "{name}");
        match expected {
            Rejected => assert_eq!((is_accepted, seen.len(), charged), (false, 0, 0), "{name}"),
            Aborted => assert!(!is_accepted && seen.is_empty() && charged <= 1, "{name}"),
            Forwarded(target, host) => {
                let [seen] = &seen[..] else { panic!("{name}: {seen:?}") };
                let forwarded = (seen.target.as_str(), seen.header("host"), seen.body.as_slice());
                assert_eq!(forwarded, (*target, Some(*host), *body), "{name}");
                assert_eq!((is_accepted, charged), (true, 1), "{name}");
            }
        }
    }
}

#[tokio::test]
async fn http2_field_that_is_invalid_in_http1_is_rejected() {
    let cases: &[Case] = &[
        ("a plain request", &[METHOD, SCHEME, PATH, AUTHORITY], b"", Forwarded("/a", "a")),
        ("CR LF in a value", &[METHOD, SCHEME, PATH, AUTHORITY, (b"x", b"a\r\nx-evil: 1")], b"", Rejected),
        ("LF in a value", &[METHOD, SCHEME, PATH, AUTHORITY, (b"x", b"a\nb")], b"", Rejected),
        ("CR in a value", &[METHOD, SCHEME, PATH, AUTHORITY, (b"x", b"a\rb")], b"", Rejected),
        ("NUL in a value", &[METHOD, SCHEME, PATH, AUTHORITY, (b"x", b"a\0b")], b"", Rejected),
        ("a name in capitals", &[METHOD, SCHEME, PATH, AUTHORITY, (b"X-A", b"a")], b"", Rejected),
        ("a space in a name", &[METHOD, SCHEME, PATH, AUTHORITY, (b"x a", b"a")], b"", Rejected),
        ("a colon in a name", &[METHOD, SCHEME, PATH, AUTHORITY, (b"x: a", b"a")], b"", Rejected),
        ("CR LF in a name", &[METHOD, SCHEME, PATH, AUTHORITY, (b"x\r\ny", b"a")], b"", Rejected),
        ("no name", &[METHOD, SCHEME, PATH, AUTHORITY, (b"", b"a")], b"", Rejected),
    ];
    check_cases(cases).await;
}

#[tokio::test]
async fn http2_pseudo_header_missing_repeated_or_invalid_is_rejected() {
    let cases: &[Case] = &[
        ("no method", &[SCHEME, PATH, AUTHORITY], b"", Rejected),
        ("two methods", &[METHOD, POST, SCHEME, PATH, AUTHORITY], b"", Rejected),
        ("a method in lower case", &[(b":method", b"get"), SCHEME, PATH, AUTHORITY], b"", Rejected),
        (
            "a method with a line",
            &[(b":method", b"GET /b HTTP/1.1\r\nx: "), SCHEME, PATH, AUTHORITY],
            b"",
            Rejected,
        ),
        ("CONNECT", &[(b":method", b"CONNECT"), AUTHORITY], b"", Rejected),
        (
            "CONNECT to a protocol",
            &[(b":method", b"CONNECT"), (b":protocol", b"websocket"), SCHEME, PATH, AUTHORITY],
            b"",
            Rejected,
        ),
        ("no path", &[METHOD, SCHEME, AUTHORITY], b"", Rejected),
        ("an empty path", &[METHOD, SCHEME, (b":path", b""), AUTHORITY], b"", Rejected),
        ("two paths", &[METHOD, SCHEME, PATH, (b":path", b"/b"), AUTHORITY], b"", Rejected),
        ("a path with a space", &[METHOD, SCHEME, (b":path", b"/a b"), AUTHORITY], b"", Rejected),
        (
            "a path with a request in it",
            &[METHOD, SCHEME, (b":path", b"/a HTTP/1.1\r\nhost: a\r\n\r\nGET /b"), AUTHORITY],
            b"",
            Rejected,
        ),
        ("a path without a slash", &[METHOD, SCHEME, (b":path", b"a"), AUTHORITY], b"", Rejected),
        ("an asterisk", &[METHOD, SCHEME, (b":path", b"*"), AUTHORITY], b"", Rejected),
        ("no scheme", &[METHOD, PATH, AUTHORITY], b"", Rejected),
        ("a field before them", &[(b"x", b"a"), METHOD, SCHEME, PATH, AUTHORITY], b"", Rejected),
        ("one that there is not", &[METHOD, SCHEME, PATH, AUTHORITY, (b":odd", b"a")], b"", Rejected),
        ("a status", &[METHOD, SCHEME, PATH, AUTHORITY, (b":status", b"200")], b"", Rejected),
    ];
    check_cases(cases).await;
}

#[tokio::test]
async fn http2_authority_missing_repeated_or_invalid_is_rejected() {
    let cases: &[Case] = &[
        ("none", &[METHOD, SCHEME, PATH], b"", Rejected),
        ("two", &[METHOD, SCHEME, PATH, AUTHORITY, (b":authority", b"b")], b"", Rejected),
        ("a line in it", &[METHOD, SCHEME, PATH, (b":authority", b"a\r\nx: b")], b"", Rejected),
        ("a user in it", &[METHOD, SCHEME, PATH, (b":authority", b"u@a")], b"", Rejected),
        ("a path in it", &[METHOD, SCHEME, PATH, (b":authority", b"a/b")], b"", Rejected),
        ("a space in it", &[METHOD, SCHEME, PATH, (b":authority", b"a b")], b"", Rejected),
        (
            "two in fields",
            &[METHOD, SCHEME, PATH, AUTHORITY, (b"host", b"a"), (b"host", b"a")],
            b"",
            Rejected,
        ),
        ("an invalid one in a field", &[METHOD, SCHEME, PATH, AUTHORITY, (b"host", b"a b")], b"", Rejected),
        // `:authority` takes precedence, and the `host` field is not forwarded.
        (
            "another in a field",
            &[METHOD, SCHEME, PATH, AUTHORITY, (b"host", b"b")],
            b"",
            Forwarded("/a", "a"),
        ),
    ];
    check_cases(cases).await;
}

#[tokio::test]
async fn http2_body_with_another_length_or_framing_is_rejected() {
    let cases: &[Case] = &[
        ("a plain body", &[POST, SCHEME, PATH, AUTHORITY], b"abc", Forwarded("/a", "a")),
        (
            "its length",
            &[POST, SCHEME, PATH, AUTHORITY, (b"content-length", b"3")],
            b"abc",
            Forwarded("/a", "a"),
        ),
        ("too short", &[POST, SCHEME, PATH, AUTHORITY, (b"content-length", b"9")], b"abc", Aborted),
        ("too long", &[POST, SCHEME, PATH, AUTHORITY, (b"content-length", b"1")], b"abc", Aborted),
        ("none at all", &[POST, SCHEME, PATH, AUTHORITY, (b"content-length", b"3")], b"", Aborted),
        (
            "two lengths",
            &[POST, SCHEME, PATH, AUTHORITY, (b"content-length", b"3"), (b"content-length", b"0")],
            b"abc",
            Aborted,
        ),
        ("no number", &[POST, SCHEME, PATH, AUTHORITY, (b"content-length", b"+3")], b"abc", Rejected),
        ("a list", &[POST, SCHEME, PATH, AUTHORITY, (b"content-length", b"3, 3")], b"abc", Rejected),
        (
            "chunks",
            &[POST, SCHEME, PATH, AUTHORITY, (b"transfer-encoding", b"chunked")],
            b"0\r\n\r\nGET /b HTTP/1.1\r\nhost: a\r\n\r\n",
            Rejected,
        ),
        ("another connection", &[METHOD, SCHEME, PATH, AUTHORITY, (b"connection", b"close")], b"", Rejected),
        ("another protocol", &[METHOD, SCHEME, PATH, AUTHORITY, (b"upgrade", b"websocket")], b"", Rejected),
        ("a coding", &[METHOD, SCHEME, PATH, AUTHORITY, (b"te", b"gzip")], b"", Rejected),
    ];
    check_cases(cases).await;
}

#[tokio::test]
async fn http2_length_that_is_repeated_is_forwarded_once() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    for second in [b"3".as_slice(), b"003"] {
        let lengths: [Field; 2] = [(b"content-length", b"3"), (b"content-length", second)];
        let fields = [&[POST, SCHEME, PATH, AUTHORITY], &lengths[..]].concat();
        assert!(send_request(&gateway, &fields, b"abc").await);
        let seen = upstream.last();
        let lengths: Vec<_> = seen.headers.iter().filter(|(name, _)| name == "content-length").collect();
        assert_eq!(
            (lengths.len(), seen.header("content-length"), seen.body.as_slice()),
            (1, Some("3"), &b"abc"[..])
        );
    }
}

#[tokio::test]
async fn http2_head_has_at_most_as_many_fields_as_an_http1_head() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    let head = |name: &'static [u8], count| {
        let fields = std::iter::repeat_n((name, &b"a=1"[..]), count);
        [METHOD, SCHEME, PATH, AUTHORITY].into_iter().chain(fields).collect::<Vec<Field>>()
    };
    // `:authority` becomes `Host`, and cookies one field.
    for (name, count, is_accepted) in
        [(&b"x"[..], 99, true), (b"x", 101, false), (b"cookie", 90, true), (b"cookie", 300, true)]
    {
        assert_eq!(send_request(&gateway, &head(name, count), b"").await, is_accepted, "{count}");
    }
    assert_eq!(upstream.requests().len(), 3);
}
