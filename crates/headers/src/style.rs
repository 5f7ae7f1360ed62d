//! The styles of headers and bodies that an operator chooses from.

/// A style of rate-limit headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderStyle {
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset` in Unix seconds.
    XRateLimit,
    /// `RateLimit-Policy` and `RateLimit`, structured fields.
    RateLimit,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset` in Unix seconds.
    RateLimitEpoch,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset` in seconds from now.
    RateLimitDelta,
}

impl HeaderStyle {
    /// All styles.
    pub const ALL: [Self; 4] =
        [Self::XRateLimit, Self::RateLimit, Self::RateLimitEpoch, Self::RateLimitDelta];

    /// The name used in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::XRateLimit => "x_ratelimit",
            Self::RateLimit => "ratelimit",
            Self::RateLimitEpoch => "ratelimit_epoch",
            Self::RateLimitDelta => "ratelimit_delta",
        }
    }
}

/// A style of error bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BodyStyle {
    /// One flat JSON object.
    #[default]
    Flat,
    /// A JSON object within `error`.
    Nested,
    /// `application/problem+json` (RFC 9457).
    Problem,
}

impl BodyStyle {
    /// All styles.
    pub const ALL: [Self; 3] = [Self::Flat, Self::Nested, Self::Problem];

    /// The name used in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Nested => "nested",
            Self::Problem => "problem",
        }
    }

    /// The `Content-Type` of bodies in this style.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Flat | Self::Nested => "application/json",
            Self::Problem => "application/problem+json",
        }
    }
}
