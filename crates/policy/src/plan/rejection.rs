//! The responses to requests that limits reject.

use std::fmt;

use http::StatusCode;
use tidegate_headers::BodyFormat;

/// How the response to a request that one limit rejects differs from that of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectionPlan {
    /// The status: 429 or 503.
    pub status: StatusCode,
    /// The format of the body; `None` is that of the policy.
    pub body: Option<BodyFormat>,
}

impl fmt::Display for RejectionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rejects with {}", self.status.as_u16())?;
        match &self.body {
            Some(body) => write!(f, " and the body {}", body_text(body)),
            None => Ok(()),
        }
    }
}

/// Describes a format: its style, or the type and size of its template.
pub(crate) fn body_text(format: &BodyFormat) -> String {
    match format {
        BodyFormat::Style(style) => style.name().to_owned(),
        BodyFormat::Template(template) => {
            let content_type = String::from_utf8_lossy(template.content_type().as_bytes());
            format!("of a template ({content_type}, {} bytes of text)", template.text_length())
        }
    }
}
