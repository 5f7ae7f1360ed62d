//! `X-Forwarded-*` and `Forwarded` of requests from trusted proxies.
//!
//! A proxy often writes one of the headers and forwards the other as the client wrote it. An upstream that reads that other
//! one would see another client than the gateway has counted. So both are rewritten from the trusted addresses.

use std::fmt::Write;
use std::net::IpAddr;

use bytes::{BufMut, BytesMut};
use http::HeaderMap;
use http::header::{FORWARDED, HeaderName, HeaderValue};
use tidegate_policy::{Addresses, TrustedChain};

use crate::http::hop_headers::{ConnInfo, FORWARDED_FOR, FORWARDED_PROTO, REAL_IP};

/// Rewrites the headers of a request that came through a trusted proxy.
pub(crate) fn rewrite_forwarded(headers: &mut HeaderMap, conn: &ConnInfo, addresses: &Addresses) {
    let TrustedChain { chain, elements } = addresses.trusted_chain(headers, conn.peer);
    let proto = client_proto(headers, elements.first());
    let (mut forwarded_for, mut forwarded) = (BytesMut::with_capacity(64), BytesMut::with_capacity(96));
    for (at, address) in chain.iter().enumerate() {
        if at > 0 {
            forwarded_for.put_slice(b", ");
        }
        // Writing to memory does not fail.
        let _ = write!(forwarded_for, "{address}");
    }
    if elements.is_empty() {
        for (at, address) in chain.iter().take(chain.len().saturating_sub(1)).enumerate() {
            let _ = write!(forwarded, "for={}", ForwardedNode(*address));
            if let Some(proto) = proto.filter(|_| at == 0) {
                let _ = write!(forwarded, ";proto={proto}");
            }
            forwarded.put_slice(b", ");
        }
    }
    for element in elements {
        forwarded.put_slice(&element);
        forwarded.put_slice(b", ");
    }
    forwarded.put_slice(conn.forwarded.as_bytes());
    if headers.contains_key(REAL_IP)
        && let Some(client) = chain.first()
    {
        set(headers, REAL_IP, BytesMut::from(client.to_string().as_bytes()));
    }
    set(headers, FORWARDED_FOR, forwarded_for);
    set(headers, FORWARDED, forwarded);
    if !headers.contains_key(FORWARDED_PROTO) {
        headers.insert(FORWARDED_PROTO, proto.map_or_else(|| conn.proto.clone(), HeaderValue::from_static));
    }
}

/// The scheme of the client's request as the proxy reports it; only `http` and `https` are accepted.
fn client_proto(headers: &HeaderMap, element: Option<&Vec<u8>>) -> Option<&'static str> {
    let reported = match headers.get(FORWARDED_PROTO) {
        Some(reported) => reported.as_bytes(),
        None => element?.split(|&byte| byte == b';').map(<[u8]>::trim_ascii).find_map(|pair| {
            let (name, value) = pair.split_at_checked(6)?;
            name.eq_ignore_ascii_case(b"proto=").then(|| value.trim_ascii())
        })?,
    };
    ["https", "http"].into_iter().find(|known| reported.eq_ignore_ascii_case(known.as_bytes()))
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: BytesMut) {
    // Addresses and received header values are valid header values.
    match HeaderValue::from_maybe_shared(value.freeze()) {
        Ok(value) => headers.insert(name, value),
        Err(_) => headers.remove(name),
    };
}

/// An address in the syntax of `Forwarded`.
pub(crate) struct ForwardedNode(pub(crate) IpAddr);

impl std::fmt::Display for ForwardedNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V4(v4) => write!(f, "{v4}"),
            IpAddr::V6(v6) => write!(f, "\"[{v6}]\""),
        }
    }
}
