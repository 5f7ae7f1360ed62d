//! Changes headers for forwarding: removes hop-by-hop headers, and writes those about the client.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, Entry, FORWARDED, HOST, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Version};
use smallvec::SmallVec;
use tidegate_headers::REQUEST_ID;
use tidegate_policy::{Addresses, HeaderRules, UnderscoreHeaders};
use tidegate_tower::deadline::Deadline;

use crate::conn::{Activity, ConnectionGuard};
use crate::http::forwarded::{ForwardedNode, rewrite_forwarded};
use crate::http::header_flags::HeaderFlags;
use crate::http::request_id::RequestId;

pub(crate) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(crate) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(crate) const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(crate) const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Hop-by-hop headers, listed in `Connection` or not.
pub(crate) static HOP_BY_HOP: [HeaderName; 5] =
    [KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TRANSFER_ENCODING];
/// The number of headers that are added to a request.
const ADDED: usize = 6;

/// Whether the gateway may write this header of a request: the server sees another value than the client has sent.
pub(crate) fn is_written_by_gateway(name: &HeaderName) -> bool {
    let name = name.as_str();
    let is_deadline = matches!(
        name,
        "x-request-deadline-ms"
            | "x-request-deadline-scope"
            | "grpc-timeout"
            | "x-envoy-expected-rq-timeout-ms"
    );
    let is_trace = matches!(name, "x-request-id" | "traceparent" | "tracestate");
    let is_connection = name == "forwarded" || name == "x-real-ip" || name.starts_with("x-forwarded-");
    is_connection || is_trace || is_deadline || name == "x-tidegate-degrade"
}

/// A client connection, with the header values that describe it to upstreams, formatted once.
#[derive(Debug)]
pub(crate) struct ConnInfo {
    pub(crate) peer: IpAddr,
    /// The peer as `X-Forwarded-For` writes it.
    address: HeaderValue,
    /// `for=…;proto=…` of `Forwarded`.
    pub(crate) forwarded: HeaderValue,
    pub(crate) proto: HeaderValue,
    /// The state of the connection.
    pub(crate) activity: Arc<Activity>,
    /// Kept while the connection is in use, upgraded or not.
    _guard: ConnectionGuard,
}

impl ConnInfo {
    pub(crate) fn new(peer: SocketAddr, is_tls: bool, guard: ConnectionGuard) -> Self {
        let peer = peer.ip().to_canonical();
        let proto = if is_tls { "https" } else { "http" };
        // Addresses and these words are valid in headers.
        let value = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("unknown"));
        Self {
            peer,
            address: value(&peer.to_string()),
            forwarded: value(&format!("for={};proto={proto}", ForwardedNode(peer))),
            proto: HeaderValue::from_static(if is_tls { "https" } else { "http" }),
            activity: Arc::default(),
            _guard: guard,
        }
    }
}

/// Whether a request asks for another protocol on its connection. Upgrades to HTTP are ignored: their requests would not be
/// counted.
pub(crate) fn wants_upgrade(version: Version, headers: &HeaderMap, flags: HeaderFlags) -> bool {
    version == Version::HTTP_11
        && flags.contains(HeaderFlags::UPGRADE)
        && lists(headers, &CONNECTION, "upgrade")
        && !is_http_upgrade(headers)
}

/// Whether the requested protocol is a version of HTTP or TLS.
fn is_http_upgrade(headers: &HeaderMap) -> bool {
    let mut protocols =
        headers.get_all(UPGRADE).iter().flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    protocols.any(|protocol| {
        let protocol = protocol.trim_ascii();
        let starts =
            |with: &[u8]| protocol.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
        starts(b"h2") || starts(b"http") || starts(b"tls")
    })
}

fn lists(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(token))
}

/// Removes hop-by-hop headers, except those of an upgrade that is forwarded.
fn strip_hop_by_hop(headers: &mut HeaderMap, flags: HeaderFlags, keeps_upgrade: bool) {
    if flags.contains(HeaderFlags::CONNECTION)
        && let Entry::Occupied(connection) = headers.entry(CONNECTION)
    {
        let lines: SmallVec<[HeaderValue; 1]> = connection.remove_entry_mult().1.collect();
        // These two values are frequent and name no header.
        for line in lines.iter().filter(|line| *line != "keep-alive" && *line != "close") {
            strip_named(headers, line, keeps_upgrade);
        }
        if keeps_upgrade {
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        }
    }
    if flags.contains(HeaderFlags::HOP_BY_HOP) {
        remove(headers, &HOP_BY_HOP);
    }
    if flags.contains(HeaderFlags::UPGRADE) && !keeps_upgrade {
        headers.remove(UPGRADE);
    }
}

fn remove(headers: &mut HeaderMap, names: &[HeaderName]) {
    for name in names {
        headers.remove(name);
    }
}

fn strip_named(headers: &mut HeaderMap, connection: &HeaderValue, keeps_upgrade: bool) {
    let named: Vec<HeaderName> = connection
        .to_str()
        .unwrap_or_default()
        .split(',')
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        // Removing these would change the host or the length of the request.
        .filter(|name| *name != HOST && *name != CONTENT_LENGTH)
        .filter(|name| !(keeps_upgrade && *name == UPGRADE))
        .collect();
    for name in named {
        headers.remove(name);
    }
}

/// What is known of a request whose headers are prepared.
pub(crate) struct PreparedRequest {
    pub(crate) id: RequestId,
    /// Forwarding headers were ignored because the peer is not a trusted proxy.
    pub(crate) ignores_forwarding: bool,
}

/// Prepares a client's headers for an upstream.
pub(crate) fn prepare_request(
    headers: &mut HeaderMap,
    flags: HeaderFlags,
    (conn, is_trusted): (&ConnInfo, bool),
    addresses: &Addresses,
    keeps_upgrade: bool,
) -> PreparedRequest {
    let mut ignores_forwarding = false;
    let accepts_trailers = flags.contains(HeaderFlags::TE) && lists(headers, &TE, "trailers");
    strip_hop_by_hop(headers, flags, keeps_upgrade);
    // The gateway itself responds to `Expect: 100-continue`.
    if flags.contains(HeaderFlags::EXPECT) {
        headers.remove(EXPECT);
    }
    if accepts_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    } else if flags.contains(HeaderFlags::TE) {
        headers.remove(TE);
    }
    if flags.contains(HeaderFlags::COOKIE) {
        join_cookies(headers);
    }
    headers.reserve(ADDED);
    if is_trusted {
        rewrite_forwarded(headers, conn, addresses);
    } else {
        let forwarded_for = headers.insert(FORWARDED_FOR, conn.address.clone());
        let forwarded = headers.insert(FORWARDED, conn.forwarded.clone());
        ignores_forwarding = forwarded_for.is_some() || forwarded.is_some();
        headers.insert(FORWARDED_PROTO, conn.proto.clone());
    }
    if !(is_trusted && flags.contains(HeaderFlags::FORWARDED_HOST) && headers.contains_key(FORWARDED_HOST))
        && let Some(host) = headers.get(HOST)
    {
        let host = host.clone();
        headers.insert(FORWARDED_HOST, host);
    }
    let id = RequestId::of_request(headers, flags, is_trusted);
    if matches!(id, RequestId::Random(_)) {
        headers.insert(REQUEST_ID, id.to_value());
    }
    PreparedRequest { id, ignores_forwarding }
}

/// HTTP/2 may split cookies over several headers, HTTP/1.1 may not.
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    if cookies.next().is_none() || cookies.next().is_none() {
        return;
    }
    let cookies: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Removes trailers that a client may not send at all, or only as headers.
pub(crate) fn strip_trailers(trailers: &mut HeaderMap, rules: &HeaderRules, underscored: UnderscoreHeaders) {
    let flags = HeaderFlags::scan_and_trim(trailers);
    strip_hop_by_hop(trailers, flags, false);
    remove(trailers, &[FORWARDED_FOR, FORWARDED, FORWARDED_PROTO, REQUEST_ID, HOST, CONTENT_LENGTH, TE]);
    Deadline::remove_headers(trailers);
    rules.apply_to_trailers(trailers, underscored);
}

/// Prepares an upstream's headers for a client.
pub(crate) fn prepare_response(headers: &mut HeaderMap, keeps_upgrade: bool) {
    // `Trailer` stays: over HTTP/1.1 only announced trailers are sent.
    strip_hop_by_hop(headers, HeaderFlags::scan(headers), keeps_upgrade);
}
