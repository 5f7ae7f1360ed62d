//! The protocols through which requests arrive.

tidegate_core::named_enum! {
    /// How a request for a decision arrived.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Protocol {
        /// A request that the gateway forwards.
        Gateway = "gateway",
        /// The HTTP interface of the decision service.
        Http = "http",
        /// Envoy's rate limit service over gRPC.
        Grpc = "grpc",
        /// The Redis protocol.
        Resp = "resp",
    }
}
