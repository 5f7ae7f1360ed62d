//! The styles of headers and bodies that an operator chooses from.

tidegate_core::named_enum! {
    /// A style of rate-limit headers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum HeaderStyle {
        /// `X-RateLimit-Limit`, `-Remaining`, `-Reset` in Unix seconds.
        XRateLimit = "x_ratelimit",
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
