//! The buffers of a worker.

use std::cell::{OnceCell, RefCell};

use tidegate_telemetry::RuleSlots;

use super::batch::CommandBatch;
use super::limit_cache::LimitCache;

/// The most bytes that are read at once.
const READ_LEN: usize = 64 << 10;
/// The number of unused workspaces that a worker keeps.
const MAX_SPARE: usize = 4;
/// Buffers for replies above this size are not kept.
const MAX_SPARE_OUTPUT: usize = 512 << 10;

/// What the connections of a worker share.
#[derive(Debug, Default)]
pub(crate) struct RespState {
    pub(crate) limits: RefCell<LimitCache>,
    /// The metric slot of `CL.THROTTLE`, which is registered when a command is rejected.
    pub(crate) slots: OnceCell<RuleSlots>,
    /// A connection uses a workspace until its commands are decided; unless the store is remote, one is enough.
    #[expect(clippy::vec_box, reason = "a workspace changes hands several times per batch")]
    spare: RefCell<Vec<Box<Workspace>>>,
}

/// The buffers for one batch of commands.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Commands are read into it.
    pub(crate) read: Box<[u8]>,
    pub(crate) batch: CommandBatch,
}

impl RespState {
    /// A workspace for one batch.
    pub(crate) fn take(&self) -> Box<Workspace> {
        let spare = self.spare.borrow_mut().pop();
        spare.unwrap_or_else(|| {
            Box::new(Workspace { read: vec![0; READ_LEN].into(), batch: CommandBatch::default() })
        })
    }

    pub(crate) fn put_back(&self, workspace: Box<Workspace>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < MAX_SPARE && workspace.batch.output.capacity() <= MAX_SPARE_OUTPUT {
            spare.push(workspace);
        }
    }
}
