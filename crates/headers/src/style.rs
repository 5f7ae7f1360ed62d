//! The styles of headers and bodies that an operator chooses from.

use std::sync::Arc;

use http::HeaderValue;

use crate::body::ErrorBody;
use crate::template::BodyTemplate;

tidegate_core::named_enum! {
    /// A style of rate-limit headers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum HeaderStyle {
        /// `X-RateLimit-Limit`, `-Remaining`, `-Reset` in Unix seconds.
        XRateLimit = "x_ratelimit",
        /// The same with the reset in Unix milliseconds.
        XRateLimitMs = "x_ratelimit_ms",
        /// `RateLimit-Policy` and `RateLimit`, structured fields.
        RateLimit = "ratelimit",
        /// `RateLimit-Limit`, `-Remaining`, `-Reset` in Unix seconds.
        RateLimitEpoch = "ratelimit_epoch",
        /// `RateLimit-Limit`, `-Remaining`, `-Reset` in seconds from now.
        RateLimitDelta = "ratelimit_delta",
    }
}

tidegate_core::named_enum! {
    /// A style of error bodies.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum BodyStyle {
        /// One flat JSON object.
        #[default]
        Flat = "flat",
        /// A JSON object within `error`.
        Nested = "nested",
        /// `application/problem+json` (RFC 9457).
        Problem = "problem",
    }
}

impl BodyStyle {
    /// The `Content-Type` of bodies in this style.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Flat | Self::Nested => "application/json",
            Self::Problem => "application/problem+json",
        }
    }
}

/// The form of the bodies of rejections: a style, or an operator's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyFormat {
    /// One of the styles.
    Style(BodyStyle),
    /// A template.
    Template(Arc<BodyTemplate>),
}

impl BodyFormat {
    /// The bytes of a body.
    pub fn encode(&self, body: &ErrorBody<'_>) -> Vec<u8> {
        match self {
            Self::Style(style) => body.encode(*style),
            Self::Template(template) => template.encode(body),
        }
    }

    /// The `Content-Type` of the bodies.
    pub fn content_type(&self) -> HeaderValue {
        match self {
            Self::Style(style) => HeaderValue::from_static(style.content_type()),
            Self::Template(template) => template.content_type().clone(),
        }
    }
}

impl Default for BodyFormat {
    fn default() -> Self {
        Self::Style(BodyStyle::default())
    }
}

impl From<BodyStyle> for BodyFormat {
    fn from(style: BodyStyle) -> Self {
        Self::Style(style)
    }
}
