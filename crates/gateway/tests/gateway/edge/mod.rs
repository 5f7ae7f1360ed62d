//! Hostile clients and failing upstreams, over real sockets.

mod cancelled;
mod client_body;
mod connection_breaks;
mod early_responses;
mod forwarded;
mod http2;
mod identity;
mod idle_upstreams;
mod interim;
mod lingering_close;
mod malformed;
mod paths;
mod pipelined;
mod probes;
mod resource_limits;
mod response_framing;
mod retries;
mod shared_capacity;
mod shared_clients;
mod shared_connections;
mod slow_clients;
mod slow_readers;
mod spellings;
mod tls;
mod upstreams;
