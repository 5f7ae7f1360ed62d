//! What the process answers to its caller.

use std::process::ExitCode;

/// The exit codes; wrong usage is 2, given by the argument parser.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
