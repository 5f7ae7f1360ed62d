//! slow
