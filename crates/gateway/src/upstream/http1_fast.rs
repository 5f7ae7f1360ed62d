//! The plain way to a server: a request without a body, an answer whose length is told, a connection that is kept.
//!
//! Most exchanges are like that. They need neither a task nor a channel: whoever asks writes and reads itself, and a
//! connection at rest has no buffers. Whatever is not as plain, be it an interim answer, chunks, an end that only the
//! connection tells, or something malformed, is not judged here: hyper is handed the connection and what has been read
//! of it, as if it had asked itself.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Method, Request, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::abandon::ServerSocket;
use super::server::Connected;
use super::stream::Stream;

/// So many headers of an answer are looked at here.
const HEADERS: usize = 64;
/// So much is asked for at once of a body.
const PIECE: usize = 64 << 10;

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Line {
    stream: TcpStream,
    is_spent: bool,
    connected: Connected,
}

/// The head of a plain answer, and what came of its body with it.
#[derive(Debug)]
pub(super) struct Plain {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: PlainBody,
}

/// A body whose length is known.
#[derive(Debug)]
pub(crate) struct PlainBody {
    first: Bytes,
    /// What is still to be read.
    left: u64,
    /// Why no more comes.
    broke: Option<io::Error>,
}

/// What came of asking.
#[derive(Debug)]
pub(super) enum Answered {
    Plain(Plain),
    /// Something else, of which this has been read.
    Other(Bytes),
}

/// Nothing was sent, or nothing came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    Unsent,
    Unanswered,
}

impl Line {
    pub(super) fn new(stream: TcpStream, connected: Connected) -> Self {
        Self { stream, is_spent: false, connected }
    }

    /// Whether it can be asked: the last answer was whole, and since then neither an end has come nor words that nobody
    /// asked for.
    pub(super) fn is_fresh(&self) -> bool {
        let nothing = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        !self.is_spent && self.stream.try_read(&mut [0]).is_err_and(nothing)
    }

    /// Whether nothing may be asked over it any more.
    pub(super) fn is_spent(&self) -> bool {
        self.is_spent
    }

    pub(super) fn into_parts(self) -> (TcpStream, Connected) {
        (self.stream, self.connected)
    }

    pub(super) fn into_socket(self) -> ServerSocket {
        ServerSocket { stream: Stream::Plain(self.stream), connected: self.connected }
    }

    /// Sends the head of a request.
    pub(super) async fn send(&mut self, head: &[u8]) -> Result<(), Failed> {
        let mut sent = 0;
        poll_fn(|cx| {
            while sent < head.len() {
                match ready!(Pin::new(&mut self.stream).poll_write(cx, &head[sent..])) {
                    Ok(bytes) if bytes > 0 => sent += bytes,
                    _ if sent == 0 => return Poll::Ready(Err(Failed::Unsent)),
                    _ => return Poll::Ready(Err(Failed::Unanswered)),
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Waits for a piece of a body, of which so much is left.
    fn poll_piece(&mut self, cx: &mut Context<'_>, left: u64) -> Poll<io::Result<Bytes>> {
        // Room is made once there is something to put into it.
        ready!(self.stream.poll_read_ready(cx))?;
        let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let mut piece = BytesMut::with_capacity(most);
        let read = ready!(pin!(self.stream.read_buf(&mut (&mut piece).limit(most))).poll(cx))?;
        Poll::Ready(if read > 0 { Ok(piece.freeze()) } else { Err(io::ErrorKind::UnexpectedEof.into()) })
    }

    /// Waits for the answer to a request with `method`. `room` is where to read, `headers` where to put them.
    pub(super) fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
        method: &Method,
        room: &mut [u8],
        headers: &mut HeaderMap,
    ) -> Poll<Result<Answered, Failed>> {
        let mut read = ReadBuf::new(room);
        let result = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read));
        if result.is_err() || read.filled().is_empty() {
            return Poll::Ready(Err(Failed::Unanswered));
        }
        let read = Bytes::copy_from_slice(read.filled());
        let Some((status, mut body)) = plain(&read, method, headers) else {
            return Poll::Ready(Ok(Answered::Other(read)));
        };
        // What goes beyond the answer is nobody's.
        if body.first.len() as u64 > body.left {
            body.first.truncate(usize::try_from(body.left).unwrap_or_default());
            self.is_spent = true;
        }
        body.left -= body.first.len() as u64;
        Poll::Ready(Ok(Answered::Plain(Plain { status, headers: std::mem::take(headers), body })))
    }
}

impl PlainBody {
    /// Whether nothing of it must be read any more.
    pub(crate) fn has_come(&self) -> bool {
        self.left == 0
    }

    /// Bytes that nobody has taken yet.
    pub(crate) fn length(&self) -> u64 {
        self.left + self.first.len() as u64
    }

    /// The next piece, which comes over `line`.
    pub(crate) fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
        line: Option<&mut Line>,
    ) -> Poll<Option<io::Result<Bytes>>> {
        if !self.first.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.first))));
        }
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if let Some(error) = self.broke.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let read = match line {
            Some(line) => ready!(line.poll_piece(cx, self.left)),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        match read {
            Ok(piece) => {
                self.left -= piece.len() as u64;
                Poll::Ready(Some(Ok(piece)))
            }
            Err(error) => {
                // Told the next time: what has come so far is sent on first.
                self.broke = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

/// Reads the head of an answer. `None` unless all of it is there, and plain.
fn plain(read: &Bytes, method: &Method, headers: &mut HeaderMap) -> Option<(StatusCode, PlainBody)> {
    let mut room = [const { MaybeUninit::uninit() }; HEADERS];
    let mut head = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut head, read, &mut room)
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
            // Said by many, and ours to say anew.
            CONNECTION if header.value.eq_ignore_ascii_case(b"keep-alive") => continue,
            CONNECTION | TRANSFER_ENCODING | UPGRADE => return None,
            CONTENT_LENGTH if length.is_some() => return None,
            CONTENT_LENGTH => {
                length = Some(number(header.value)?);
                // Such an answer has no length to pass on, and should say none.
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
    Some((status, PlainBody { first: read.slice(start..), left, broke: None }))
}

/// Digits alone, and few enough.
fn number(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?;
    let is_plain = (1..=18).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| digits.parse().ok()).flatten()
}

/// Writes the head of a request without a body. Whatever stands in one is valid there.
pub(super) fn write_head<B>(head: &mut Vec<u8>, request: &Request<B>) {
    debug_assert_eq!(request.version(), Version::HTTP_11);
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    for part in [request.method().as_str(), " ", path, " HTTP/1.1\r\n"] {
        head.extend_from_slice(part.as_bytes());
    }
    for (name, value) in request.headers() {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(answer: &str, method: &Method) -> Option<(u16, u64, Vec<String>)> {
        let (read, mut headers) = (Bytes::copy_from_slice(answer.as_bytes()), HeaderMap::new());
        headers.insert("x-left-over", HeaderValue::from_static("1"));
        let (status, body) = plain(&read, method, &mut headers)?;
        let headers = headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        Some((status.as_u16(), body.left, headers.collect()))
    }

    #[test]
    fn a_plain_answer_is_read_here() {
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
    fn everything_else_is_left_to_hyper() {
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
        let many = "X-A: a\r\n".repeat(HEADERS + 1);
        assert_eq!(read(&format!("HTTP/1.1 204 No Content\r\n{many}\r\n"), &Method::GET), None);
    }

    #[test]
    fn a_head_is_written_as_it_is_meant() {
        let mut request = Request::new(());
        *request.uri_mut() = "/a?b=c".parse().unwrap();
        request.headers_mut().insert("host", HeaderValue::from_static("a.example"));
        request.headers_mut().append("x-a", HeaderValue::from_static("1"));
        request.headers_mut().append("x-a", HeaderValue::from_static("2"));
        let mut head = Vec::new();
        write_head(&mut head, &request);
        let expected = "GET /a?b=c HTTP/1.1\r\nhost: a.example\r\nx-a: 1\r\nx-a: 2\r\n\r\n";
        assert_eq!(String::from_utf8(head).unwrap(), expected);
    }
}
