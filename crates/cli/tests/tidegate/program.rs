//! The binary that cargo has built for these tests.

use std::path::Path;
use std::process::{Command, Output};

use tidegate_testkit::process::Tidegate;

/// Its path.
pub(crate) const PATH: &str = env!("CARGO_BIN_EXE_tidegate");
/// The root of the repository.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A command that starts it, with a home of its own.
pub(crate) fn command() -> Command {
    let mut command = Command::new(PATH);
    command.env("XDG_STATE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("home"));
    command
}

/// Runs it to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    command().args(args).output().unwrap()
}

/// Runs it to its end in the root of the repository.
pub(crate) fn run_in_root(args: &[&str]) -> Output {
    command().args(args).current_dir(ROOT).output().unwrap()
}

/// Starts `tidegate serve` at a free port.
pub(crate) fn serve(args: &[&str]) -> Tidegate {
    serve_at("127.0.0.1:0", args)
}

/// Starts `tidegate serve` at this address.
pub(crate) fn serve_at(address: &str, args: &[&str]) -> Tidegate {
    Tidegate::start(command().args(["serve", "--listen", address]).args(args))
}
