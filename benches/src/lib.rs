//! Compares the limiter with its peers. Scenarios are declared as data in `scenarios/`. [`turns`] measures all its contestants in turns
//! within one process, [`record`] keeps the figures of each CPU family, and [`render`] writes the documents that show
//! them. A [`program`] and the criterion benches (`benches/`) are the front ends.

#![allow(missing_debug_implementations, reason = "the peers have none")]

pub mod declared;
pub mod group;
mod lease;
pub mod memory;
mod postgres;
pub mod program;
pub mod record;
mod redis;
pub mod render;
pub mod turns;

use crate::program::Program;

/// The library's benches.
pub const LIBRARY: Program = Program {
    package: env!("CARGO_PKG_NAME"),
    workspace: concat!(env!("CARGO_MANIFEST_DIR"), "/.."),
    lock: include_str!("../../Cargo.lock"),
    groups: &group::GROUPS,
    sections: render::sections,
    pages: &render::PAGES,
};
