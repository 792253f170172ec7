//! The in-process backend.
