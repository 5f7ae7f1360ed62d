//! The responses of all endpoints.

use std::borrow::Cow;
use std::pin::Pin;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
use tidegate_headers::{BodyFormat, ErrorBody, HeaderStyle, RateLimitHeaders};

use super::authorize::AnswerDelay;
use super::error::HttpError;

/// A response, and what happens before it is sent.
pub(super) struct HttpAnswer {
    pub(super) response: HttpResponse,
    pub(super) delay: Option<Box<AnswerDelay>>,
}

impl From<HttpResponse> for HttpAnswer {
    fn from(response: HttpResponse) -> Self {
        Self { response, delay: None }
    }
}

/// An answer that may have to be awaited.
pub(super) enum PendingAnswer<'f> {
    Ready(HttpAnswer),
    Waiting(Pin<Box<dyn Future<Output = Result<HttpAnswer, HttpError>> + 'f>>),
}

impl PendingAnswer<'_> {
    pub(super) async fn wait(self) -> Result<HttpAnswer, HttpError> {
        match self {
            Self::Ready(answer) => Ok(answer),
            Self::Waiting(answer) => answer.await,
        }
    }
}

impl From<HttpResponse> for PendingAnswer<'_> {
    fn from(response: HttpResponse) -> Self {
        Self::Ready(response.into())
    }
}

/// The response of an endpoint.
#[derive(Debug)]
pub(super) struct HttpResponse {
    pub(super) status: StatusCode,
    /// `None` if there is no body, or if `headers` has it.
    pub(super) content_type: Option<&'static str>,
    /// For a proxy, which passes them to its client. In a box, because most responses have none.
    pub(super) limits: Option<Box<RateLimitHeaders>>,
    /// All other headers.
    pub(super) headers: HeaderMap,
    pub(super) body: Cow<'static, [u8]>,
}

impl HttpResponse {
    /// A response with status 200 and a body of this type.
    pub(super) fn new(content_type: &'static str, body: impl Into<Cow<'static, [u8]>>) -> Self {
        Self { content_type: Some(content_type), body: body.into(), ..Self::empty() }
    }

    /// A response with status 200 without a body.
    pub(super) fn empty() -> Self {
        Self {
            status: StatusCode::OK,
            content_type: None,
            limits: None,
            headers: HeaderMap::new(),
            body: Cow::Borrowed(b""),
        }
    }

    /// An error. `styles` are those of the headers that report limits.
    pub(super) fn error(body: &ErrorBody<'_>, format: &BodyFormat, styles: &[HeaderStyle]) -> Self {
        let mut response = match format {
            BodyFormat::Style(style) => Self::new(style.content_type(), body.encode(*style)),
            BodyFormat::Template(template) => {
                let mut response = Self { body: format.encode(body).into(), ..Self::empty() };
                response.headers.insert(CONTENT_TYPE, template.content_type().clone());
                response
            }
        };
        response.status = body.status;
        body.write_retry_after(&mut response.headers, styles);
        response
    }

    /// A decision.
    pub(super) fn json(json: Vec<u8>) -> Self {
        Self::new("application/json", json)
    }

    /// The response for hyper. That to a `HEAD` request has no body: over HTTP/2, hyper would send it.
    pub(super) fn into_hyper(self, is_head: bool) -> Response<Full<Bytes>> {
        let Self { status, content_type, limits, headers, body } = self;
        let body = match body {
            Cow::Borrowed(body) => Bytes::from_static(body),
            Cow::Owned(body) => Bytes::from(body),
        };
        let length = body.len();
        let mut response = Response::new(Full::new(if is_head { Bytes::new() } else { body }));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        if is_head {
            response.headers_mut().insert(CONTENT_LENGTH, length.into());
        }
        if let Some(content_type) = content_type {
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        if let Some(mut limits) = limits {
            limits.insert_into(response.headers_mut());
        }
        response
    }

    /// Appends the response as HTTP/1.1 sends it. With `closes`, the connection is closed after it.
    pub(super) fn write(&self, date: &[u8], closes: bool, output: &mut Vec<u8>) {
        let Self { status, content_type, limits, headers, body } = self;
        output.extend_from_slice(b"HTTP/1.1 ");
        output.extend_from_slice(status.as_str().as_bytes());
        output.push(b' ');
        output.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
        output.extend_from_slice(b"\r\n");
        if let Some(content_type) = content_type {
            write_header(output, "content-type", content_type.as_bytes());
        }
        for (name, value) in limits.iter().flat_map(|limits| limits.iter()).chain(headers) {
            write_header(output, name.as_str(), value.as_bytes());
        }
        if closes {
            write_header(output, "connection", b"close");
        }
        write_header(output, "content-length", itoa::Buffer::new().format(body.len()).as_bytes());
        write_header(output, "date", date);
        output.extend_from_slice(b"\r\n");
        output.extend_from_slice(body);
    }
}

fn write_header(output: &mut Vec<u8>, name: &str, value: &[u8]) {
    output.extend_from_slice(name.as_bytes());
    output.extend_from_slice(b": ");
    output.extend_from_slice(value);
    output.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use http::header::ALLOW;
    use tidegate_headers::write_retry_after;

    use super::*;

    #[test]
    fn response_is_written_with_all_headers_and_its_length() {
        let mut response = HttpResponse::new("application/json", b"{}".as_slice());
        response.status = StatusCode::METHOD_NOT_ALLOWED;
        response.headers.insert(ALLOW, HeaderValue::from_static("POST"));
        let mut limits = RateLimitHeaders::default();
        write_retry_after(&mut limits, 7, &[]);
        response.limits = Some(Box::new(limits));
        let mut output = b"before ".to_vec();
        response.write(b"Mon, 16 Nov 2026 10:00:00 GMT", true, &mut output);
        let expected = "before HTTP/1.1 405 Method Not Allowed\r\ncontent-type: application/json\r\nretry-after: 7\r\n\
                        allow: POST\r\nconnection: close\r\ncontent-length: 2\r\n\
                        date: Mon, 16 Nov 2026 10:00:00 GMT\r\n\r\n{}";
        assert_eq!(String::from_utf8(output).unwrap(), expected);
        let response = response.into_hyper(false);
        assert_eq!(response.status(), 405);
        let headers = response.headers();
        assert_eq!(
            (&headers["retry-after"], &headers["allow"]),
            (&"7".parse().unwrap(), &"POST".parse().unwrap())
        );
        assert_eq!(headers["content-type"], "application/json");
    }
}
