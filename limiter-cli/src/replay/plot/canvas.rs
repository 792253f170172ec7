//! Drawing on an SVG canvas with several panels, one below the other.

use plotters::coord::Shift;
use plotters::element::{PathElement, Polygon, Rectangle, Text};
use plotters::prelude::{DrawingArea, IntoDrawingArea, IntoFont, RGBAColor, RGBColor, SVGBackend, ShapeStyle};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, TextStyle};

use super::axis::{COLUMNS, Span};

pub(super) const INK: RGBColor = RGBColor(31, 41, 51);
pub(super) const QUIET: RGBColor = RGBColor(97, 110, 124);
pub(super) const GRID: RGBColor = RGBColor(228, 231, 235);
pub(super) const USED: RGBColor = RGBColor(44, 104, 176);
pub(super) const DENIED: RGBColor = RGBColor(206, 45, 45);

/// The left and right edges of every panel.
pub(super) const LEFT: i32 = 170;
pub(super) const RIGHT: i32 = LEFT + COLUMNS as i32;
pub(super) const WIDTH: u32 = RIGHT as u32 + 90;

/// The upper and lower edges of the usage panel and of the bars.
pub(super) const USAGE: (i32, i32) = (112, 372);
pub(super) const BARS: (i32, i32) = (470, 580);
pub(super) const STRIPS_TOP: i32 = 640;
pub(super) const STRIP: i32 = 22;

/// A position on the canvas, in pixels from its top left corner.
pub(super) type Point = (i32, i32);

/// An SVG canvas.
pub(super) struct Canvas<'a>(DrawingArea<SVGBackend<'a>, Shift>);

impl<'a> Canvas<'a> {
    pub(super) fn new(svg: &'a mut String, size: (u32, u32)) -> Self {
        Self(SVGBackend::with_string(svg, size).into_drawing_area())
    }

    pub(super) fn finish(self) -> anyhow::Result<()> {
        Ok(self.0.present()?)
    }

    pub(super) fn rect(&self, from: Point, to: Point, fill: RGBAColor) -> anyhow::Result<()> {
        Ok(self.0.draw(&Rectangle::new([from, to], fill.filled()))?)
    }

    pub(super) fn area(&self, outline: Vec<Point>, fill: RGBAColor) -> anyhow::Result<()> {
        Ok(self.0.draw(&Polygon::new(straightened(outline), fill.filled()))?)
    }

    pub(super) fn line(&self, through: Vec<Point>, color: RGBColor, width: u32) -> anyhow::Result<()> {
        let style = ShapeStyle { color: color.to_rgba(), filled: false, stroke_width: width };
        Ok(self.0.draw(&PathElement::new(straightened(through), style))?)
    }

    /// Draws a dashed horizontal line.
    pub(super) fn dashes(&self, from: Point, to_x: i32) -> anyhow::Result<()> {
        (from.0..to_x).step_by(9).try_for_each(|x| self.line(vec![(x, from.1), ((x + 5).min(to_x), from.1)], INK, 2))
    }

    /// Draws text, in bold from 14 pixels on.
    pub(super) fn text(&self, text: &str, at: Point, size: u32, color: RGBColor, side: HPos) -> anyhow::Result<()> {
        let style = if size < 14 { FontStyle::Normal } else { FontStyle::Bold };
        let font = ("sans-serif", size).into_font().style(style);
        let style = TextStyle::from(font).color(&color).pos(Pos::new(side, VPos::Center));
        Ok(self.0.draw(&Text::new(text, at, style))?)
    }

    /// Draws the times of a span below a panel, with grid lines through it.
    pub(super) fn time_axis(&self, span: Span, relative: bool, panel: (i32, i32)) -> anyhow::Result<()> {
        for (at, label) in span.ticks(9, relative) {
            let x = LEFT + span.scale(at, COLUMNS) as i32;
            self.line(vec![(x, panel.0), (x, panel.1 + 5)], GRID, 1)?;
            self.text(&label, (x, panel.1 + 15), 12, QUIET, HPos::Center)?;
        }
        self.line(vec![(LEFT, panel.1), (RIGHT, panel.1)], QUIET, 1)
    }

    /// Draws numbers to the left of a panel, with grid lines through it.
    pub(super) fn number_axis(
        &self,
        panel: (i32, i32),
        top: f64,
        numbers: &[f64],
        label: impl Fn(f64) -> String,
    ) -> anyhow::Result<()> {
        for &number in numbers {
            let y = height(panel, number / top);
            self.line(vec![(LEFT, y), (RIGHT, y)], GRID, 1)?;
            self.text(&label(number), (LEFT - 8, y), 12, QUIET, HPos::Right)?;
        }
        Ok(())
    }

    pub(super) fn heading(&self, bold: &str, quiet: &str, y: i32) -> anyhow::Result<()> {
        self.text(bold, (LEFT, y), 14, INK, HPos::Left)?;
        self.text(quiet, (RIGHT, y), 12, QUIET, HPos::Right)
    }
}

/// Returns the vertical position of a share of a panel.
pub(super) fn height(panel: (i32, i32), share: f64) -> i32 {
    panel.1 - (f64::from(panel.1 - panel.0) * share.clamp(0.0, 1.0)).round() as i32
}

/// Returns the same line without the points between their neighbours.
fn straightened(points: Vec<Point>) -> Vec<Point> {
    let between = |a: Point, b: Point, c: Point| {
        // A corner of the rectangle from a to c is no part of a straight line.
        let ordered = |a: i32, b: i32, c: i32| (a.min(c)..=a.max(c)).contains(&b);
        (a.0 == c.0 || a.1 == c.1) && ordered(a.0, b.0, c.0) && ordered(a.1, b.1, c.1)
    };
    points.into_iter().fold(Vec::new(), |mut kept, point| {
        if let [.., a, b] = kept[..]
            && between(a, b, point)
        {
            kept.pop();
        }
        kept.push(point);
        kept
    })
}
