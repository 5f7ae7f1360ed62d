//! What the operator wrote, and what it means for one request.

mod directory;
mod endpoints;
mod path;

pub use directory::{Directory, DirectoryError, Grant, LineError, LineProblem};
pub use endpoints::{DuplicateEndpoint, EndpointPattern, Endpoints, PatternError};
pub use path::{PathError, normalize};
