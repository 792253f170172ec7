//! The positions of the panels, and the axes that they share.

use plotters::style::Color;
use plotters::style::text_anchor::HPos;

use super::axis::{COLUMNS, Span};
use super::canvas::{Canvas, DrawResult, GRID, INK, QUIET};

/// The left and right edges of every panel.
pub(super) const LEFT: i32 = 170;
pub(super) const RIGHT: i32 = LEFT + COLUMNS as i32;
pub(super) const WIDTH: u32 = RIGHT as u32 + 90;

/// The upper and lower edges of the usage panel and of the bars.
pub(super) const USAGE: (i32, i32) = (112, 372);
pub(super) const BARS: (i32, i32) = (470, 580);
pub(super) const STRIPS_TOP: i32 = 640;
pub(super) const STRIP: i32 = 22;

/// Draws the times of a span below a panel, with grid lines through it.
pub(super) fn time_axis(canvas: &Canvas<'_>, span: Span, relative: bool, panel: (i32, i32)) -> DrawResult {
    for (at, label) in span.ticks(9, relative) {
        let x = LEFT + span.scale(at, COLUMNS) as i32;
        canvas.line(vec![(x, panel.0), (x, panel.1 + 5)], GRID.to_rgba(), 1)?;
        canvas.text(&label, (x, panel.1 + 15), 12, QUIET, HPos::Center)?;
    }
    canvas.line(vec![(LEFT, panel.1), (RIGHT, panel.1)], QUIET.to_rgba(), 1)
}

/// Draws numbers to the left of a panel, with grid lines through it.
pub(super) fn number_axis(
    canvas: &Canvas<'_>,
    panel: (i32, i32),
    top: f64,
    numbers: &[f64],
    label: impl Fn(f64) -> String,
) -> DrawResult {
    for &number in numbers {
        let y = height(panel, number / top);
        canvas.line(vec![(LEFT, y), (RIGHT, y)], GRID.to_rgba(), 1)?;
        canvas.text(&label(number), (LEFT - 8, y), 12, QUIET, HPos::Right)?;
    }
    Ok(())
}

/// Returns the vertical position of a share of a panel.
pub(super) fn height(panel: (i32, i32), share: f64) -> i32 {
    panel.1 - (f64::from(panel.1 - panel.0) * share.clamp(0.0, 1.0)).round() as i32
}

pub(super) fn heading(canvas: &Canvas<'_>, bold: &str, quiet: &str, y: i32) -> DrawResult {
    canvas.bold(bold, (LEFT, y), 14, INK, HPos::Left)?;
    canvas.text(quiet, (RIGHT, y), 12, QUIET, HPos::Right)
}
