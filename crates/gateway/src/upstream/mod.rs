//! Upstreams: which server gets a request, and the connections to it.
//!
//! A request uses the modules in this order:
//!
//! 1. [`balance`] chooses a [`server`] of the upstream, preferably one that [`health`] has found healthy and that is not in
//!    [`ejection`]. [`select`] skips servers whose breaker ([`breakers`]) is open. [`client_shares`] bounds what one client
//!    contributes to either.
//! 2. [`transport`] takes the [`forwarded_request`] and finds a connection: an idle one from the [`pool`], one that another
//!    request is [`opening`], or a new one from [`connect`]. It resends a request over another connection if the server has
//!    certainly not processed it.
//! 3. [`pooled_conn`] is that connection while the request uses it. It sends the request and reads the head of the
//!    response in one of three ways: [`http1_fast`] for an HTTP/1.1 request without a body, otherwise hyper's HTTP/1.1 or
//!    HTTP/2 over [`stream`]. [`response_chunks`] checks chunks before hyper reads them, [`framing`] the head that it has read.
//! 4. [`timeout_wheel`] limits how long all of this takes.
//! 5. [`retry`] decides whether another attempt follows.
//! 6. The response body returns the connection to the [`pool`]. [`abandon`] handles exchanges that end earlier.
//!
//! [`outage`] is what operators are told of a server that fails; [`reachability`] finds at the start which can be reached.
//! [`head_profile`] and [`connection_suspects`] decide which requests share an HTTP/2 connection. [`resilience`] is the state of an
//! upstream for all of this. [`permits`] are what a request holds meanwhile; [`connection_slots`] bounds the connections of an
//! upstream.

mod abandon;
mod balance;
mod breakers;
mod client_shares;
mod connect;
mod connection_slots;
mod connection_suspects;
mod ejection;
mod forwarded_request;
mod framing;
mod head_profile;
pub(crate) mod health;
mod http1_fast;
mod opening;
mod outage;
mod permits;
mod pool;
mod pooled_conn;
mod reachability;
mod resilience;
mod response_chunks;
mod retry;
mod select;
mod server;
mod stream;
mod timeout_wheel;
mod transport;

pub(crate) use balance::StickyKey;
pub(crate) use breakers::AttemptPermit;
pub(crate) use client_shares::{ClientId, Evidence};
pub(crate) use connect::Connector;
pub use connect::TlsError;
pub(crate) use connection_slots::{NoConnectionSlot, PoolPressure};
pub(crate) use forwarded_request::ForwardedRequest;
pub(crate) use http1_fast::PlainBody;
pub use outage::OutageStatus;
pub(crate) use outage::{OutageNotice, describe_connect_error};
pub(crate) use permits::{ExchangePermits, PermitList};
pub(crate) use pooled_conn::PooledConn;
pub use reachability::UnreachableUpstream;
pub(crate) use reachability::unreachable;
pub use resilience::ResilienceError;
pub(crate) use resilience::{AttemptTimeouts, bulkhead};
pub(crate) use retry::{RetryCause, RetryState};
pub(crate) use select::{Caller, SelectError, SelectedServer};
pub use server::{InvalidServerUrl, UpstreamError};
pub(crate) use server::{Server, UpstreamGroup};
pub(crate) use timeout_wheel::TimeoutWheel;
pub(crate) use transport::{SendError, Transport};
