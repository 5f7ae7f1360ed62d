//! Other proxies and programs that ask the decision service, with the configurations of `examples/integrations`.

mod envoy;
mod http;
mod resp;
mod shared;
