//! Cases written by hand: at least one for every sentence of the contract that a sequence at given times can break.

mod appends;
mod edges;
mod fits;
mod ids;
pub(super) mod places;
mod policies;
mod retention;
pub(super) mod script;
mod settlements;
mod settling;
mod times;

use script::Script;

/// Returns all cases.
pub(super) fn scripts() -> Vec<Script> {
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
