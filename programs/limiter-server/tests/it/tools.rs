//! Programs that the tests run and `scripts/test` installs.

use std::env;
use std::path::{Path, PathBuf};

/// The folder of the client for Python.
pub(crate) const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../clients/python");

/// Returns Envoy.
pub(crate) fn envoy() -> PathBuf {
    find("LIMITER_ENVOY", "bin/envoy")
}

/// Returns a Python with gRPC.
pub(crate) fn python() -> PathBuf {
    find("LIMITER_PYTHON", "bin/python3")
}

fn find(variable: &str, installed: &str) -> PathBuf {
    let found = env::var_os(variable).map_or_else(
        || {
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../target/tools/python")
                .join(installed)
        },
        PathBuf::from,
    );
    assert!(
        found.exists(),
        "{} is missing: run scripts/test, which installs it, or set {variable}",
        found.display()
    );
    found
}
