//! Requests and responses: ids, hop-by-hop and forwarding headers, bodies, upgrades.

pub(crate) mod access_log;
pub(crate) mod forwarded;
pub(crate) mod header_flags;
pub(crate) mod hop_headers;
pub(crate) mod request_body;
pub(crate) mod request_id;
pub(crate) mod response_body;
pub(crate) mod small_frames;
pub(crate) mod trace_context;
pub(crate) mod unsent_bodies;
pub(crate) mod upgrade;
pub(crate) mod validate;
