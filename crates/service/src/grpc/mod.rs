//! Envoy's rate limit service over gRPC, with health checks and reflection.
//!
//! A call passes these files in order: `connection` (HTTP/2), `call` (validation, authentication, dispatch), `frame`
//! (messages within a body), `message` (their fields), `rate_limit` (the domain), then `descriptors` for the descriptors of
//! an Envoy configuration or `policy_domain` for those that name rules and requests of the policy, and `response`, or
//! `bad_descriptor` for requests that the gateway would reject with 400.
//! `json` is the same call over HTTP. The service uses h2 without a gRPC framework: its calls are unary except for
//! watches of health and for reflection, and a framework would cost more time than the decision.

mod bad_descriptor;
mod call;
mod connection;
mod descriptors;
mod envoy_limits;
mod frame;
mod health;
pub(crate) mod json;
mod message;
mod policy_domain;
mod rate_limit;
mod reflection;
mod request_facts;
mod response;
mod schema;
mod status;
#[cfg(test)]
mod tests;

pub(crate) use call::decide_encoded;
pub(crate) use connection::serve;
pub(crate) use envoy_limits::{EnvoyHandle, GrpcState, ServedEnvoyLimits};
