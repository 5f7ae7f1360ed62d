//! What a connection knows about its client.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_policy::Secret;
use tidegate_telemetry::Protocol;

use super::transaction::Transaction;
use crate::auth::ListenerTokens;

/// The id of the next connection, for `CLIENT ID`.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The state that commands change.
#[derive(Debug)]
pub(crate) struct RespClientState {
    pub(crate) id: u64,
    /// The address at the other end of the connection.
    pub(crate) peer: IpAddr,
    pub(crate) is_resp3: bool,
    /// The token that the client has sent.
    pub(crate) token: Option<Arc<Secret>>,
    pub(crate) name: Vec<u8>,
    /// Whether the client has to authenticate before its next command.
    pub(crate) is_locked: bool,
    /// The commands since `MULTI`.
    pub(crate) transaction: Option<Transaction>,
}

impl RespClientState {
    pub(crate) fn new(peer: IpAddr) -> Self {
        Self::with_id(NEXT_ID.fetch_add(1, Ordering::Relaxed), peer)
    }

    fn with_id(id: u64, peer: IpAddr) -> Self {
        Self { id, peer, is_resp3: false, token: None, name: Vec::new(), is_locked: true, transaction: None }
    }

    /// The state of a new connection, with the same id.
    pub(crate) fn reset(&mut self) {
        *self = Self::with_id(self.id, self.peer);
    }

    /// Locks or unlocks the client, before commands of a policy and after each command that may change its token.
    pub(crate) fn update_lock(&mut self, tokens: &ListenerTokens) {
        self.is_locked = !self.is_authorized(tokens);
    }

    /// Whether the client may use commands that need a token: it has sent the one that is required now.
    pub(crate) fn is_authorized(&self, tokens: &ListenerTokens) -> bool {
        match (tokens.required(Protocol::Resp), &self.token) {
            // A token that has not changed is the same value.
            (Some(required), Some(sent)) => Arc::ptr_eq(required, sent),
            (Some(_), None) => false,
            (None, _) => true,
        }
    }
}
