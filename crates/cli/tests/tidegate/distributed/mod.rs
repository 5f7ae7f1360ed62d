//! Two gateways that share limits, while Redis, its cluster or a gateway fails.
//!
//! The short forms check outcomes only. The long forms, `cargo xtask scorecard outage|cluster|lease`, also check times.

mod cluster;
mod fleet;
mod lease;
mod outage;
mod samples;
