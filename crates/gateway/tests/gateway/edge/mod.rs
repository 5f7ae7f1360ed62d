//! What happens at the edges: with clients that mean harm and upstreams that fail, over real sockets.

mod cancelled;
mod client_body;
mod early;
mod forwarded;
mod http2;
mod identity;
mod idle_upstreams;
mod interim;
mod malformed;
mod parting;
mod paths;
mod pipelined;
mod probes;
mod readers;
mod resent;
mod response_framing;
mod room;
mod slow;
mod spellings;
mod tls;
mod upstreams;
