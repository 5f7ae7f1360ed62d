//! What the operator wrote, and what it means for one request.
