//! What a connection knows about its client.

use std::sync::atomic::{AtomicU64, Ordering};

/// The id of the next connection, for `CLIENT ID`.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The state that commands change.
#[derive(Debug)]
pub(crate) struct RespClientState {
    pub(crate) id: u64,
    pub(crate) is_resp3: bool,
    /// Whether the client sent the token.
    pub(crate) is_authenticated: bool,
    pub(crate) name: Vec<u8>,
}

impl RespClientState {
    pub(crate) fn new() -> Self {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Self { id, is_resp3: false, is_authenticated: false, name: Vec::new() }
    }

    /// The state of a new connection, with the same id.
    pub(crate) fn reset(&mut self) {
        *self = Self { id: self.id, is_resp3: false, is_authenticated: false, name: Vec::new() };
    }
}
