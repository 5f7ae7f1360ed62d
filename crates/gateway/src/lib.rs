//! The reverse proxy that enforces a policy.
//!
//! Bytes enter at `listen`, one socket and one thread for each core. `stack` reads, top to bottom, as the journey of
//! a request: what it asks for, who is banned, what it is held against, the one decision, its turn, the upstream.
//! Whatever goes wrong is a typed cause that rises to `rescue`, the only place that chooses a status code. What is in
//! force is swapped whole: no request sees half of a reload.

#![forbid(unsafe_code)]

mod activity;
mod body;
mod bounds;
mod certificate;
mod chain;
mod client_socket;
mod client_stream;
mod connection;
mod core;
mod exclusion;
mod forward;
mod gateway;
mod grpc;
mod guests;
mod hold;
mod joined;
mod linger;
mod listen;
mod live;
mod liveness;
mod marks;
mod patience;
mod refusal;
mod rescue;
mod response_streams;
mod rounds;
mod runtime;
mod seen;
mod send_queue;
mod settle;
mod shut;
mod stack;
mod told;
mod traced;
mod tunnel;
mod unparsable;
mod upload;
mod upstream;

pub use body::Pace;
pub use bounds::Bounds;
pub use certificate::{CertificateError, CertificateResolver, ServerCertificate};
pub use gateway::{Gateway, GatewayError};
pub use listen::{ListenError, Listener};
pub use live::LiveError;
pub use upstream::{BadServer, TlsError};
