//! Tests of one protocol.
