//! The allowed names of choices, and common types of values.

use tidegate_core::Algorithm;

use super::Shape::{self, Choice, Text};

pub(crate) const ALGORITHMS: &[&str] =
    &["sliding_window_counter", "sliding_window_log", "token_bucket", "leaky_bucket", "fixed_window"];
/// The algorithms with these names.
pub(crate) const ALGORITHM_VALUES: [Algorithm; 5] = [
    Algorithm::SlidingCounter,
    Algorithm::SlidingLog,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow,
];
pub(crate) const IDENTITIES: &[&str] = &["api_key", "user", "tenant", "ip", "fingerprint", "cookie"];
/// How API keys are verified.
pub(crate) const KEY_VERIFICATIONS: &[&str] = &["keys_file", "none"];
/// The modes of a rule that need no parameters.
pub(crate) const MODES: &[&str] = &["enforce", "shadow"];
/// Whether clients are told about a limit.
pub(crate) const REPORTS: &[&str] = &["on", "off"];
/// The failures that are retried, besides status codes.
pub(crate) const RETRY_CAUSES: &[&str] = &["connect", "reset", "timeout"];
/// The actions without parameters when a limit is exceeded.
pub(crate) const PLAIN_ACTIONS: &[&str] = &["reject", "degrade"];
/// Whether deferred requests may have credentials.
pub(crate) const CREDENTIALS: &[&str] = &["reject", "store"];
/// The value of `shed` without bounds.
pub(crate) const ADAPTIVE: &[&str] = &["adaptive"];
/// The value that disables the admin API, retries, ejection or the buffer of request bodies.
pub(crate) const OFF: &[&str] = &["off"];
/// The value of `per` for one counter shared by all clients.
pub(crate) const EVERYBODY: &str = "everybody";

pub(super) const FILE: Shape = Text("file name");
pub(super) const HEADER: Shape = Text("header name");
pub(super) const NETWORK: Shape = Text("network");
pub(super) const PATH: Shape = Text("path pattern");
pub(super) const IDENTITY: Shape = Choice(IDENTITIES);
pub(super) const METHOD: Shape = Text("method");
pub(super) const ANY_TEXT: Shape = Text("text");
