//! Sequences that are generated: all short ones, and random ones that shrink.

#[cfg(test)]
mod coverage;
pub(super) mod exhaustive;
pub(super) mod shrink;
pub(super) mod strategy;
