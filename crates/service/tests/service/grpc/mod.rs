//! Tests of Envoy's rate limit service.

mod arbitrary;
mod bans;
pub(crate) mod client;
mod documented;
mod envoy_limits;
mod json;
mod policy_domain;
mod wire;

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;
