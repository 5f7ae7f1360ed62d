//! What the operator wrote, and what it means for one request.

mod endpoints;
mod path;

pub use endpoints::{DuplicateEndpoint, EndpointPattern, Endpoints, PatternError};
pub use path::{PathError, normalize};
