//! The protocols through which requests arrive.

/// How a request for a decision arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A request that the gateway forwards.
    Gateway,
    /// The HTTP interface of the decision service.
    Http,
    /// Envoy's rate limit service over gRPC.
    Grpc,
    /// The Redis protocol.
    Resp,
}

impl Protocol {
    /// All protocols, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Gateway, Self::Http, Self::Grpc, Self::Resp];

    /// The name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Resp => "resp",
        }
    }
}
