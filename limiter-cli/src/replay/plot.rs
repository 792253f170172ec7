//! A picture of a replay: one key's usage against the limit, and everybody's denials over time.
//!
//! The picture needs to know its key and its span of time before it can begin, so a trace is replayed twice: once for
//! the [`Summary`](super::summary::Summary), then, into a [`Collector`], for what the [`View`] asks for. Memory is
//! bounded by the size of the picture and the usage of its one key.

mod axis;
mod canvas;
mod collect;
mod layout;
mod overview;
mod sliding;
mod steps;
mod usage;
mod usage_panel;
mod view;

use limiter_core::Policy;
use plotters::style::Color;

use canvas::Canvas;

pub use collect::{Collector, Picture};
pub use view::View;

/// Draws a picture as SVG.
///
/// # Errors
/// If a shape cannot be drawn.
pub fn draw(picture: &Picture, policy: &Policy) -> anyhow::Result<String> {
    let mut svg = String::new();
    let strips = i32::try_from(picture.strips.len()).unwrap_or(0);
    let height = (layout::STRIPS_TOP + strips * layout::STRIP + 20).unsigned_abs();
    let canvas = Canvas::new(&mut svg, (layout::WIDTH, height));
    canvas.rect((0, 0), (layout::WIDTH as i32, height as i32), plotters::style::WHITE.to_rgba())?;
    usage_panel::draw(&canvas, picture, policy)?;
    overview::draw(&canvas, picture)?;
    canvas.finish()?;
    Ok(svg)
}
