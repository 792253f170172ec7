//! The picture.

mod overview;
mod usage_panel;

use limiter_core::Policy;
use plotters::style::Color;
use plotters::style::text_anchor::HPos;

use super::axis::Span;
use super::canvas::{Canvas, Drawn, GRID, INK, QUIET};
use super::{COLUMNS, Picture};

/// The left and the right edge of every panel.
const LEFT: i32 = 170;
const RIGHT: i32 = LEFT + COLUMNS as i32;
const WIDTH: u32 = RIGHT as u32 + 90;

/// The upper and the lower edge of the panel of the key's usage, and of the bars.
const USAGE: (i32, i32) = (112, 372);
const BARS: (i32, i32) = (470, 580);
const STRIPS_TOP: i32 = 640;
const STRIP: i32 = 22;

/// Draws a picture as SVG.
///
/// # Errors
/// If a shape cannot be drawn.
pub fn draw(picture: &Picture, policy: &Policy) -> anyhow::Result<String> {
    let mut svg = String::new();
    let strips = i32::try_from(picture.strips.len()).unwrap_or(0);
    let height = (STRIPS_TOP + strips * STRIP + 20).unsigned_abs();
    let canvas = Canvas::new(&mut svg, (WIDTH, height));
    canvas.rect((0, 0), (WIDTH as i32, height as i32), plotters::style::WHITE.to_rgba())?;
    usage_panel::draw(&canvas, picture, policy)?;
    overview::draw(&canvas, picture)?;
    canvas.finish()?;
    Ok(svg)
}

/// The times of a span below a panel, with lines up through it.
fn time_axis(canvas: &Canvas<'_>, span: Span, relative: bool, panel: (i32, i32)) -> Drawn {
    for (at, label) in span.ticks(9, relative) {
        let x = LEFT + span.scale(at, COLUMNS) as i32;
        canvas.line(vec![(x, panel.0), (x, panel.1 + 5)], GRID.to_rgba(), 1)?;
        canvas.text(&label, (x, panel.1 + 15), 12, QUIET, HPos::Center)?;
    }
    canvas.line(vec![(LEFT, panel.1), (RIGHT, panel.1)], QUIET.to_rgba(), 1)
}

/// Numbers at the left of a panel, with lines through it.
fn number_axis(
    canvas: &Canvas<'_>,
    panel: (i32, i32),
    top: f64,
    numbers: &[f64],
    label: impl Fn(f64) -> String,
) -> Drawn {
    for &number in numbers {
        let y = height(panel, number / top);
        canvas.line(vec![(LEFT, y), (RIGHT, y)], GRID.to_rgba(), 1)?;
        canvas.text(&label(number), (LEFT - 8, y), 12, QUIET, HPos::Right)?;
    }
    Ok(())
}

/// The height at which a share of a panel is drawn.
fn height(panel: (i32, i32), share: f64) -> i32 {
    panel.1 - (f64::from(panel.1 - panel.0) * share.clamp(0.0, 1.0)).round() as i32
}

fn heading(canvas: &Canvas<'_>, bold: &str, quiet: &str, y: i32) -> Drawn {
    canvas.bold(bold, (LEFT, y), 14, INK, HPos::Left)?;
    canvas.text(quiet, (RIGHT, y), 12, QUIET, HPos::Right)
}
