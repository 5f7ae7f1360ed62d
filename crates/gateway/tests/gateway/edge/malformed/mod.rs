//! Malformed requests beyond the probes: error responses to unparsable heads, HTTP/2 translated to HTTP/1.1, and trailers.

mod downgrade;
mod trailers;
mod unparsable_heads;
