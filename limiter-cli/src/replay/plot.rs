//! A plot of a replay: one key's usage against the limit, and the denials of all keys over time.
//!
//! The plot must know its key and time span before it starts, so the trace is replayed twice. The first pass fills
//! the [`Summary`](super::summary::Summary). The second fills a [`Collector`] with the data that the [`View`] needs.
//! Memory is bounded by the size of the plot and the requests of its key within the longest window.

mod axis;
mod canvas;
mod collect;
mod layout;
mod overview;
mod usage;
mod usage_panel;
mod view;

use limiter_core::Policy;
use plotters::style::Color;

use canvas::Canvas;

pub(crate) use collect::Collector;
pub(crate) use view::View;

/// Draws a plot as SVG.
pub(crate) fn draw(data: &Collector, policy: &Policy) -> anyhow::Result<String> {
    let mut svg = String::new();
    let strips = i32::try_from(data.strips.len()).unwrap_or(0);
    let height = (layout::STRIPS_TOP + strips * layout::STRIP + 20).unsigned_abs();
    let canvas = Canvas::new(&mut svg, (layout::WIDTH, height));
    canvas.rect((0, 0), (layout::WIDTH as i32, height as i32), plotters::style::WHITE.to_rgba())?;
    usage_panel::draw(&canvas, data, policy)?;
    overview::draw(&canvas, data)?;
    canvas.finish()?;
    Ok(svg)
}
