//! http2
