//! The client over real sockets: against servers of the test kit and against a gateway.

mod gateway;
mod wire;
