//! Heads that hyper cannot parse: the gateway replaces hyper's bare response with its own error response.

use std::rc::Rc;

use http::header::{CONTENT_LENGTH, DATE, HeaderValue};
use http::{HeaderMap, StatusCode, Version};
use tidegate_store::Store;
use tidegate_telemetry::RequestSummary;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::io::TrackedIo;
use crate::error::{ServeError, omit_body, rescue};
use crate::http::hop_headers::ConnInfo;
use crate::http::request_id::RequestId;
use crate::http::response_body::ResponseBody;
use crate::worker::Worker;

/// How every such response starts.
const START: &[u8] = b"HTTP/1.1 4";
/// The headers after the status line, up to the date.
const HEADERS: &[u8] = b"\r\nconnection: close\r\ncontent-length: 0\r\ndate: ";
const END: &[u8] = b"\r\n\r\n";

/// The response that hyper writes to a head that it cannot parse. It closes the connection.
#[derive(Debug)]
pub(super) struct BareResponse {
    cause: ServeError,
    date: Option<HeaderValue>,
}

impl BareResponse {
    /// Parses `bytes`; `None` unless they are exactly one such response.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        if !bytes.starts_with(START) {
            return None;
        }
        let line = bytes.iter().position(|byte| *byte == b'\r')?;
        let date = bytes.get(line..)?.strip_prefix(HEADERS)?.strip_suffix(END)?;
        let cause = match StatusCode::from_bytes(bytes.get(9..12)?).ok()? {
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => ServeError::HeadTooLarge,
            StatusCode::URI_TOO_LONG => ServeError::UriTooLong,
            StatusCode::BAD_REQUEST => ServeError::BadHead,
            _ => return None,
        };
        let is_date = date.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
        is_date.then(|| Self { cause, date: HeaderValue::from_bytes(date).ok() })
    }
}

/// Responds to a head that could not be parsed, and closes the connection. `is_head` is whether its method is HEAD.
pub(super) async fn respond<S: Store + 'static, T: AsyncRead + AsyncWrite + Unpin>(
    worker: Rc<Worker<S>>,
    conn_info: Rc<ConnInfo>,
    mut stream: TrackedIo<T>,
    is_head: bool,
) {
    let Some(BareResponse { cause, date }) = stream.take_withheld() else { return };
    let response = {
        let mut record = worker.recorder.start();
        record.describe(|| summarize_unparsed(&conn_info));
        record.set_error(|| cause.code_and_retry_after());
        let id = RequestId::random().to_value();
        record.set_id(|| id.to_str().ok());
        let request = (Version::HTTP_11, HeaderMap::new());
        let mut response = rescue(cause, &worker.snapshot(), request, id);
        let length = http_body::Body::size_hint(response.body()).exact();
        record.set_response(response.status().as_u16(), length);
        response.headers_mut().insert(CONTENT_LENGTH, length.unwrap_or_default().into());
        if is_head {
            omit_body(&mut response);
        }
        response.headers_mut().extend(date.map(|date| (DATE, date)));
        response
    };
    let (head, body) = response.into_parts();
    let ResponseBody::Own(body) = body else { return };
    let mut bytes = format!("HTTP/1.1 {}\r\n", head.status).into_bytes();
    for (name, value) in &head.headers {
        bytes.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&body.unwrap_or_default());
    // A write error means that the client has disconnected.
    if stream.write_all(&bytes).await.is_ok() {
        let _ = stream.shutdown().await;
    }
}

/// The log entry of a request that could not be parsed.
fn summarize_unparsed(conn_info: &ConnInfo) -> RequestSummary {
    RequestSummary {
        method: "-".to_owned(),
        host: String::new(),
        path: "-".to_owned(),
        peer: conn_info.peer,
        version: "1.1",
        bytes: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: &str = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\
                        date: Sun, 16 Nov 2025 02:27:20 GMT\r\n\r\n";

    #[test]
    fn bare_response_is_parsed_only_if_complete_and_alone() {
        let parse = |text: &str| BareResponse::parse(text.as_bytes());
        let response = parse(BARE).unwrap();
        assert!(matches!(response.cause, ServeError::BadHead));
        assert_eq!(response.date.unwrap(), "Sun, 16 Nov 2025 02:27:20 GMT");
        let too_large = BARE.replace("400 Bad Request", "431 Request Header Fields Too Large");
        assert!(matches!(parse(&too_large).unwrap().cause, ServeError::HeadTooLarge));
        assert!(matches!(
            parse(&BARE.replace("400 Bad Request", "414 URI Too Long")).unwrap().cause,
            ServeError::UriTooLong
        ));
        for other in [
            String::new(),
            BARE[..BARE.len() - 1].to_owned(),
            format!("{BARE}a"),
            format!("{BARE}{BARE}"),
            BARE.replace("content-length: 0", "content-length: 1"),
            BARE.replace("400", "200"),
            BARE.replace("400 Bad Request", "404 Not Found"),
            BARE.replace("connection: close\r\n", ""),
        ] {
            assert!(parse(&other).is_none(), "{other}");
        }
    }
}
