//! The exit code of the process.

use std::process::ExitCode;

/// How a command ended. The argument parser itself exits with 2 for an invalid command line.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommandOutcome {
    Success = 0,
    Failure = 1,
}

impl From<CommandOutcome> for ExitCode {
    fn from(outcome: CommandOutcome) -> Self {
        Self::from(outcome as u8)
    }
}
