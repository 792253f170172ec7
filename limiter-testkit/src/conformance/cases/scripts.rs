//! All cases.

use super::script::Script;
use super::{appends, edges, fits, ids, policies, retention, settlements, settling, times};

/// Returns all cases.
pub(crate) fn scripts() -> Vec<Script> {
    [
        times::scripts(),
        fits::scripts(),
        appends::scripts(),
        retention::scripts(),
        policies::scripts(),
        ids::scripts(),
        settlements::scripts(),
        settling::scripts(),
        edges::scripts(),
    ]
    .concat()
}
