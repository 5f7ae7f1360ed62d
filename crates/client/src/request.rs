//! A request that is being built.

use std::fmt;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use http::{Method, Request, Uri};

use crate::body::SendBody;
use crate::client::Client;
use crate::error::ClientError;
use crate::host::without_secrets;
use crate::response::ClientResponse;

/// A request that is not sent yet. What is invalid is reported by [`send`](Self::send).
#[must_use = "a request does nothing until it is sent"]
pub struct ClientRequest {
    client: Client,
    request: Result<Request<SendBody>, ClientError>,
    options: RequestOptions,
}

/// How a request is sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestOptions {
    pub(crate) deadline: Option<Duration>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) body_timeout: Option<Duration>,
    pub(crate) idempotency_key: bool,
    pub(crate) allow_replay: bool,
    pub(crate) partition: Box<str>,
}

impl ClientRequest {
    pub(crate) fn new(client: Client, request: Result<Request<SendBody>, ClientError>) -> Self {
        Self { client, request, options: RequestOptions::default() }
    }

    pub(crate) fn with_url(client: Client, method: Method, url: &str) -> Self {
        let request = parse_url(url).map(|uri| {
            let mut request = Request::new(SendBody::empty());
            (*request.method_mut(), *request.uri_mut()) = (method, uri);
            request
        });
        Self::new(client, request)
    }

    /// Sets a header and replaces earlier values of it.
    pub fn header<N, V>(mut self, name: N, value: V) -> Self
    where
        N: TryInto<HeaderName, Error: Into<http::Error>>,
        V: TryInto<HeaderValue, Error: Into<http::Error>>,
    {
        let name = name.try_into().map_err(Into::into);
        let pair = name.and_then(|name| Ok((name, value.try_into().map_err(Into::into)?)));
        match (pair, &mut self.request) {
            (Ok((name, value)), Ok(request)) => {
                request.headers_mut().insert(name, value);
            }
            (Err(error), Ok(_)) => self.request = Err(ClientError::InvalidRequest { source: error.into() }),
            (_, Err(_)) => {}
        }
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<SendBody>) -> Self {
        if let Ok(request) = &mut self.request {
            *request.body_mut() = body.into();
        }
        self
    }

    /// Sets a body that is produced while it is sent. The request has one attempt.
    pub fn stream<B>(mut self, body: B) -> Self
    where
        B: http_body::Body<Data = bytes::Bytes, Error: Into<crate::BoxError>> + Send + 'static,
    {
        if let Ok(request) = &mut self.request {
            *request.body_mut() = SendBody::stream(body);
        }
        self
    }

    /// Sets the body to `value` in JSON, and the content type.
    #[cfg(feature = "json")]
    pub fn json<T: serde::Serialize + ?Sized>(mut self, value: &T) -> Self {
        match serde_json::to_vec(value) {
            Ok(json) => self
                .header(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
                .body(json),
            Err(error) => {
                self.request = self.request.and(Err(ClientError::InvalidRequest { source: error.into() }));
                self
            }
        }
    }

    /// The time that the request may take, with all attempts, waits and the response body. The server is told how much of it
    /// is left in `X-Request-Deadline-Ms`. Nothing starts after it.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.options.deadline = Some(after);
        self
    }

    /// The time that one attempt may take until the head of the response, and that its body may stall.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// The time that the response body may take after the head, with the time that the caller takes to read it: for long
    /// downloads, and for streams that stay open.
    pub fn body_timeout(mut self, timeout: Duration) -> Self {
        self.options.body_timeout = Some(timeout);
        self
    }

    /// Sends a random `Idempotency-Key`, the same in all attempts, unless the request has one. A POST with a key is retried:
    /// use it only if the server recognizes the key.
    pub fn idempotency_key(mut self, is_sent: bool) -> Self {
        self.options.idempotency_key = is_sent;
        self
    }

    /// Allows retries whatever the method is: the server may process the request more than once.
    pub fn allow_replay(mut self, is_allowed: bool) -> Self {
        self.options.allow_replay = is_allowed;
        self
    }

    /// Paces the request only together with requests to the same host that have the same name: for an account or an API key
    /// with limits of its own.
    pub fn partition(mut self, name: &str) -> Self {
        self.options.partition = name.into();
        self
    }

    /// Sends the request, and retries it if that is safe. Dropping the future cancels the request.
    ///
    /// A response with any status but 429 is `Ok`, also if the retry budget is exhausted; see [`ClientResponse::error_for_status`].
    pub async fn send(self) -> Result<ClientResponse, ClientError> {
        self.client.execute(self.request?, self.options).await
    }
}

impl fmt::Debug for ClientRequest {
    /// URLs and headers may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut request = f.debug_struct("ClientRequest");
        match &self.request {
            Ok(valid) => request
                .field("method", valid.method())
                .field("url", &without_secrets(&valid.uri().to_string())),
            Err(error) => request.field("error", error),
        };
        request.finish_non_exhaustive()
    }
}

pub(crate) fn parse_url(url: &str) -> Result<Uri, ClientError> {
    url.parse().map_err(|_| ClientError::InvalidUrl {
        url: without_secrets(url),
        reason: "expected http:// or https://, a host and a path of percent-encoded ASCII",
    })
}
