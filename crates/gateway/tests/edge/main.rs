//! What happens at the edges: with clients that mean harm and upstreams that fail, over real sockets.

#[path = "../support/mod.rs"]
mod support;

mod forwarded;
mod http2;
mod identity;
mod malformed;
mod parting;
mod paths;
mod room;
mod slow;
mod tls;
mod upstreams;
