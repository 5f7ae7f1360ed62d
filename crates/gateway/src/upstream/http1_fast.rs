//! The fast path: an HTTP/1.1 request without a body, a response with a `Content-Length`, a persistent connection.
//!
//! Most exchanges are like that. They need neither a task nor a channel: the task of the request writes and reads, and an
//! idle connection has no buffers. Any other response (an interim response, chunks, a body that ends with the connection,
//! a malformed response) is left to hyper: it gets the connection and the bytes that were read.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::abandon::ServerSocket;
use super::server::UpstreamConnCount;
use super::stream::UpstreamStream;
use crate::http::response_body::UpstreamBody;

/// A response with more headers is left to hyper.
const MAX_HEADERS: usize = 64;
/// The size of the first read. Most responses fit.
const READ_BYTES: usize = 16 << 10;
/// The maximum size of a body chunk.
const MAX_CHUNK: usize = 64 << 10;
/// The same for an HTTP/2 client, whose other responses may be waiting too: a frame.
const SMALL_CHUNK: usize = 16 << 10;

/// Buffers that all exchanges of a worker share.
#[derive(Debug)]
pub(super) struct IoBuffers {
    write: RefCell<Vec<u8>>,
    read: RefCell<Box<[u8]>>,
}

impl IoBuffers {
    pub(super) fn new() -> Self {
        Self { write: RefCell::default(), read: RefCell::new(vec![0; READ_BYTES].into()) }
    }
}

/// A plain TCP connection to a server.
#[derive(Debug)]
pub(crate) struct PlainConn {
    stream: TcpStream,
    /// Bytes after the last response were received.
    is_unusable: bool,
    count: UpstreamConnCount,
}

/// A body of known length.
#[derive(Debug)]
pub(crate) struct PlainBody {
    first: Bytes,
    /// Bytes still to be read.
    left: u64,
    max_chunk: usize,
    /// A read error that the next poll reports.
    error: Option<io::Error>,
}

/// A response, or bytes that the fast path does not parse.
#[derive(Debug)]
pub(super) enum PlainResponse {
    Plain(Response<UpstreamBody>),
    /// Bytes of a response that is left to hyper.
    Other(Bytes),
}

/// Why an exchange failed. The request is unchanged in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlainError {
    /// Nothing was sent.
    NotSent,
    /// Some or all of the request was sent, but no response was received.
    NoResponse,
}

impl PlainConn {
    pub(super) fn new(stream: TcpStream, count: UpstreamConnCount) -> Self {
        Self { stream, is_unusable: false, count }
    }

    /// Whether a request can be sent: the last response was complete, and since then the server has neither closed the
    /// connection nor sent anything.
    pub(super) fn is_usable(&self) -> bool {
        let nothing = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        !self.is_unusable && self.stream.try_read(&mut [0]).is_err_and(nothing)
    }

    /// Whether it may be kept. Like [`Self::is_usable`], without a system call.
    pub(super) fn is_reusable(&self) -> bool {
        !self.is_unusable
    }

    pub(super) fn into_parts(self) -> (TcpStream, UpstreamConnCount) {
        (self.stream, self.count)
    }

    pub(super) fn into_socket(self) -> ServerSocket {
        ServerSocket { stream: UpstreamStream::Plain(self.stream), count: self.count }
    }

    /// Sends a request and waits for the head of the response. The response reuses the header map of `request`, which cannot
    /// be sent again then; after an error it can.
    pub(super) async fn exchange(
        &mut self,
        buffers: &IoBuffers,
        request: &mut Parts,
    ) -> Result<PlainResponse, PlainError> {
        {
            let mut head = buffers.write.take();
            head.clear();
            write_head(&mut head, request);
            let sent = self.write_all(&head).await;
            buffers.write.replace(head);
            sent?;
        }
        let Parts { method, headers, .. } = request;
        poll_fn(|cx| self.poll_response(cx, method, &mut buffers.read.borrow_mut(), headers)).await
    }

    async fn write_all(&mut self, head: &[u8]) -> Result<(), PlainError> {
        let mut sent = 0;
        poll_fn(|cx| {
            while sent < head.len() {
                match ready!(Pin::new(&mut self.stream).poll_write(cx, &head[sent..])) {
                    Ok(bytes) if bytes > 0 => sent += bytes,
                    _ if sent == 0 => return Poll::Ready(Err(PlainError::NotSent)),
                    _ => return Poll::Ready(Err(PlainError::NoResponse)),
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Waits for the response to a request with `method`. Reads into `buffer` and puts the headers into `headers`.
    fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        method: &Method,
        buffer: &mut [u8],
        headers: &mut HeaderMap,
    ) -> Poll<Result<PlainResponse, PlainError>> {
        let mut read = ReadBuf::new(buffer);
        let result = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read));
        if result.is_err() || read.filled().is_empty() {
            return Poll::Ready(Err(PlainError::NoResponse));
        }
        let read = Bytes::copy_from_slice(read.filled());
        let Some((status, mut body)) = parse(&read, method, headers) else {
            return Poll::Ready(Ok(PlainResponse::Other(read)));
        };
        // Bytes after the response belong to no request.
        if body.first.len() as u64 > body.left {
            body.first.truncate(usize::try_from(body.left).unwrap_or_default());
            self.is_unusable = true;
        }
        body.left -= body.first.len() as u64;
        let mut response = Response::new(UpstreamBody::Plain(body));
        *response.status_mut() = status;
        *response.headers_mut() = std::mem::take(headers);
        Poll::Ready(Ok(PlainResponse::Plain(response)))
    }

    /// Waits for a chunk of a body, of at most `most` bytes.
    fn poll_chunk(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<Bytes>> {
        // The buffer is allocated only when the socket is readable.
        ready!(self.stream.poll_read_ready(cx))?;
        let mut chunk = BytesMut::with_capacity(most);
        let read = ready!(pin!(self.stream.read_buf(&mut (&mut chunk).limit(most))).poll(cx))?;
        Poll::Ready(match read {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            // The chunk may wait for the client: it does not hold the memory of a whole buffer meanwhile.
            _ if read < most / 2 => Ok(Bytes::copy_from_slice(&chunk)),
            _ => Ok(chunk.freeze()),
        })
    }
}

impl PlainBody {
    /// Reads small chunks from now on.
    pub(crate) fn limit_chunks(&mut self) {
        self.max_chunk = SMALL_CHUNK;
    }

    /// Whether the whole body was read from the connection.
    pub(crate) fn is_received(&self) -> bool {
        self.left == 0
    }

    /// Bytes that are still to be forwarded.
    pub(crate) fn length(&self) -> u64 {
        self.left + self.first.len() as u64
    }

    /// Polls the next chunk from `conn`.
    pub(crate) fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
        conn: Option<&mut PlainConn>,
    ) -> Poll<Option<io::Result<Bytes>>> {
        if !self.first.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.first))));
        }
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if let Some(error) = self.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let most = usize::try_from(self.left).unwrap_or(self.max_chunk).min(self.max_chunk);
        let read = match conn {
            Some(conn) => ready!(conn.poll_chunk(cx, most)),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        match read {
            Ok(chunk) => {
                self.left -= chunk.len() as u64;
                Poll::Ready(Some(Ok(chunk)))
            }
            Err(error) => {
                // The next poll reports the error, so that hyper writes the received bytes first.
                self.error = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

/// Parses the head of a response into `headers`. `None` unless it is complete and plain.
fn parse(read: &Bytes, method: &Method, headers: &mut HeaderMap) -> Option<(StatusCode, PlainBody)> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut head, read, &mut fields)
        .ok()?;
    let httparse::Status::Complete(start) = parsed else { return None };
    let status = StatusCode::from_u16(head.code?).ok()?;
    if head.version != Some(1) || status.as_u16() < 200 || head.reason != status.canonical_reason() {
        return None;
    }
    headers.clear();
    headers.reserve(head.headers.len());
    let mut length = None;
    for header in &*head.headers {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        match name {
            // Frequent, and not forwarded.
            CONNECTION if header.value.eq_ignore_ascii_case(b"keep-alive") => continue,
            CONNECTION | TRANSFER_ENCODING | UPGRADE => return None,
            CONTENT_LENGTH if length.is_some() => return None,
            CONTENT_LENGTH => {
                length = Some(number(header.value)?);
                // A 204 has no body and is forwarded without a length.
                if status == StatusCode::NO_CONTENT {
                    if length != Some(0) {
                        return None;
                    }
                    continue;
                }
            }
            _ => {}
        }
        headers.append(name, HeaderValue::from_maybe_shared(read.slice_ref(header.value)).ok()?);
    }
    let has_no_body = *method == Method::HEAD || matches!(status.as_u16(), 204 | 304);
    let left = if has_no_body { 0 } else { length? };
    Some((status, PlainBody { first: read.slice(start..), left, max_chunk: MAX_CHUNK, error: None }))
}

/// Parses digits, few enough not to overflow.
fn number(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?;
    let is_plain = (1..=18).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| digits.parse().ok()).flatten()
}

/// Writes the head of a request without a body. `http`'s types contain nothing that would need escaping.
fn write_head(head: &mut Vec<u8>, request: &Parts) {
    debug_assert_eq!(request.version, Version::HTTP_11);
    let path = request.uri.path_and_query().map_or("/", |path| path.as_str());
    for part in [request.method.as_str(), " ", path, " HTTP/1.1\r\n"] {
        head.extend_from_slice(part.as_bytes());
    }
    for (name, value) in &request.headers {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn read(response: &str, method: &Method) -> Option<(u16, u64, Vec<String>)> {
        let (read, mut headers) = (Bytes::copy_from_slice(response.as_bytes()), HeaderMap::new());
        headers.insert("x-left-over", HeaderValue::from_static("1"));
        let (status, body) = parse(&read, method, &mut headers)?;
        let headers = headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        Some((status.as_u16(), body.left, headers.collect()))
    }

    #[test]
    fn response_plain_is_parsed() {
        let response =
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\nConnection: Keep-Alive\r\n\r\nhello";
        let headers = vec!["content-length: 5".to_owned(), "x-a: b".to_owned()];
        assert_eq!(read(response, &Method::GET), Some((200, 5, headers.clone())));
        assert_eq!(
            read(response, &Method::HEAD),
            Some((200, 0, headers)),
            "the length is that of the GET response"
        );
        for (status, reason) in [(204, "No Content"), (304, "Not Modified")] {
            let response = format!("HTTP/1.1 {status} {reason}\r\n\r\n");
            assert_eq!(read(&response, &Method::GET), Some((status, 0, vec![])));
        }
        let empty = "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(read(empty, &Method::GET), Some((204, 0, vec![])), "forwarded without a length");
    }

    #[test]
    fn response_not_plain_is_left_to_hyper() {
        let others = [
            "",
            "HTTP/1.1 200 OK\r\nContent-Length: 5",
            "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 200 Fine\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 200\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\n Content-Length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: a\0b\r\n\r\n",
            "HTTP/1.1 999\r\n\r\n",
            "SSH-2.0-OpenSSH\r\n\r\n",
        ];
        for other in others {
            assert_eq!(read(other, &Method::GET), None, "{other:?}");
        }
        let many = "X-A: a\r\n".repeat(MAX_HEADERS + 1);
        assert_eq!(read(&format!("HTTP/1.1 204 No Content\r\n{many}\r\n"), &Method::GET), None);
    }

    #[test]
    fn request_head_is_written_with_all_headers() {
        let (mut request, ()) = Request::new(()).into_parts();
        request.uri = "/a?b=c".parse().unwrap();
        request.headers.insert("host", HeaderValue::from_static("a.example"));
        request.headers.append("x-a", HeaderValue::from_static("1"));
        request.headers.append("x-a", HeaderValue::from_static("2"));
        let mut head = Vec::new();
        write_head(&mut head, &request);
        let expected = "GET /a?b=c HTTP/1.1\r\nhost: a.example\r\nx-a: 1\r\nx-a: 2\r\n\r\n";
        assert_eq!(String::from_utf8(head).unwrap(), expected);
    }
}
