//! Shared test code: servers, clients, processes, certificates, and waiting with a deadline.
//!
//! A dev-dependency only. It knows none of the product's crates, so that every one of them can use it.
//!
//! - [`server`]: servers in this process that record, respond by a script, echo, or fail in a chosen way.
//! - [`client`]: clients that send exact bytes, HTTP/1.1 and HTTP/2 clients, TLS, and raw HTTP/2 frames.
//! - [`message`]: HTTP/1.1 messages, parsed strictly.
//! - [`process`]: other programs, killed when their handle is dropped.
//! - [`certificate`]: certificates and authorities that live as long as a test.
//! - [`wait`]: every wait has a deadline; polling is in one place.
//! - [`folder`] and [`port`]: a temporary folder and a free port.

#![forbid(unsafe_code)]
#![allow(clippy::missing_panics_doc, reason = "a test fails by panicking; what cannot be set up fails it")]

pub mod certificate;
pub mod client;
pub mod folder;
pub mod message;
pub mod port;
pub mod process;
pub mod server;
pub mod wait;
