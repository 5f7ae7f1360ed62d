//! What the store offers besides counters.

use tidegate_store::SharedEvent;
use tokio::sync::mpsc;

use super::RedisStore;
use crate::shared::SharedRecords;

impl RedisStore {
    /// Starts to exchange records with the other nodes. The receiver gets what they did.
    pub fn share_records(&self) -> (SharedRecords, mpsc::Receiver<SharedEvent>) {
        SharedRecords::start(&self.state.link)
    }

    /// Whether Redis is believed to work: decisions ask it.
    pub fn is_available(&self) -> bool {
        self.state.link.is_available()
    }
}
