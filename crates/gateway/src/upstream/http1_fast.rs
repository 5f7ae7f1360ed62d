//! The fast path: an HTTP/1.1 request without a body, a response with a `Content-Length`, a connection that is kept.
//!
//! Most exchanges are like that. They need neither a task nor a channel: the request's own task writes and reads, and an
//! idle connection has no buffers. Anything else (an interim response, chunks, a body that ends with the connection,
//! something malformed) is not parsed here: hyper gets the connection and what was read, as if it had sent the request.

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
/// How much of a response is read at first: most are complete then.
const READ_BYTES: usize = 16 << 10;
/// How much of a body is read at once.
const MAX_PIECE: usize = 64 << 10;

/// What all exchanges of a worker write from and read into.
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

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct PlainConn {
    stream: TcpStream,
    /// More than the last response was read.
    is_unusable: bool,
    count: UpstreamConnCount,
}

/// A body whose length is known.
#[derive(Debug)]
pub(crate) struct PlainBody {
    first: Bytes,
    /// What is still to be read.
    left: u64,
    /// Why no more comes.
    error: Option<io::Error>,
}

/// What came back.
#[derive(Debug)]
pub(super) enum PlainResponse {
    Plain(Response<UpstreamBody>),
    /// Something else, of which this has been read.
    Other(Bytes),
}

/// The request is as it was in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlainError {
    /// Nothing was sent.
    NotSent,
    /// Some or all of it was sent, but nothing came back.
    Unanswered,
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

    /// Whether it may be kept. The same as [`Self::is_usable`], without asking the system.
    pub(super) fn is_reusable(&self) -> bool {
        !self.is_unusable
    }

    pub(super) fn into_parts(self) -> (TcpStream, UpstreamConnCount) {
        (self.stream, self.count)
    }

    pub(super) fn into_socket(self) -> ServerSocket {
        ServerSocket { stream: UpstreamStream::Plain(self.stream), count: self.count }
    }

    /// Sends a request and waits for the head of the response. That takes the place of the request's headers, so
    /// `request` cannot be sent again afterwards; after an error it can.
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
                    _ => return Poll::Ready(Err(PlainError::Unanswered)),
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
            return Poll::Ready(Err(PlainError::Unanswered));
        }
        let read = Bytes::copy_from_slice(read.filled());
        let Some((status, mut body)) = parse(&read, method, headers) else {
            return Poll::Ready(Ok(PlainResponse::Other(read)));
        };
        // What comes after the response belongs to no request.
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

    /// Waits for a piece of a body, of which so much is left.
    fn poll_piece(&mut self, cx: &mut Context<'_>, left: u64) -> Poll<io::Result<Bytes>> {
        // A buffer is allocated once there is something to read.
        ready!(self.stream.poll_read_ready(cx))?;
        let most = usize::try_from(left).unwrap_or(MAX_PIECE).min(MAX_PIECE);
        let mut piece = BytesMut::with_capacity(most);
        let read = ready!(pin!(self.stream.read_buf(&mut (&mut piece).limit(most))).poll(cx))?;
        Poll::Ready(if read > 0 { Ok(piece.freeze()) } else { Err(io::ErrorKind::UnexpectedEof.into()) })
    }
}

impl PlainBody {
    /// Whether all of it was read from the connection.
    pub(crate) fn is_received(&self) -> bool {
        self.left == 0
    }

    /// Bytes that are still to be passed on.
    pub(crate) fn length(&self) -> u64 {
        self.left + self.first.len() as u64
    }

    /// The next piece, which comes over `conn`.
    pub(crate) fn poll_piece(
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
        let read = match conn {
            Some(conn) => ready!(conn.poll_piece(cx, self.left)),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        match read {
            Ok(piece) => {
                self.left -= piece.len() as u64;
                Poll::Ready(Some(Ok(piece)))
            }
            Err(error) => {
                // Reported by the next call: what has come so far is passed on first.
                self.error = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

/// Parses the head of a response into `headers`. `None` unless all of it is there, and plain.
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
            // Frequent, and not passed on.
            CONNECTION if header.value.eq_ignore_ascii_case(b"keep-alive") => continue,
            CONNECTION | TRANSFER_ENCODING | UPGRADE => return None,
            CONTENT_LENGTH if length.is_some() => return None,
            CONTENT_LENGTH => {
                length = Some(number(header.value)?);
                // Such a response has no body, and is passed on without a length.
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
    let has_none = *method == Method::HEAD || matches!(status.as_u16(), 204 | 304);
    let left = if has_none { 0 } else { length? };
    Some((status, PlainBody { first: read.slice(start..), left, error: None }))
}

/// Digits only, and few enough not to overflow.
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

    fn read(answer: &str, method: &Method) -> Option<(u16, u64, Vec<String>)> {
        let (read, mut headers) = (Bytes::copy_from_slice(answer.as_bytes()), HeaderMap::new());
        headers.insert("x-left-over", HeaderValue::from_static("1"));
        let (status, body) = parse(&read, method, &mut headers)?;
        let headers = headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        Some((status.as_u16(), body.left, headers.collect()))
    }

    #[test]
    fn plain_response_is_parsed() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\nConnection: Keep-Alive\r\n\r\nhello";
        let headers = vec!["content-length: 5".to_owned(), "x-a: b".to_owned()];
        assert_eq!(read(answer, &Method::GET), Some((200, 5, headers.clone())));
        assert_eq!(
            read(answer, &Method::HEAD),
            Some((200, 0, headers)),
            "its length is that of another answer"
        );
        for (status, reason) in [(204, "No Content"), (304, "Not Modified")] {
            let answer = format!("HTTP/1.1 {status} {reason}\r\n\r\n");
            assert_eq!(read(&answer, &Method::GET), Some((status, 0, vec![])));
        }
        let empty = "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(read(empty, &Method::GET), Some((204, 0, vec![])), "it has no length");
    }

    #[test]
    fn response_that_is_not_plain_is_left_to_hyper() {
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
    fn request_head_is_written_line_by_line() {
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
