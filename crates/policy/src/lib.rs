//! What the operator wrote, and what it means for one request.

mod directory;
mod endpoints;
mod expression;
mod facts;
mod identity;
mod path;

pub use directory::{Directory, DirectoryError, Grant, LineError, LineProblem};
pub use endpoints::{DuplicateEndpoint, EndpointPattern, Endpoints, PatternError};
pub use expression::{EvaluationError, Expression, ExpressionError, Place};
pub use facts::Facts;
pub use identity::{
    Addresses, ClaimSource, Claims, ClientKind, CookieName, CookieNameError, Fingerprint, ForwardingHeader,
    Identities, Identity, IdentityError, IdentitySpec, KeysError, NoHeaders, PrefixError, Source, TokenError,
    Verifier,
};
pub use path::{PathError, normalize};
