//! What the operator wrote, and what it means for one request.

mod path;

pub use path::{PathError, normalize};
