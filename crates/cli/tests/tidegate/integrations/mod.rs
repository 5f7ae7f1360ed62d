//! The decision service with real proxies and clients.

mod http;
