//! The original request that a proxy describes in headers.
//!
//! nginx sends `X-Original-Method`, `-URI`, `-Host` and `X-Real-IP`; Traefik and Caddy send `X-Forwarded-Method`, `-Uri`,
//! `-Host` and `-For`. A client can send the same headers through a proxy that does not overwrite them, so a statement that
//! appears twice must be the same both times, in one family of headers or in both. Otherwise the request is rejected: the
//! client must not choose which of the two is believed.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use smallvec::SmallVec;
use tidegate_policy::{BodyFacts, is_proxy_header};

use super::error::{HttpError, invalid};
use crate::request::DescribedRequest;

/// The token of the listener. `Authorization` is that of the original client.
pub(super) const TOKEN: &str = "x-tidegate-token";
/// Asks with the value `header` for the body in a header of the same name: nginx drops the body of an `auth_request`.
pub(super) const BODY: &str = "x-tidegate-body";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: &str = "x-real-ip";

/// What a proxy says about a request.
pub(super) struct OriginalRequest<'h> {
    pub(super) method: &'h [u8],
    pub(super) target: &'h [u8],
    pub(super) host: &'h [u8],
    pub(super) peer: IpAddr,
    headers: HeaderMap,
}

/// A statement that either family of headers makes, or both in the same words.
#[derive(Default)]
struct Statement<'h> {
    original: Option<&'h [u8]>,
    forwarded: Option<&'h [u8]>,
}

/// All statements of a request.
#[derive(Default)]
struct Statements<'h> {
    method: Statement<'h>,
    target: Statement<'h>,
    host: Statement<'h>,
    real_ip: Option<&'h [u8]>,
    forwarded_for: SmallVec<[&'h [u8]; 2]>,
}

impl<'h> OriginalRequest<'h> {
    /// Reads the headers of a request from a trusted proxy. The other headers are those of the original request.
    pub(super) fn read(lines: impl Iterator<Item = (&'h str, &'h [u8])>) -> Result<Self, HttpError> {
        let (mut stated, mut headers) = (Statements::default(), HeaderMap::new());
        for (name, value) in lines {
            // HTTP/2 transmits the white space around values.
            let (lower, value) = (LowerCaseName::new(name), value.trim_ascii());
            if stated.add(&lower, value)? {
                continue;
            }
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| HttpError::BAD_HEADER)?;
            headers.append(name, HeaderValue::from_bytes(value).map_err(|_| HttpError::BAD_HEADER)?);
        }
        let method = stated.method.value("x-original-method", "x-forwarded-method")?;
        let target = stated.target.value("x-original-uri", "x-forwarded-uri")?;
        let host = stated.host.value("x-original-host", "x-forwarded-host")?;
        let real = stated.real_ip.map(address).transpose()?;
        let forwarded = take_last_forwarded(&stated.forwarded_for, &mut headers)?;
        let peer = match (real, forwarded) {
            (Some(real), Some(forwarded)) if real != forwarded => {
                return Err(different(REAL_IP, FORWARDED_FOR.as_str()));
            }
            (Some(peer), _) | (None, Some(peer)) => peer,
            (None, None) => return Err(missing(REAL_IP, FORWARDED_FOR.as_str())),
        };
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
    pub(super) fn described(self) -> Result<DescribedRequest<'h>, HttpError> {
        let Self { method, target, host, peer, headers } = self;
        let host = HeaderValue::from_bytes(host).map_err(|_| HttpError::BAD_HEADER)?;
        let body = BodyFacts::Unknown;
        Ok(DescribedRequest { method, host: Some(host), target, headers, peer, body })
    }
}

impl<'h> Statements<'h> {
    /// Adds a header. Returns false if it belongs to the original request: it is not a statement, not one that only proxies send,
    /// and not one about the connection of the proxy.
    fn add(&mut self, name: &LowerCaseName, value: &'h [u8]) -> Result<bool, HttpError> {
        let only = match name.as_bytes() {
            b"x-original-method" => &mut self.method.original,
            b"x-original-uri" => &mut self.target.original,
            b"x-original-host" => &mut self.host.original,
            b"x-forwarded-method" => &mut self.method.forwarded,
            b"x-forwarded-uri" => &mut self.target.forwarded,
            b"x-forwarded-host" => &mut self.host.forwarded,
            name if name == REAL_IP.as_bytes() => &mut self.real_ip,
            b"x-forwarded-for" => {
                self.forwarded_for.push(value);
                return Ok(true);
            }
            b"connection" | b"transfer-encoding" | b"content-length" | b"upgrade" | b"host" => {
                return Ok(true);
            }
            name if name == TOKEN.as_bytes() || name == BODY.as_bytes() => return Ok(true),
            _ => return Ok(is_proxy_header(name.as_str())),
        };
        match only.replace(value) {
            None => Ok(true),
            Some(_) => Err(invalid(format!(
                "more than one header `{}`; configure the proxy to overwrite it",
                name.as_str()
            ))),
        }
    }
}

impl<'h> Statement<'h> {
    fn value(&self, original: &str, forwarded: &str) -> Result<&'h [u8], HttpError> {
        match (self.original, self.forwarded) {
            (Some(one), Some(other)) if one != other => Err(different(original, forwarded)),
            (Some(value), _) | (None, Some(value)) => Ok(value),
            (None, None) => Err(missing(original, forwarded)),
        }
    }
}

/// The name of a header in lower case, without an allocation for usual names.
struct LowerCaseName(SmallVec<[u8; 64]>);

impl LowerCaseName {
    fn new(name: &str) -> Self {
        let mut lower = SmallVec::from_slice(name.as_bytes());
        lower.make_ascii_lowercase();
        Self(lower)
    }

    fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for OriginalRequest<'_> {
    /// Without the target and the headers, which may contain secrets of clients.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, host, peer, .. } = self;
        let (method, host) = (String::from_utf8_lossy(method), String::from_utf8_lossy(host));
        let mut shown = f.debug_struct("OriginalRequest");
        shown.field("method", &method).field("host", &host).field("peer", peer).finish_non_exhaustive()
    }
}

fn different(one: &str, other: &str) -> HttpError {
    let fix = "configure the proxy to overwrite one of them and to remove the other";
    invalid(format!("`{one}` and `{other}` differ; {fix}"))
}

fn missing(one: &str, other: &str) -> HttpError {
    invalid(format!("missing header; configure the proxy to set `{one}` or `{other}`"))
}

/// The last address of `X-Forwarded-For`: the one that the proxy has added, which is its own peer. The addresses before it are
/// those that this peer has sent; they stay in `headers`.
fn take_last_forwarded(lines: &[&[u8]], headers: &mut HeaderMap) -> Result<Option<IpAddr>, HttpError> {
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
    if let Some(before) = before.and_then(|before| HeaderValue::from_bytes(before).ok()) {
        headers.insert(FORWARDED_FOR, before);
    }
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

    fn read(lines: &[&[(&'static str, &'static str)]]) -> Result<OriginalRequest<'static>, String> {
        let lines = lines.iter().copied().flatten().map(|(name, value)| (*name, value.as_bytes()));
        OriginalRequest::read(lines).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn original_request_with_names_in_any_case_is_read() {
        let upper = [
            ("X-Original-Method", "GET"),
            ("X-ORIGINAL-URI", "/a?b"),
            ("X-Original-Host", "api.example.org"),
            ("X-Real-IP", "192.0.2.7"),
            ("X-API-Key", "k"),
            ("X-Original-And-A-Name-That-Is-Longer-Than-Any-Other-Name-Of-A-Header-Here", "a"),
        ];
        let headers = read(&[&upper]).unwrap().described().unwrap().headers;
        assert_eq!((headers.len(), &headers["x-api-key"]), (1, &HeaderValue::from_static("k")));
        assert!(read(&[&upper, &NGINX[..1]]).unwrap_err().contains("more than one header"));
    }

    #[test]
    fn original_request_of_each_family_is_read() {
        let nginx = read(&[&NGINX]).unwrap();
        assert_eq!((nginx.method, nginx.target), (&b"GET"[..], &b"/a?b"[..]));
        assert_eq!(nginx.peer.to_string(), "192.0.2.7");
        let caddy = read(&[&CADDY]).unwrap();
        assert_eq!((caddy.method, caddy.host), (&b"POST"[..], &b"api.example.org"[..]));
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
        let read = read(&[&NGINX, &both]).unwrap();
        assert_eq!(read.peer.to_string(), "192.0.2.7");
        assert_eq!(read.described().unwrap().headers[FORWARDED_FOR], "203.0.113.1");
    }

    #[test]
    fn original_request_with_white_space_around_values_is_trimmed() {
        let lines = [NGINX[0], NGINX[1], ("x-original-host", "api.example.org\t"), NGINX[3]];
        let read = read(&[&lines, &[("x-forwarded-host", " api.example.org")]]).unwrap();
        assert_eq!(read.host, b"api.example.org");
    }

    #[test]
    fn original_request_keeps_only_the_headers_of_the_client() {
        let read = read(&[
            &NGINX,
            &[("x-tidegate-token", "secret"), ("authorization", "Bearer a"), ("connection", "x-a")],
            &[("host", "127.0.0.1:8082")],
        ])
        .unwrap();
        assert!(!format!("{read:?}").contains("Bearer"), "{read:?}");
        let names: Vec<_> =
            read.described().unwrap().headers.keys().map(|name| name.as_str().to_owned()).collect();
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
