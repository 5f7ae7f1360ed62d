//! Decisions over HTTP.
//!
//! A request passes these modules in order:
//!
//! 1. `connection`: a connection, its timeouts and its end. `plain_connection` serves the requests that `plain` can parse;
//!    from the first other one on, hyper serves the connection
//! 2. `dispatch`: the endpoint of a path, its method, the token, the body (`body`)
//! 3. the endpoint: `check` (check, peek, batches), `charges` (refund, reset, reserve, commit), `authorize` (the original
//!    request of a proxy, from the headers that `original` reads), or a fixed response
//! 4. `message`: what a client sends; `client`: the counter key of a client; `facts`: a request as the gateway would see it
//! 5. `decision`: the limiter's ruling as JSON and as headers
//! 6. `error`: every other response
//!
//! `request` and `response` are the same for both ways to serve.
//!
//! There is no router: the paths are fixed, and one `match` finds them.

mod authorize;
mod body;
mod charges;
mod check;
mod client;
mod connection;
mod decision;
mod dispatch;
mod error;
mod facts;
mod idle_timeout;
mod local_host;
mod message;
mod original;
mod plain;
mod plain_connection;
mod request;
mod reserve;
mod response;
mod state;

pub(crate) use connection::serve;
pub(crate) use state::HttpState;
