//! Connections of clients: listening, TLS, HTTP/1.1 or HTTP/2, idle and slow clients, closing.

pub(crate) mod activity;
pub(crate) mod certificate;
pub(crate) mod client_socket;
pub(crate) mod client_stream;
pub(crate) mod coalesce;
pub(crate) mod connection;
pub(crate) mod connection_limit;
pub(crate) mod idle_watchdog;
pub(crate) mod lingering_close;
pub(crate) mod listener;
pub(crate) mod liveness;
pub(crate) mod response_streams;
pub(crate) mod send_queue;
pub(crate) mod unparsable;
