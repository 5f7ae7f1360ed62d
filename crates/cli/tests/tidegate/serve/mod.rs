//! `tidegate serve` on a real port.

pub(crate) mod admin;
mod certificates;
mod file_descriptors;
mod floods;
mod frameworks;
pub(crate) mod log;
mod prometheus;
mod reload;
mod reload_safety;
mod shared;
mod shared_stop;
mod shutdown;
mod signals;
mod socket_activation;
mod startup_output;
mod streaming;
mod takeover;
mod upstream_tls;
