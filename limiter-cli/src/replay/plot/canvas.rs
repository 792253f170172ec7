//! Drawing on an SVG canvas.

use std::fmt;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::element::{PathElement, Polygon, Rectangle, Text};
use plotters::prelude::{DrawingArea, IntoDrawingArea, IntoFont, RGBAColor, RGBColor, SVGBackend, ShapeStyle};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, TextStyle};

pub(super) const INK: RGBColor = RGBColor(31, 41, 51);
pub(super) const QUIET: RGBColor = RGBColor(97, 110, 124);
pub(super) const GRID: RGBColor = RGBColor(228, 231, 235);
pub(super) const USED: RGBColor = RGBColor(44, 104, 176);
pub(super) const DENIED: RGBColor = RGBColor(206, 45, 45);

/// A position on the canvas, in pixels from its top left corner.
pub(super) type Point = (i32, i32);

/// An SVG canvas.
pub(super) struct Canvas<'a>(DrawingArea<SVGBackend<'a>, Shift>);

/// The result of drawing.
pub(super) type DrawResult = anyhow::Result<()>;

fn draw_result<E: fmt::Display>(result: Result<(), E>) -> DrawResult {
    result.map_err(|error| anyhow!("cannot draw the plot: {error}"))
}

impl<'a> Canvas<'a> {
    pub(super) fn new(svg: &'a mut String, size: (u32, u32)) -> Self {
        Self(SVGBackend::with_string(svg, size).into_drawing_area())
    }

    pub(super) fn finish(self) -> DrawResult {
        draw_result(self.0.present())
    }

    pub(super) fn rect(&self, from: Point, to: Point, fill: RGBAColor) -> DrawResult {
        draw_result(self.0.draw(&Rectangle::new([from, to], fill.filled())))
    }

    pub(super) fn area(&self, outline: Vec<Point>, fill: RGBAColor) -> DrawResult {
        draw_result(self.0.draw(&Polygon::new(outline, fill.filled())))
    }

    pub(super) fn line(&self, through: Vec<Point>, color: RGBAColor, width: u32) -> DrawResult {
        let style = ShapeStyle { color, filled: false, stroke_width: width };
        draw_result(self.0.draw(&PathElement::new(through, style)))
    }

    /// Draws a dashed horizontal line.
    pub(super) fn dashes(&self, from: Point, to_x: i32, color: RGBAColor, width: u32) -> DrawResult {
        for x in (from.0..to_x).step_by(9) {
            self.line(vec![(x, from.1), ((x + 5).min(to_x), from.1)], color, width)?;
        }
        Ok(())
    }

    pub(super) fn text(&self, text: &str, at: Point, size: u32, color: RGBColor, side: HPos) -> DrawResult {
        self.styled_text(text, at, size, color, side, FontStyle::Normal)
    }

    pub(super) fn bold(&self, text: &str, at: Point, size: u32, color: RGBColor, side: HPos) -> DrawResult {
        self.styled_text(text, at, size, color, side, FontStyle::Bold)
    }

    fn styled_text(
        &self,
        text: &str,
        at: Point,
        size: u32,
        color: RGBColor,
        side: HPos,
        style: FontStyle,
    ) -> DrawResult {
        let font = ("sans-serif", size).into_font().style(style);
        let style = TextStyle::from(font).color(&color).pos(Pos::new(side, VPos::Center));
        draw_result(self.0.draw(&Text::new(text, at, style)))
    }
}
