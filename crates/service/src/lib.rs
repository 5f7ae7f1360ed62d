//! The decision service: other proxies and programs ask whether a request may pass.
//!
//! Each protocol is an edge: it decodes a question, asks the limiter, and encodes the answer. `http` has checks and
//! forward authentication, `grpc` Envoy's rate limit service, `resp` the Redis protocol. All of them use the rules and
//! counters of the gateway.
//!
//! [`Service::start`] starts one thread for each core; `accept` accepts connections there, `worker` has what the
//! connections of a thread share, `connection_events` what they wait for besides their bytes, `fair_io` shares the thread
//! between them, `auth` checks tokens, `request` normalises the requests that clients describe, `reservations` has the charges
//! whose final cost clients set later.

#![forbid(unsafe_code)]

mod accept;
mod auth;
mod client;
mod connection_events;
mod fair_io;
mod grpc;
mod http;
mod request;
mod reservations;
mod resp;
mod server;
mod worker;

#[doc(hidden)]
pub use resp::{Arguments, CommandParser, FrameError};
pub use server::{Service, ServiceListener};
