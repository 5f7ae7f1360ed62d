//! Malformed HTTP/1 beyond the probes: what the gateway answers, what it forwards in another form, and trailers.

mod answers;
mod downgrade;
mod trailers;
