//! Other proxies and programs that ask the decision service, with the configurations of `examples/integrations`.

mod access_log;
mod backpressure;
mod envoy;
mod envoy_domains;
mod http;
mod protocols;
mod redis_store;
mod resp;
mod shared;
mod tls;
