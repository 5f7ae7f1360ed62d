//! What is changed on the way: what belongs to one hop stays there, and nobody's word about the client is passed on
//! that is not to be trusted.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, Entry, FORWARDED, HOST, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Version};
use smallvec::SmallVec;
use tidegate_policy::{Addresses, HeaderError, HeaderRules, UnderscoreHeaders};

use crate::conn::{Activity, ConnectionGuard};
use crate::http::forwarded::{self, Node};
use crate::http::header_flags::{Marks, is_untrusted};

pub(crate) const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(crate) const HOST_ASKED: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(crate) const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(crate) const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// What belongs to one connection, whatever `Connection` says.
pub(crate) static OF_A_HOP: [HeaderName; 5] =
    [KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TRANSFER_ENCODING];
/// So many headers are added on the way.
const TOLD: usize = 6;

/// A client's connection: its place, and what it says to upstreams about itself, written once.
#[derive(Debug)]
pub(crate) struct Hop {
    pub(crate) peer: IpAddr,
    /// The peer as `X-Forwarded-For` writes it.
    address: HeaderValue,
    /// `for=…;proto=…` of `Forwarded`.
    pub(crate) forwarded: HeaderValue,
    pub(crate) proto: HeaderValue,
    /// What moves on it.
    pub(crate) activity: Arc<Activity>,
    /// Held as long as anything goes over the connection, a tunnel included.
    _place: ConnectionGuard,
}

impl Hop {
    pub(crate) fn new(peer: SocketAddr, is_tls: bool, place: ConnectionGuard) -> Self {
        let peer = peer.ip().to_canonical();
        let proto = if is_tls { "https" } else { "http" };
        // Addresses and these words are valid in headers.
        let value = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("unknown"));
        Self {
            peer,
            address: value(&peer.to_string()),
            forwarded: value(&format!("for={};proto={proto}", Node(peer))),
            proto: HeaderValue::from_static(if is_tls { "https" } else { "http" }),
            activity: Arc::default(),
            _place: place,
        }
    }
}

/// Whether a request asks to speak something else over its connection. HTTP/2 is not something else: its requests would
/// pass through a tunnel unseen.
pub(crate) fn wants_upgrade(version: Version, headers: &HeaderMap, marks: Marks) -> bool {
    version == Version::HTTP_11
        && marks.has(Marks::UPGRADE)
        && lists(headers, &CONNECTION, "upgrade")
        && !is_http_again(headers)
}

/// HTTP in a tunnel would carry requests that nobody counts.
fn is_http_again(headers: &HeaderMap) -> bool {
    let mut asked =
        headers.get_all(UPGRADE).iter().flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    asked.any(|protocol| {
        let protocol = protocol.trim_ascii();
        let starts =
            |with: &[u8]| protocol.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
        starts(b"h2") || starts(b"http") || starts(b"tls")
    })
}

fn lists(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
}

/// Takes out what belongs to the connection a message came over. An upgrade is kept where it is meant.
fn strip_hop(headers: &mut HeaderMap, marks: Marks, keeps_upgrade: bool) {
    if marks.has(Marks::CONNECTION)
        && let Entry::Occupied(connection) = headers.entry(CONNECTION)
    {
        let lines: SmallVec<[HeaderValue; 1]> = connection.remove_entry_mult().1.collect();
        // Rarely more than `keep-alive`, which is not a header that is looked for.
        for line in lines.iter().filter(|line| *line != "keep-alive" && *line != "close") {
            strip_named(headers, line, keeps_upgrade);
        }
        if keeps_upgrade {
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        }
    }
    if marks.has(Marks::OF_A_HOP) {
        remove(headers, &OF_A_HOP);
    }
    if marks.has(Marks::UPGRADE) && !keeps_upgrade {
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
        // Naming these would change whom the request is for or how long it is.
        .filter(|name| *name != HOST && *name != CONTENT_LENGTH)
        .filter(|name| !(keeps_upgrade && *name == UPGRADE))
        .collect();
    for name in named {
        headers.remove(name);
    }
}

/// Rejects headers from which two clients could be read, and removes those that the peer may not send, before anything
/// reads them. `marks` is what a look at the headers has found.
pub(crate) fn from_client(
    headers: &mut HeaderMap,
    marks: Marks,
    is_trusted: bool,
    (rules, underscored): (&HeaderRules, UnderscoreHeaders),
) -> Result<(), HeaderError> {
    if underscored == UnderscoreHeaders::Drop {
        if marks.has(Marks::UNDERSCORE) {
            rules.remove_underscored(headers);
        }
        rules.remove_aliases(headers);
    }
    rules.check(headers)?;
    if marks.has(Marks::CONNECTION) {
        rules.check_connection(headers)?;
    }
    if !is_trusted {
        rules.remove_proxied(headers);
        if marks.has(Marks::UNTRUSTED) {
            remove_untrusted(headers);
        }
    }
    Ok(())
}

fn remove_untrusted(headers: &mut HeaderMap) {
    let names: SmallVec<[HeaderName; 4]> =
        headers.keys().filter(|name| is_untrusted(name.as_str())).cloned().collect();
    remove(headers, &names);
}

/// Makes a client's headers ready for an upstream. Says whether the client sent forwarding headers that do not count,
/// because `is_trusted` is not set: its peer is no trusted proxy.
pub(crate) fn for_upstream(
    headers: &mut HeaderMap,
    marks: Marks,
    (hop, is_trusted): (&Hop, bool),
    addresses: &Addresses,
    keeps_upgrade: bool,
) -> bool {
    let mut ignores_forwarding = false;
    let takes_trailers = marks.has(Marks::TE) && lists(headers, &TE, "trailers");
    strip_hop(headers, marks, keeps_upgrade);
    // A body is asked for, and so sent, by us.
    if marks.has(Marks::EXPECT) {
        headers.remove(EXPECT);
    }
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    } else if marks.has(Marks::TE) {
        headers.remove(TE);
    }
    if marks.has(Marks::COOKIE) {
        join_cookies(headers);
    }
    headers.reserve(TOLD);
    if is_trusted {
        forwarded::retell(headers, hop, addresses);
    } else {
        let by_x = headers.insert(FOR, hop.address.clone());
        let forwarded = headers.insert(FORWARDED, hop.forwarded.clone());
        ignores_forwarding = by_x.is_some() || forwarded.is_some();
        headers.insert(PROTO, hop.proto.clone());
    }
    if !(is_trusted && marks.has(Marks::HOST_ASKED) && headers.contains_key(HOST_ASKED))
        && let Some(host) = headers.get(HOST)
    {
        let host = host.clone();
        headers.insert(HOST_ASKED, host);
    }
    if !(is_trusted && marks.has(Marks::REQUEST_ID) && headers.contains_key(REQUEST_ID)) {
        headers.insert(REQUEST_ID, request_id());
    }
    ignores_forwarding
}

/// HTTP/2 may split what HTTP/1.1 knows only as one header.
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

/// Takes out of a client's trailers what it may not say in headers either, or what belongs there only. Nothing has counted
/// an identity in a trailer, so none is forwarded.
pub(crate) fn strip_trailers(
    trailers: &mut HeaderMap,
    (rules, underscored): (&HeaderRules, UnderscoreHeaders),
) {
    let marks = Marks::trimming(trailers);
    strip_hop(trailers, marks, false);
    remove(trailers, &[FOR, FORWARDED, PROTO, REQUEST_ID, HOST, CONTENT_LENGTH, TE]);
    remove_untrusted(trailers);
    rules.remove_identity(trailers);
    if underscored == UnderscoreHeaders::Drop {
        rules.remove_underscored(trailers);
        rules.remove_aliases(trailers);
    }
}

/// Makes an upstream's headers ready for a client.
pub(crate) fn for_client(headers: &mut HeaderMap, keeps_upgrade: bool) {
    // `Trailer` stays: over HTTP/1.1 only what is announced is sent.
    strip_hop(headers, Marks::of(headers), keeps_upgrade);
}

/// 128 random bits, to find a request again in the logs of two machines.
fn request_id() -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let bits = fastrand::u128(..);
    let id: [u8; 32] = std::array::from_fn(|n| DIGITS[(bits >> (4 * n)) as usize & 15]);
    HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("0"))
}
