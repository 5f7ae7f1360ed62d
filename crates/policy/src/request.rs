//! The one reading of a request, for every interface.
//!
//! [`Matcher::read`] turns a request as it arrived into a [`NormalRequest`], from which the policy gets its [`Facts`]. Gateway,
//! decision service, tower layer and `explain` call it, so a request has the same meaning, or the same reason to be rejected, in
//! all of them. The steps and their order:
//!
//! 1. the coding of the body and the method,
//! 2. the host, which the authority of the target overrides,
//! 3. the path, and its route,
//! 4. the headers: those that identify more than one client are an error, those that the peer may not send are removed,
//! 5. the forwarding headers of a trusted proxy,
//! 6. tokens and API keys.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::{CONNECTION, HOST, HeaderName, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, Version};
use smallvec::SmallVec;
use tidegate_core::Timestamp;

use crate::directory::Directory;
use crate::facts::{BodyFacts, Facts};
use crate::host::normalize_host;
use crate::identity::HeaderError;
use crate::matcher::{Matcher, Target};
use crate::path::PathError;
use crate::plan::Route;

/// Why a request is rejected before its limits are checked, whatever they are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The method is not uppercase. Rules compare methods exactly, so `post` would bypass a rule for `POST` if the server
    /// ignores case.
    #[error("method must be uppercase")]
    Method,
    /// The method is CONNECT.
    #[error("method CONNECT is not supported")]
    Connect,
    /// The target is `*` and the method is not OPTIONS.
    #[error("the target `*` is only allowed with OPTIONS")]
    Asterisk,
    /// There is no `Host` header.
    #[error("missing Host header")]
    NoHost,
    /// There is more than one `Host` header.
    #[error("more than one Host header")]
    RepeatedHost,
    /// The `Host` header is invalid or ambiguous.
    #[error("invalid Host header")]
    Host,
    /// `Transfer-Encoding` is not `chunked`, or there is more than one.
    #[error("Transfer-Encoding must be `chunked`")]
    TransferEncoding,
    /// An interface cannot read the request for a reason of its own.
    #[error("{0}")]
    Unreadable(&'static str),
    /// The normalised path is too long for a URI.
    #[error("the path cannot be encoded in a URI")]
    Uri,
    /// The path is ambiguous.
    #[error(transparent)]
    Path(#[from] PathError),
    /// No route matches.
    #[error("no matching route")]
    NoRoute,
    /// The headers identify more than one client, or a token or an API key is not valid.
    #[error(transparent)]
    Headers(#[from] HeaderError),
}

impl RequestError {
    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NoRoute => StatusCode::NOT_FOUND,
            _ if self.challenge().is_some() => StatusCode::UNAUTHORIZED,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    /// The code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoRoute => "no_route",
            Self::Path(_) => "bad_path",
            _ if self.challenge().is_some() => "unauthorized",
            _ => "bad_request",
        }
    }

    /// The sentence for people.
    pub fn message(&self) -> Cow<'static, str> {
        let kind = match self {
            Self::NoRoute => return "No matching route.".into(),
            Self::Path(_) => "Invalid path",
            _ if self.challenge().is_some() => "Unauthorized",
            _ => "Invalid request",
        };
        format!("{kind}: {self}.").into()
    }

    /// The value of `WWW-Authenticate`, if the status is 401.
    pub fn challenge(&self) -> Option<&'static str> {
        match self {
            Self::Headers(error) => error.challenge(),
            _ => None,
        }
    }
}

/// A request as it arrived.
#[derive(Debug)]
pub struct RequestHead<'r> {
    /// The method.
    pub method: &'r str,
    /// The target: a path, or a URL with an authority.
    pub uri: &'r Uri,
    /// The version of HTTP, which decides whether `Host` may be missing; `None` if the caller does not know the request itself. Its
    /// host is unknown then if `headers` have none.
    pub version: Option<Version>,
    /// The headers. Reading removes those that this peer may not send.
    pub headers: &'r mut HeaderMap,
    /// Which headers there are.
    pub traits: HeaderTraits,
    /// The address at the other end of the connection: the client or a proxy.
    pub peer: IpAddr,
}

/// What an interface can do with requests.
#[derive(Debug, Clone, Copy)]
pub struct ReadOptions<'a> {
    /// The directory of API keys.
    pub directory: Option<&'a Directory>,
    /// Whether a request without a route is rejected.
    pub needs_route: bool,
    /// Whether the request is forwarded with the headers that are left. If somebody else forwards it with all of them, headers that
    /// servers may confuse with those that the policy uses are an error, and so is a token that is to be removed.
    pub removes_headers: bool,
}

/// Which headers a request has that need more than a look-up, found in one pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent properties of a request")]
pub struct HeaderTraits {
    /// `Connection`.
    pub connection: bool,
    /// `Transfer-Encoding`.
    pub transfer_encoding: bool,
    /// A header that only a trusted proxy may send: see [`is_proxy_header`].
    pub proxy: bool,
    /// A name with an underscore or another unusual character.
    pub unusual_name: bool,
}

impl HeaderTraits {
    /// Scans headers, and removes white space around their values: HTTP ignores it, so a client has one spelling of its name.
    pub fn trim_and_scan(headers: &mut HeaderMap) -> Self {
        headers.iter_mut().fold(Self::default(), |all, (name, value)| {
            trim_value(value);
            Self {
                connection: all.connection || name == CONNECTION,
                transfer_encoding: all.transfer_encoding || name == TRANSFER_ENCODING,
                proxy: all.proxy || is_proxy_header(name.as_str()),
                unusual_name: all.unusual_name || has_unusual_character(name.as_str()),
            }
        })
    }
}

/// A request with one meaning.
#[derive(Debug)]
pub struct NormalRequest<'m, 'r> {
    /// The method as sent, which is uppercase.
    pub method: &'r str,
    uri: &'r Uri,
    host: Option<RequestHost>,
    /// The normalised path, with slashes decoded if the route is configured so.
    pub path: Cow<'r, str>,
    /// The first route that matches.
    pub route: Option<&'m Route>,
    /// The headers that count.
    pub headers: &'r mut HeaderMap,
    /// The address at the other end of the connection.
    pub peer: IpAddr,
    /// Whether the peer is a trusted proxy.
    pub is_trusted: bool,
    /// Why the request must be answered with 401 after its limits are checked: a guess of a token or a key is not free. What was not
    /// valid is removed from `headers`, if it can be, and names no client.
    pub refused: Option<Box<HeaderError>>,
}

impl NormalRequest<'_, '_> {
    /// What the policy is matched against, without the body.
    #[inline]
    pub fn facts(&self) -> Facts<'_> {
        let host = self.host.as_ref().map(RequestHost::as_str);
        let body = BodyFacts::Unknown;
        Facts { method: self.method, host, path: &self.path, headers: self.headers, peer: self.peer, body }
    }

    /// The target to be forwarded. `None` if it was sent like this: its path was not changed by normalisation and is not empty.
    pub fn rewritten_uri(&self) -> Result<Option<Uri>, RequestError> {
        // The path of `http://a?b` is empty, which HTTP/1.1 does not allow.
        let has_path = self.uri.path_and_query().is_some_and(|sent| sent.as_str().starts_with(['/', '*']));
        if has_path && matches!(self.path, Cow::Borrowed(_)) {
            return Ok(None);
        }
        let path = match self.uri.query() {
            Some(query) => PathAndQuery::try_from(format!("{}?{query}", self.path)),
            None => PathAndQuery::try_from(&*self.path),
        };
        let mut parts = self.uri.clone().into_parts();
        parts.path_and_query = Some(path.map_err(|_| RequestError::Uri)?);
        Uri::from_parts(parts).map(Some).map_err(|_| RequestError::Uri)
    }
}

/// The normalised host of a request while its header is borrowed.
struct ReadHost<'h> {
    /// `None` if HTTP/1.0 has none; the name is empty then.
    header: Option<&'h HeaderValue>,
    name: Cow<'h, str>,
}

/// A normalised host, which shares the text of its header unless that had to change.
#[derive(Debug)]
enum RequestHost {
    Sent { header: HeaderValue, length: usize },
    Changed(String),
}

impl ReadHost<'_> {
    fn keep(self) -> RequestHost {
        match (self.header, self.name) {
            (Some(header), Cow::Borrowed(name)) => {
                RequestHost::Sent { header: header.clone(), length: name.len() }
            }
            (_, name) => RequestHost::Changed(name.into_owned()),
        }
    }
}

impl RequestHost {
    fn as_str(&self) -> &str {
        match self {
            // Neither happens: a normalised host is visible ASCII, and borrowed from the beginning of the header.
            Self::Sent { header, length } => {
                header.to_str().ok().and_then(|host| host.get(..*length)).unwrap_or_default()
            }
            Self::Changed(host) => host,
        }
    }
}

impl Matcher {
    /// Reads a request: the same for all interfaces. `now` is called only if a token must be verified.
    #[inline]
    pub fn read<'m, 'r>(
        &'m self,
        head: RequestHead<'r>,
        options: ReadOptions<'_>,
        now: impl Fn() -> Timestamp,
    ) -> Result<NormalRequest<'m, 'r>, RequestError> {
        let RequestHead { method, uri, version, headers, traits, peer } = head;
        let peer = peer.to_canonical();
        if traits.transfer_encoding {
            check_transfer_encoding(headers)?;
        }
        check_method(method, uri.path())?;
        let host = read_host(headers, uri, version)?;
        let known_host = host.as_ref().map_or("", |host| &host.name);
        let Target { route, path } = self.target(known_host, uri.path())?;
        let host = host.map(ReadHost::keep);
        if options.needs_route && route.is_none() {
            return Err(RequestError::NoRoute);
        }
        let underscored = route.map_or(self.plan().http, |route| route.http).underscore_headers;
        let addresses = self.plan().identities.addresses();
        let is_trusted = addresses.trusts(peer);
        if !options.removes_headers {
            self.header_rules().check_spelling(headers, underscored)?;
        }
        self.header_rules().apply(headers, traits, is_trusted, underscored)?;
        if is_trusted {
            addresses.check(headers, peer)?;
        }
        let refused = match self.apply_credentials(headers, options, now) {
            Ok(()) => None,
            // Boxed, because it is kept while the limits are checked.
            Err(error) if error.challenge().is_some() => Some(Box::new(error)),
            Err(error) => return Err(error.into()),
        };
        Ok(NormalRequest { method, uri, host, path, route, headers, peer, is_trusted, refused })
    }
}

/// The host of a request. The authority of HTTP/2 or of an absolute URL replaces the `Host` header, which must be valid too.
/// RFC 9112, section 3.2: HTTP/1.1 requires one valid Host for every form of the target. `None` if the host is not known.
fn read_host<'h>(
    headers: &'h mut HeaderMap,
    uri: &Uri,
    version: Option<Version>,
) -> Result<Option<ReadHost<'h>>, RequestError> {
    if let Some(authority) = uri.authority() {
        match host_header(headers) {
            Err(RequestError::NoHost) if version != Some(Version::HTTP_11) => {}
            host => drop(requested_host(host?)?),
        }
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| RequestError::Host)?;
        headers.insert(HOST, host);
    }
    let header = match host_header(headers) {
        Err(RequestError::NoHost) if version == Some(Version::HTTP_10) => {
            return Ok(Some(ReadHost { header: None, name: Cow::Borrowed("") }));
        }
        Err(RequestError::NoHost) if version.is_none() => return Ok(None),
        header => header?,
    };
    Ok(Some(ReadHost { header: Some(header), name: requested_host(header)? }))
}

/// Checks the method of a request; `path` is the path as sent.
fn check_method(method: &str, path: &str) -> Result<(), RequestError> {
    if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err(RequestError::Method);
    }
    match method {
        "CONNECT" => Err(RequestError::Connect),
        "OPTIONS" => Ok(()),
        _ if path == "*" => Err(RequestError::Asterisk),
        _ => Ok(()),
    }
}

/// Checks the coding of a body. HTTP libraries accept any list that ends in `chunked`, and decode only that.
pub fn check_transfer_encoding(headers: &HeaderMap) -> Result<(), RequestError> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match codings.next() {
        Some(coding) if codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Err(RequestError::TransferEncoding)
        }
        Some(_) | None => Ok(()),
    }
}

/// Checks coding and host of a request that is not forwarded. RFC 9112, section 3.2: HTTP/1.1 requires one valid Host for every
/// form of the target.
pub fn check_http1_headers(version: Version, headers: &HeaderMap) -> Result<(), RequestError> {
    if version >= Version::HTTP_2 {
        return Ok(());
    }
    check_transfer_encoding(headers)?;
    match host_header(headers) {
        Err(RequestError::NoHost) if version != Version::HTTP_11 => Ok(()),
        host => host.and_then(requested_host).map(drop),
    }
}

/// The `Host` header of a request, which must appear exactly once.
fn host_header(headers: &HeaderMap) -> Result<&HeaderValue, RequestError> {
    let host = headers.get(HOST).ok_or(RequestError::NoHost)?;
    // Nearly always no header is repeated.
    let is_repeated = headers.len() > headers.keys_len() && headers.get_all(HOST).iter().nth(1).is_some();
    if is_repeated { Err(RequestError::RepeatedHost) } else { Ok(host) }
}

/// The normalised host of a `Host` header. Does not allocate if it is already normalised.
fn requested_host(header: &HeaderValue) -> Result<Cow<'_, str>, RequestError> {
    let host = header.to_str().ok().filter(|host| !host.is_empty());
    host.and_then(normalize_host).ok_or(RequestError::Host)
}

/// Removes white space around the value of a header.
pub fn trim_value(value: &mut HeaderValue) {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let bytes = value.as_bytes();
    if !is_space(bytes.first()) && !is_space(bytes.last()) {
        return;
    }
    // A part of a valid value is valid.
    let Ok(mut trimmed) = HeaderValue::from_bytes(bytes.trim_ascii()) else { return };
    trimmed.set_sensitive(value.is_sensitive());
    *value = trimmed;
}

/// Removes the headers that only a trusted proxy may send.
pub(crate) fn remove_proxy_headers(headers: &mut HeaderMap) {
    let names: SmallVec<[HeaderName; 4]> =
        headers.keys().filter(|name| is_proxy_header(name.as_str())).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Whether only a trusted proxy may send a header of this name: it describes the client, overrides the URL of the request,
/// says how important it is, or that it may be served in a cheaper way. `X-Forwarded-For` and `-Proto` are not included: which of their values are used depends on
/// the proxies that have written them.
pub fn is_proxy_header(name: &str) -> bool {
    let Some(name) = name.strip_prefix("x-") else { return false };
    if let Some(forwarded) = name.strip_prefix("forwarded-") {
        return !matches!(forwarded, "for" | "proto");
    }
    matches!(name, "real-ip" | "criticality" | "tidegate-degrade")
        || name.starts_with("original-")
        || name.starts_with("rewrite-")
}

/// Whether a header name has a character that is no letter, digit or dash. Some servers replace it: many read `X_API_Key` as
/// `X-API-Key`, and PHP reads `X.API.Key` so.
pub fn has_unusual_character(name: &str) -> bool {
    name.bytes().any(|byte| !byte.is_ascii_alphanumeric() && byte != b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_lowercase_connect_or_asterisk_is_rejected() {
        for (method, path, expected) in [
            ("GET", "/", Ok(())),
            ("M-SEARCH", "/", Ok(())),
            ("OPTIONS", "*", Ok(())),
            ("get", "/", Err(RequestError::Method)),
            ("GEt", "/", Err(RequestError::Method)),
            ("CONNECT", "/", Err(RequestError::Connect)),
            ("GET", "*", Err(RequestError::Asterisk)),
        ] {
            assert_eq!(check_method(method, path), expected, "{method} {path}");
        }
    }
}
