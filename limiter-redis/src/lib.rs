//! The Redis backend.
