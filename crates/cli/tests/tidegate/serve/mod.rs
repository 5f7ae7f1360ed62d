//! `tidegate serve` on a real port.

mod activation;
mod admin;
mod certificates;
mod descriptors;
mod floods;
mod frameworks;
mod log;
mod prometheus;
mod reload;
mod stop;
mod streaming;
mod takeover;
mod trust;
mod welcome;
