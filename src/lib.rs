//! limiter
pub use limiter_core::*;
