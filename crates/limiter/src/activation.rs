//! What is told about changes of the policy.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use tidegate_policy::ActivePolicy;

/// Called with a policy before it becomes active.
pub type ActivationListener = Box<dyn Fn(&ActivePolicy) + Send + Sync>;

/// All listeners of a limiter.
#[derive(Default)]
pub(crate) struct ActivationListeners(Mutex<Vec<ActivationListener>>);

impl ActivationListeners {
    pub(crate) fn add(&self, listener: ActivationListener) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    pub(crate) fn call(&self, policy: &ActivePolicy) {
        for listener in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            listener(policy);
        }
    }
}

impl fmt::Debug for ActivationListeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.lock().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("ActivationListeners").field("count", &count).finish()
    }
}
