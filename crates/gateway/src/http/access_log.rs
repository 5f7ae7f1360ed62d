//! The summary of a request for the access log.

use std::net::IpAddr;

use http::Version;
use http::header::{CONTENT_LENGTH, HOST};
use http::request::Parts;
use tidegate_policy::{Identities, normalize};
use tidegate_telemetry::RequestSummary;

/// Summarizes a request without its query, its headers, and secrets in its path.
pub(crate) fn summarize(parts: &Parts, peer: IpAddr, identities: &Identities) -> RequestSummary {
    let path = parts.uri.path();
    let normal = normalize(path);
    let path = normal.as_deref().unwrap_or(path);
    let host = parts.headers.get(HOST).map(|host| String::from_utf8_lossy(host.as_bytes()));
    let host = host.as_deref().or(parts.uri.host()).unwrap_or_default();
    let length = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    RequestSummary {
        method: parts.method.as_str().to_owned(),
        host: identities.redact(&parts.headers, host).into_owned(),
        path: identities.redact(&parts.headers, path).into_owned(),
        peer,
        version: match parts.version {
            Version::HTTP_2 => "2",
            Version::HTTP_10 => "1.0",
            _ => "1.1",
        },
        bytes: length,
    }
}
