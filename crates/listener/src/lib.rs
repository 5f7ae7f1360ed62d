//! The edge of every server: listening sockets, one for each worker thread, the certificates that they present, limits on
//! connections, and the framing of HTTP/1.1 requests.
//!
//! The gateway and the decision service accept connections through a [`Listener`]. It is bound here, or adopted from a
//! service manager or from a process that is being replaced. [`start_workers`] starts their threads.
//!
//! hyper reads chunked bodies leniently. [`RequestFraming`] finds them in the bytes of a client, and [`ChunkScanner`] checks them
//! first; [`FramedIo`] applies both to a stream.

#![forbid(unsafe_code)]

mod bearer;
mod certificate;
mod chunks;
mod client_auth;
mod connection_limit;
mod framed_io;
mod head_lines;
mod listener;
mod request_framing;
mod workers;

pub use bearer::bearer;
pub use certificate::{CertificateResolver, ServerCertificate, ServerCertificateError};
pub use chunks::{ChunkError, ChunkScanner};
pub use client_auth::{ClientAuthority, ClientAuthorityError};
pub use connection_limit::{ConnectionLimiter, ConnectionPermit};
pub use framed_io::{FramedIo, NextBody};
pub use head_lines::find_line;
pub use listener::{ListenError, Listener};
pub use request_framing::{BodyLength, HeadLine, RequestFraming};
pub use workers::{WorkerSocket, WorkerStartError, start_workers};
