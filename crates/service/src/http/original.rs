//! The original request that a proxy describes in headers.
//!
//! nginx sends `X-Original-Method`, `-URI`, `-Host` and `X-Real-IP`; Traefik and Caddy send `X-Forwarded-Method`, `-Uri`,
//! `-Host` and `-For`. A client can send the same headers through a proxy that does not overwrite them, so a statement that
//! appears twice must be the same both times, in one family of headers or in both. Otherwise the request is rejected: the
//! client must not choose which of the two is believed.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};

use super::error::{HttpError, invalid};
use crate::request::{DescribedRequest, remove_proxy_headers, trim_values};

/// The token of the listener. `Authorization` is that of the original client.
pub(super) const TOKEN_NAME: &str = "x-tidegate-token";
const TOKEN: HeaderName = HeaderName::from_static(TOKEN_NAME);
const ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");
const ORIGINAL_HOST: HeaderName = HeaderName::from_static("x-original-host");
const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// What a proxy says about a request.
pub(super) struct OriginalRequest {
    pub(super) method: HeaderValue,
    pub(super) target: HeaderValue,
    pub(super) host: HeaderValue,
    pub(super) peer: IpAddr,
    headers: HeaderMap,
}

impl OriginalRequest {
    /// Reads the headers of a request from a trusted proxy. The other headers are those of the original request.
    pub(super) fn read(mut headers: HeaderMap) -> Result<Self, HttpError> {
        // HTTP/2 transmits the white space around values.
        trim_values(&mut headers);
        let method = stated(&headers, [ORIGINAL_METHOD, FORWARDED_METHOD])?;
        let target = stated(&headers, [ORIGINAL_URI, FORWARDED_URI])?;
        let host = stated(&headers, [ORIGINAL_HOST, FORWARDED_HOST])?;
        let real = single(&headers, &REAL_IP)?.map(|value| address(value.as_bytes())).transpose()?;
        let forwarded = take_last_forwarded(&mut headers)?;
        let peer = match (real, forwarded) {
            (Some(real), Some(forwarded)) if real != forwarded => {
                return Err(different(&REAL_IP, &FORWARDED_FOR));
            }
            (Some(peer), _) | (None, Some(peer)) => peer,
            (None, None) => return Err(missing(&REAL_IP, &FORWARDED_FOR)),
        };
        remove_proxy_headers(&mut headers);
        // These belong to the connection of the proxy and not to the original request.
        for name in [CONNECTION, TRANSFER_ENCODING, CONTENT_LENGTH, UPGRADE, HOST, TOKEN] {
            headers.remove(name);
        }
        Ok(Self { method, target, host, peer, headers })
    }

    /// Adds the proxy that asks to the addresses through which the request came. Its headers about users and tenants count then,
    /// as for a gateway behind this proxy.
    pub(super) fn came_through(&mut self, proxy: IpAddr) {
        if let Ok(address) = HeaderValue::try_from(self.peer.to_string()) {
            self.headers.append(FORWARDED_FOR, address);
            self.peer = proxy;
        }
    }

    /// The request to be checked.
    pub(super) fn described(&mut self) -> DescribedRequest<'_> {
        DescribedRequest {
            method: self.method.as_bytes(),
            host: Some(self.host.clone()),
            target: self.target.as_bytes(),
            headers: std::mem::take(&mut self.headers),
            peer: self.peer,
        }
    }
}

impl fmt::Debug for OriginalRequest {
    /// Without the target and the headers, which may contain secrets of clients.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, host, peer, .. } = self;
        let mut shown = f.debug_struct("OriginalRequest");
        shown.field("method", method).field("host", host).field("peer", peer).finish_non_exhaustive()
    }
}

/// The only value of a header; an error if there are more.
fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h HeaderValue>, HttpError> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    match values.next() {
        Some(_) => {
            Err(invalid(format!("more than one header `{name}`; configure the proxy to overwrite it")))
        }
        None => Ok(value),
    }
}

/// A statement that either header makes, or both in the same words.
fn stated(headers: &HeaderMap, [original, forwarded]: [HeaderName; 2]) -> Result<HeaderValue, HttpError> {
    match (single(headers, &original)?, single(headers, &forwarded)?) {
        (Some(one), Some(other)) if one != other => Err(different(&original, &forwarded)),
        (Some(value), _) | (None, Some(value)) => Ok(value.clone()),
        (None, None) => Err(missing(&original, &forwarded)),
    }
}

fn different(one: &HeaderName, other: &HeaderName) -> HttpError {
    let fix = "configure the proxy to overwrite one of them and to remove the other";
    invalid(format!("`{one}` and `{other}` differ; {fix}"))
}

fn missing(one: &HeaderName, other: &HeaderName) -> HttpError {
    invalid(format!("missing header; configure the proxy to set `{one}` or `{other}`"))
}

/// Removes the last address of `X-Forwarded-For`: the one that the proxy has added, which is its own peer. The addresses
/// before it are those that this peer has sent.
fn take_last_forwarded(headers: &mut HeaderMap) -> Result<Option<IpAddr>, HttpError> {
    let lines: Vec<&[u8]> = headers.get_all(&FORWARDED_FOR).iter().map(HeaderValue::as_bytes).collect();
    if lines.is_empty() {
        return Ok(None);
    }
    let joined = lines.join(&b',');
    let (before, last) = match joined.iter().rposition(|byte| *byte == b',') {
        Some(comma) => (joined.get(..comma), joined.get(comma + 1..)),
        None => (None, Some(joined.as_slice())),
    };
    let last = address(last.unwrap_or_default())?;
    // A part of a valid value is valid.
    match before.and_then(|before| HeaderValue::from_bytes(before).ok()) {
        Some(before) => headers.insert(FORWARDED_FOR, before),
        None => headers.remove(FORWARDED_FOR),
    };
    Ok(Some(last))
}

/// An address, with or without a port.
fn address(text: &[u8]) -> Result<IpAddr, HttpError> {
    let text = std::str::from_utf8(text.trim_ascii()).unwrap_or_default();
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let address = text.parse().ok().or_else(with_port).or_else(in_brackets);
    let address = address.ok_or_else(|| {
        invalid(format!("`{REAL_IP}` or the last entry of `{FORWARDED_FOR}` is not an address"))
    })?;
    Ok(IpAddr::to_canonical(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NGINX: [(&str, &str); 4] = [
        ("x-original-method", "GET"),
        ("x-original-uri", "/a?b"),
        ("x-original-host", "api.example.org"),
        ("x-real-ip", "192.0.2.7"),
    ];
    const CADDY: [(&str, &str); 4] = [
        ("x-forwarded-method", "POST"),
        ("x-forwarded-uri", "/a"),
        ("x-forwarded-host", "api.example.org"),
        ("x-forwarded-for", "192.0.2.7"),
    ];

    fn read(lines: &[&[(&'static str, &str)]]) -> Result<OriginalRequest, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines.iter().copied().flatten() {
            headers.append(*name, value.parse().unwrap());
        }
        OriginalRequest::read(headers).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn original_request_of_each_family_is_read() {
        let nginx = read(&[&NGINX]).unwrap();
        assert_eq!((nginx.method.as_bytes(), nginx.target.as_bytes()), (&b"GET"[..], &b"/a?b"[..]));
        assert_eq!(nginx.peer.to_string(), "192.0.2.7");
        let caddy = read(&[&CADDY]).unwrap();
        assert_eq!((caddy.method.as_bytes(), caddy.host.as_bytes()), (&b"POST"[..], &b"api.example.org"[..]));
        assert_eq!(caddy.peer.to_string(), "192.0.2.7");
    }

    #[test]
    fn original_request_with_a_missing_statement_is_rejected() {
        for missing in 0..4 {
            for family in [NGINX, CADDY] {
                let lines: Vec<_> = family
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| *at != missing)
                    .map(|(_, line)| *line)
                    .collect();
                let error = read(&[&lines]).unwrap_err();
                assert!(error.contains("missing header") && error.contains(family[missing].0), "{error}");
            }
        }
    }

    #[test]
    fn original_request_with_two_different_statements_is_rejected() {
        for (name, value) in NGINX.into_iter().chain(CADDY) {
            let other = if value.contains("192") { "198.51.100.1" } else { "OTHER" };
            for family in [NGINX, CADDY] {
                let error = read(&[&family, &[(name, other)]]);
                // Of several addresses in X-Forwarded-For the proxy has added the last one.
                let is_list = name == "x-forwarded-for" && family == CADDY;
                assert_eq!(error.is_err(), !is_list, "{name}: {error:?}");
            }
        }
        for (name, value) in NGINX.into_iter().chain(CADDY) {
            let family = if NGINX.contains(&(name, value)) { NGINX } else { CADDY };
            let repeated = read(&[&family, &[(name, value)]]);
            assert_eq!(repeated.is_err(), name != "x-forwarded-for", "{name} twice with one value");
        }
    }

    #[test]
    fn original_request_with_the_same_statements_in_both_families_is_read() {
        let both = [("x-forwarded-uri", "/a?b"), ("x-forwarded-for", "203.0.113.1, 192.0.2.7")];
        let mut read = read(&[&NGINX, &both]).unwrap();
        assert_eq!(read.peer.to_string(), "192.0.2.7");
        assert_eq!(read.described().headers[FORWARDED_FOR], "203.0.113.1");
    }

    #[test]
    fn original_request_with_white_space_around_values_is_trimmed() {
        let lines = [NGINX[0], NGINX[1], ("x-original-host", "api.example.org\t"), NGINX[3]];
        let read = read(&[&lines, &[("x-forwarded-host", " api.example.org")]]).unwrap();
        assert_eq!(read.host, "api.example.org");
    }

    #[test]
    fn original_request_keeps_only_the_headers_of_the_client() {
        let mut read = read(&[
            &NGINX,
            &[("x-tidegate-token", "secret"), ("authorization", "Bearer a"), ("connection", "x-a")],
            &[("host", "127.0.0.1:8082")],
        ])
        .unwrap();
        assert!(!format!("{read:?}").contains("Bearer"), "{read:?}");
        let names: Vec<_> = read.described().headers.keys().map(|name| name.as_str().to_owned()).collect();
        assert_eq!(names, ["authorization"]);
    }

    #[test]
    fn address_is_parsed_with_port_or_brackets_and_nothing_else() {
        for (text, expected) in [
            ("192.0.2.7", "192.0.2.7"),
            (" 192.0.2.7:80 ", "192.0.2.7"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
        ] {
            assert_eq!(address(text.as_bytes()).unwrap().to_string(), expected, "{text}");
        }
        for text in ["", "unknown", "192.0.2.7, 192.0.2.8", "192.0.2", "[192.0.2.7", "é"] {
            assert!(address(text.as_bytes()).is_err(), "{text}");
        }
    }
}
