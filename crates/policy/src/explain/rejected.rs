//! The checks that reject a request before limits are checked, as in the gateway.

use std::borrow::Cow;

use http::header::{HOST, HeaderValue};
use http::{HeaderMap, Method, Uri};
use tidegate_core::Timestamp;

use crate::directory::Directory;
use crate::explain::{ExplainRequest, ExplainedVerdict};
use crate::matcher::Matcher;
use crate::plan::Route;
use crate::request::{RequestError, check_method, host_header, is_proxy_header, requested_host};

/// A request that passed these checks.
pub(super) struct AcceptedRequest<'m, 'r> {
    /// With the effective `Host` header.
    pub(super) headers: Cow<'r, HeaderMap>,
    pub(super) host: String,
    /// The path as matched and forwarded.
    pub(super) path: String,
    /// `None` only for a policy without routes.
    pub(super) route: Option<&'m Route>,
}

/// Checks a request in the same order as the gateway.
pub(super) fn check<'m, 'r>(
    matcher: &'m Matcher,
    request: &ExplainRequest<'r>,
    known: (Option<&Directory>, Timestamp),
) -> Result<AcceptedRequest<'m, 'r>, ExplainedVerdict> {
    let rejected = |reason: String| ExplainedVerdict::Rejected { status: 400, reason };
    let invalid = |error: RequestError| rejected(error.reason().to_owned());
    Method::from_bytes(request.method.as_bytes()).map_err(|_| rejected("invalid method".to_owned()))?;
    let uri: Uri =
        request.target.parse().map_err(|error| rejected(format!("invalid request target: {error}")))?;
    check_method(request.method, uri.path()).map_err(invalid)?;
    let mut headers = Cow::Borrowed(request.headers);
    if let Some(authority) = uri.authority() {
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| invalid(RequestError::Host))?;
        headers.to_mut().insert(HOST, host);
    }
    let host = match host_header(&headers) {
        // Unlike the gateway, `explain` accepts a request without a host.
        Err(RequestError::NoHost) => "localhost".to_owned(),
        host => host.and_then(requested_host).map_err(invalid)?.into_owned(),
    };
    let target = matcher.target(&host, uri.path()).map_err(|error| rejected(error.to_string()))?;
    if target.route.is_none() && !matcher.plan().routes.is_empty() {
        return Err(ExplainedVerdict::Rejected { status: 404, reason: "no matching route".to_owned() });
    }
    let (path, route) = (target.path.into_owned(), target.route);
    // Removes headers that the peer is not allowed to send, as the gateway does.
    let plan = matcher.plan();
    let underscored = route.map_or(plan.http, |route| route.http).underscore_headers;
    let is_trusted = plan.identities.addresses().trusts(request.peer);
    if !is_trusted {
        let names: Vec<_> = headers.keys().filter(|name| is_proxy_header(name.as_str())).cloned().collect();
        for name in names {
            headers.to_mut().remove(name);
        }
    }
    let (directory, now) = known;
    matcher
        .header_rules()
        .apply(headers.to_mut(), is_trusted, underscored)
        .and_then(|()| plan.identities.addresses().check(&headers, request.peer))
        .and_then(|()| matcher.apply_credentials(headers.to_mut(), directory, || now))
        .map_err(|error| {
            let status = if error.challenge().is_some() { 401 } else { 400 };
            ExplainedVerdict::Rejected { status, reason: error.to_string() }
        })?;
    Ok(AcceptedRequest { headers, host, path, route })
}
