//! A request as it is forwarded, kept for as long as it can still be sent again.

use http::header::{HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Uri};
use http::{HeaderMap, HeaderValue, Request, Version};
use http_body::Body;
use tidegate_policy::RetryPlan;

use super::client_shares::ClientId;
use super::head_profile::HeadProfile;
use super::server::Server;
use super::transport::MAX_RESENDS;
use crate::http::header_flags::HeaderFlags;
use crate::http::request_body::{RequestBody, UploadHandle, UploadProgress};

/// A request to an upstream. After an attempt that did not send it, the next server gets it unchanged.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent properties of a request")]
pub(crate) struct ForwardedRequest {
    /// `None` while hyper has it, and once it cannot be sent again.
    head: Option<Parts>,
    upload: UploadHandle,
    client: ClientId,
    /// The client announced neither a body nor an upgrade.
    is_plain: bool,
    /// The connection of the client may have many requests.
    is_multiplexed: bool,
    /// The client sent no `Host`: each attempt has that of its server.
    needs_host: bool,
    /// The policy allows to send it again after a server may have received it.
    is_repeatable: bool,
    /// A copy of the head for another attempt, if `head` may be used up by then.
    spare: Option<Box<Parts>>,
    /// How often it was sent again.
    resends: u32,
}

impl ForwardedRequest {
    /// Takes the head out of `parts`. `flags` are those of the headers that the client sent.
    pub(crate) fn new(
        parts: &mut Parts,
        upload: UploadHandle,
        flags: HeaderFlags,
        wants_upgrade: bool,
    ) -> Self {
        let (mut head, ()) = Request::new(()).into_parts();
        std::mem::swap(&mut head.method, &mut parts.method);
        std::mem::swap(&mut head.uri, &mut parts.uri);
        std::mem::swap(&mut head.headers, &mut parts.headers);
        let announces_body =
            flags.intersects(HeaderFlags::CONTENT_LENGTH.union(HeaderFlags::TRANSFER_ENCODING));
        let is_plain = !announces_body && !wants_upgrade;
        // Since the headers were scanned, the authority of the target may have become the host, or `Connection` has removed it.
        let has_host = flags.contains(HeaderFlags::HOST) && !flags.contains(HeaderFlags::CONNECTION);
        let needs_host = !has_host && !head.headers.contains_key(HOST);
        Self {
            head: Some(head),
            upload,
            client: ClientId::default(),
            is_plain,
            is_multiplexed: parts.version == Version::HTTP_2,
            needs_host,
            is_repeatable: false,
            spare: None,
            resends: 0,
        }
    }

    /// The request is one of `client`.
    pub(crate) fn set_client(&mut self, client: ClientId) {
        self.client = client;
    }

    pub(super) fn client(&self) -> ClientId {
        self.client
    }

    /// Keeps what is needed to send the request again as `plan` says, if it may be. A plain request needs nothing: its head
    /// stays here until there is a response.
    pub(crate) fn prepare_retries(&mut self, plan: &RetryPlan) {
        let Some(head) = &self.head else { return };
        let method = head.method.as_str();
        self.is_repeatable = plan.attempts > 1 && plan.methods.iter().any(|allowed| allowed == method);
        if !self.is_repeatable {
            return;
        }
        self.upload.record(plan.buffer);
        if !plan.on.statuses.is_empty() {
            self.spare = Some(Box::new(head.clone()));
        }
    }

    /// Whether the request may be sent again after a server may have received it.
    pub(crate) fn can_repeat(&self) -> bool {
        self.is_repeatable && self.upload.progress() != UploadProgress::Started
    }

    /// Whether the head is here and the body can be sent from its beginning.
    pub(crate) fn is_complete(&self) -> bool {
        self.head.is_some() && self.upload.progress() != UploadProgress::Started
    }

    /// Restores the head for another attempt. Returns whether there is one.
    pub(crate) fn rewind(&mut self) -> bool {
        self.resends += 1;
        if self.head.is_none() {
            self.head = self.spare.as_deref().cloned();
        }
        self.head.is_some()
    }

    /// Counts that the request is sent again to a server that has not processed it. Returns whether it may be.
    pub(super) fn count_resend(&mut self) -> bool {
        self.resends += 1;
        self.resends <= MAX_RESENDS
    }

    /// The headers, while they are here.
    pub(crate) fn headers_mut(&mut self) -> Option<&mut HeaderMap> {
        Some(&mut self.head.as_mut()?.headers)
    }

    /// What a server may not accept in the head; `None` while it is not here.
    pub(super) fn head_profile(&self) -> Option<HeadProfile> {
        self.head.as_ref().map(HeadProfile::of)
    }

    /// Whether the client may have many responses of one connection unread.
    pub(super) fn is_multiplexed(&self) -> bool {
        self.is_multiplexed
    }

    /// Whether the request has neither a body nor an upgrade.
    pub(super) fn is_plain(&self) -> bool {
        self.is_plain && self.upload.progress() == UploadProgress::Empty
    }

    pub(crate) fn upload(&self) -> &UploadHandle {
        &self.upload
    }

    /// Borrows the head for an HTTP/1.1 connection to `server`. It stays here for the next attempt.
    pub(super) fn http1_head(&mut self, server: &Server) -> Option<&mut Parts> {
        let head = self.head.as_mut()?;
        head.version = Version::HTTP_11;
        if head.uri.authority().is_some() {
            let path = head.uri.path_and_query().cloned();
            head.uri = path.map(Uri::from).unwrap_or_default();
        }
        if self.needs_host {
            head.headers.insert(HOST, server.host_header.clone());
        }
        Some(head)
    }

    /// Takes the request for an HTTP/1.1 connection to `server`. [`Self::put_back`] returns it if it was not sent.
    pub(super) fn take_http1(&mut self, server: &Server) -> Option<Request<RequestBody>> {
        let body = self.upload.open()?;
        self.http1_head(server)?;
        if self.is_repeatable && self.spare.is_none() {
            self.spare = self.head.clone().map(Box::new);
        }
        let head = self.head.as_mut()?;
        // hyper would drop the body of a GET whose length is not known.
        if !body.is_end_stream() && body.size_hint().exact().is_none() {
            head.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        Some(Request::from_parts(self.head.take()?, body))
    }

    /// Takes the request that was sent over a connection that hyper takes over.
    pub(super) fn take_sent(&mut self) -> Option<Request<RequestBody>> {
        Some(Request::from_parts(self.head.take()?, self.upload.open()?))
    }

    /// Puts back a request from [`Self::take_http1`] of which nothing was sent.
    pub(super) fn put_back(&mut self, unsent: Request<RequestBody>) {
        let (mut head, _) = unsent.into_parts();
        // The one that we added: that of the client was removed.
        head.headers.remove(TRANSFER_ENCODING);
        self.head = Some(head);
    }

    /// The request for an HTTP/2 connection to `server`; `None` if its `Host` is not a valid authority. A copy of the head
    /// stays here until [`Self::mark_sent`], because hyper does not return the head of a refused stream.
    pub(super) fn http2(&self, server: &Server) -> Option<Request<()>> {
        let kept = self.head.as_ref()?;
        let mut request = Request::new(());
        request.method_mut().clone_from(&kept.method);
        request.headers_mut().clone_from(&kept.headers);
        let host = request.headers_mut().remove(HOST);
        let host = host.filter(|host| !self.needs_host && !host.is_empty());
        let authority = match host {
            Some(host) => Authority::try_from(host.as_bytes()).ok()?,
            None => server.authority.clone(),
        };
        let path = kept.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        let uri = Uri::builder().scheme(server.scheme.clone()).authority(authority).path_and_query(path);
        *request.uri_mut() = uri.build().ok()?;
        *request.version_mut() = Version::HTTP_2;
        Some(request)
    }

    /// The request was sent and cannot be sent again.
    pub(super) fn mark_sent(&mut self) {
        self.head = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, headers: &[(&'static str, &'static str)]) -> ForwardedRequest {
        let mut request = Request::new(());
        *request.uri_mut() = uri.parse().unwrap();
        for (name, value) in headers {
            request.headers_mut().append(*name, HeaderValue::from_static(value));
        }
        let flags = HeaderFlags::scan(request.headers());
        let (mut parts, ()) = request.into_parts();
        ForwardedRequest::new(&mut parts, UploadHandle::default(), flags, false)
    }

    #[test]
    fn http2_request_built_repeatedly_has_the_authority_of_host() {
        let server = Server::parse("h2c://10.0.0.1:3000").unwrap();
        let without_host = request("/a?b", &[]);
        assert_eq!(without_host.http2(&server).unwrap().uri(), "http://10.0.0.1:3000/a?b");
        let with_host = request("/a?b", &[("host", "tenant.example:81")]);
        for _ in 0..2 {
            let sent = with_host.http2(&server).unwrap();
            assert_eq!(
                (sent.uri().to_string().as_str(), sent.headers().len()),
                ("http://tenant.example:81/a?b", 0)
            );
        }
        for bad in ["a%41.example", "a:b:c", "["] {
            let request = request("/", &[("host", bad)]);
            assert!(request.http2(&server).is_none(), "{bad}: must not be sent with another host");
        }
    }

    #[test]
    fn request_without_host_sent_again_has_host_of_next_server() {
        let [first, second] = ["http://a:1", "http://b:2"].map(|url| Server::parse(url).unwrap());
        let mut request = request("/", &[]);
        for server in [&first, &second] {
            let head = request.http1_head(server).unwrap();
            assert_eq!(head.headers.get(HOST), Some(&server.host_header));
            let sent = request.take_http1(server).unwrap();
            assert!(request.http1_head(server).is_none(), "hyper owns it");
            assert_eq!(sent.headers().get_all(HOST).iter().count(), 1);
            request.put_back(sent);
        }
        assert_eq!(request.http2(&first).unwrap().uri(), "http://a:1/");
    }

    #[test]
    fn request_whose_connection_header_has_removed_host_has_that_of_its_server() {
        let server = Server::parse("http://a:1").unwrap();
        let mut request = Request::new(());
        request.headers_mut().insert(HOST, HeaderValue::from_static("x.example"));
        request.headers_mut().insert("connection", HeaderValue::from_static("host"));
        let flags = HeaderFlags::scan(request.headers());
        request.headers_mut().clear();
        let (mut parts, ()) = request.into_parts();
        let mut request = ForwardedRequest::new(&mut parts, UploadHandle::default(), flags, false);
        assert_eq!(request.http1_head(&server).unwrap().headers.get(HOST), Some(&server.host_header));
    }

    #[test]
    fn request_put_back_is_unchanged() {
        let server = Server::parse("http://a:1").unwrap();
        let mut request = request("/a?b", &[("host", "x.example"), ("x-a", "1"), ("x-a", "2")]);
        let sent = request.take_http1(&server).unwrap();
        let headers = sent.headers().clone();
        request.put_back(sent);
        let head = request.http1_head(&server).unwrap();
        assert_eq!((&head.headers, head.uri.to_string().as_str()), (&headers, "/a?b"));
    }

    #[test]
    fn request_with_body_or_upgrade_is_not_plain() {
        assert!(request("/", &[("host", "a")]).is_plain());
        assert!(!request("/", &[("content-length", "0")]).is_plain());
        assert!(!request("/", &[("transfer-encoding", "chunked")]).is_plain());
        let (mut parts, ()) = Request::new(()).into_parts();
        let upgrade = ForwardedRequest::new(&mut parts, UploadHandle::default(), HeaderFlags::empty(), true);
        assert!(!upgrade.is_plain());
    }
}
