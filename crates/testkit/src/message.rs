//! HTTP/1.1 messages as the strictest parser reads them.

use std::fmt;

use serde_json::Value;

/// A response as a client receives it.
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names as they were written, and values without the spaces around them.
    pub headers: Vec<(String, String)>,
    /// The body without its framing.
    pub body: Vec<u8>,
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {:?}", self.status, self.headers, self.text())
    }
}

impl Response {
    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// The requests left in the limit, as `X-RateLimit-Remaining` reports them.
    pub fn remaining(&self) -> u64 {
        let remaining = self.header("x-ratelimit-remaining").and_then(|value| value.parse().ok());
        remaining.unwrap_or_else(|| panic!("no limit is reported in {self:?}"))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// All headers as lines of text.
    pub fn head(&self) -> String {
        let lines = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        lines.collect::<Vec<_>>().concat()
    }
}

/// A request as a server receives it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The target as it was written.
    pub target: String,
    /// Names as they were written, and values without the spaces around them.
    pub headers: Vec<(String, String)>,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// The trailers after the last chunk, as they were written.
    pub trailers: String,
}

impl Request {
    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }
}

fn find<'h>(headers: &'h [(String, String)], name: &str) -> Option<&'h str> {
    headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// The response at the beginning of `bytes` and its length, if it is complete. Interim responses are left out.
pub fn read_response(bytes: &[u8], is_ended: bool) -> Option<(Response, usize)> {
    read_response_to("GET", bytes, is_ended)
}

/// The same for a request of this method: a response to HEAD has no body, whatever its headers announce.
pub fn read_response_to(method: &str, bytes: &[u8], is_ended: bool) -> Option<(Response, usize)> {
    let (line, headers, mut at) = head(bytes)?.expect("a well-formed head");
    let status: u16 = line.get(9..12)?.parse().expect("a status code");
    if (102..200).contains(&status) || status == 100 {
        let (response, length) = read_response_to(method, &bytes[at..], is_ended)?;
        return Some((response, at + length));
    }
    let rest = &bytes[at..];
    let body = if method == "HEAD" || matches!(status, 101 | 204 | 304) {
        Vec::new()
    } else if find(&headers, "transfer-encoding").is_some() {
        let (body, _, length) = chunks(rest)?.expect("well-formed chunks");
        at += length;
        body
    } else if let Some(length) = find(&headers, "content-length") {
        let length: usize = length.parse().expect("a length");
        at += length;
        rest.get(..length)?.to_vec()
    } else if is_ended {
        at += rest.len();
        rest.to_vec()
    } else {
        return None;
    };
    Some((Response { status, headers, body }, at))
}

/// The request at the beginning of `bytes` and its length. `None` if more must come, an error if no upstream should
/// ever see it.
pub fn read_request(bytes: &[u8]) -> Option<Result<(Request, usize), String>> {
    let (line, headers, mut at) = match head(bytes)? {
        Ok(head) => head,
        Err(wrong) => return Some(Err(wrong)),
    };
    let wrong = |what: &str| Some(Err(format!("{what}: {:?}", String::from_utf8_lossy(bytes))));
    let parts: Vec<_> = line.split(' ').collect();
    let [method, target, "HTTP/1.1"] = parts[..] else { return wrong("the request line") };
    if method.is_empty() || !method.bytes().all(is_token) {
        return wrong("the method");
    }
    if !(target.starts_with('/') || target == "*") || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return wrong("the target");
    }
    let count = |name: &str| headers.iter().filter(|(header, _)| header.eq_ignore_ascii_case(name)).count();
    if count("host") != 1 || count("content-length") + count("transfer-encoding") > 1 {
        return wrong("host and framing must be there once");
    }
    let rest = &bytes[at..];
    let mut trailers = String::new();
    let body = if let Some(coding) = find(&headers, "transfer-encoding") {
        if coding != "chunked" {
            return wrong("the transfer coding");
        }
        match chunks(rest)? {
            Ok((body, last, length)) => {
                trailers = last;
                at += length;
                body
            }
            Err(what) => return wrong(&what),
        }
    } else {
        let length = find(&headers, "content-length").unwrap_or("0");
        if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
            return wrong("the length");
        }
        let length: usize = length.parse().expect("digits");
        at += length;
        rest.get(..length)?.to_vec()
    };
    Some(Ok((Request { method: method.to_owned(), target: target.to_owned(), headers, body, trailers }, at)))
}

type Head = (String, Vec<(String, String)>, usize);

fn head(bytes: &[u8]) -> Option<Result<Head, String>> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let wrong = |what: &str| Some(Err(format!("{what}: {:?}", String::from_utf8_lossy(&bytes[..end]))));
    let mut lines =
        bytes[..end].split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let is_broken = |pair: &[u8]| (pair[0] == b'\r') != (pair[1] == b'\n');
    if bytes[..end + 2].windows(2).any(is_broken) {
        return wrong("a CR or LF alone");
    }
    let mut headers = Vec::new();
    for line in lines {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { return wrong("no colon") };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return wrong("a header's name");
        }
        if value.iter().any(|&byte| (byte < b' ' && byte != b'\t') || byte == 0x7f) {
            return wrong("a header's value");
        }
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        headers.push((text(name), text(value)));
    }
    Some(Ok((first, headers, end + 4)))
}

/// A body, its trailers, and their length together.
type Chunks = (Vec<u8>, String, usize);

fn chunks(mut bytes: &[u8]) -> Option<Result<Chunks, String>> {
    let whole = bytes.len();
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|window| window == b"\r\n")?;
        let Ok(size) = usize::from_str_radix(&String::from_utf8_lossy(&bytes[..end]), 16) else {
            return Some(Err(format!("the size of a chunk in {:?}", String::from_utf8_lossy(bytes))));
        };
        bytes = &bytes[end + 2..];
        if size == 0 {
            let trailers = if bytes.starts_with(b"\r\n") {
                2
            } else {
                bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4
            };
            let last = String::from_utf8_lossy(&bytes[..trailers]).trim_end().to_owned();
            return Some(Ok((body, last, whole - bytes.len() + trailers)));
        }
        body.extend_from_slice(bytes.get(..size)?);
        if bytes.get(size..size + 2)? != b"\r\n" {
            return Some(Err("a chunk that does not end".to_owned()));
        }
        bytes = &bytes[size + 2..];
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::{read_request, read_response, read_response_to};

    #[test]
    fn request_in_chunks_is_read_with_its_trailers() {
        let bytes = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: b\r\n\r\nrest";
        let (request, length) = read_request(bytes).expect("complete").expect("well-formed");
        assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/a"));
        assert_eq!((request.body.as_slice(), request.trailers.as_str()), (&b"abc"[..], "X: b"));
        assert_eq!(&bytes[length..], b"rest");
    }

    #[test]
    fn request_incomplete_is_none_and_malformed_is_an_error() {
        assert!(read_request(b"GET / HTTP/1.1\r\nHost: a\r\n").is_none());
        assert!(read_request(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na").is_none());
        let malformed: [&[u8]; 5] = [
            b"GET / HTTP/1.0\r\nHost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\nHost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        ];
        for bytes in malformed {
            assert!(read_request(bytes).is_some_and(|read| read.is_err()), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn response_without_a_length_ends_with_the_connection() {
        let bytes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nabc";
        assert!(read_response(bytes, false).is_none());
        let (response, length) = read_response(bytes, true).expect("complete");
        assert_eq!((response.status, response.text().as_str(), length), (200, "abc", bytes.len()));
    }

    #[test]
    fn response_to_head_has_no_body() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nHTTP";
        let (response, length) = read_response_to("HEAD", bytes, false).expect("complete");
        assert_eq!((response.body.len(), &bytes[length..]), (0, &b"HTTP"[..]));
    }
}
