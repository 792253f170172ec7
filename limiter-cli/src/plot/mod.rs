//! A picture of a replay: one key's usage against the limit, and everybody's denials over time.
//!
//! The picture needs to know its key and its span of time before it can begin, so a trace is replayed twice: once for
//! the [`Summary`](crate::summary::Summary), then, into a [`Collector`], for what the [`View`] asks for. Memory is
//! bounded by the size of the picture and the usage of its one key.

mod axis;
mod canvas;
mod collect;
mod draw;
mod sliding;
mod steps;
mod usage;
mod view;

pub use collect::{Collector, Picture};
pub use draw::draw;
pub use view::View;

/// How many columns of pixels a panel has.
const COLUMNS: u32 = 1_000;
