//! The plots.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// One bar of a chart.
#[derive(Debug)]
pub struct Bar {
    /// The label.
    pub label: String,
    /// The length.
    pub value: f64,
    /// The text at its end.
    pub shown: String,
    /// Whether it shows this library.
    pub ours: bool,
}

/// Draws groups of bars with titles as SVG, one group below the other. Lengths are proportional within a group, and
/// this library's bars are dark. A bar more than eight times as long as this library's is broken, so that the others
/// stay visible.
///
/// # Errors
/// If a shape cannot be drawn.
pub fn bars(title: &str, groups: &[(String, Vec<Bar>)]) -> Result<String> {
    const WIDTH: i32 = 860;
    const LEFT: i32 = 150;
    const LINE: i32 = 22;
    let lines: usize = groups.iter().map(|(_, bars)| bars.len() + 2).sum();
    let height = 50 + LINE * lines as i32;
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area();
    let draw = || -> Result<(), Box<dyn std::error::Error>> {
        area.fill(&WHITE)?;
        let text = |size: i32| TextStyle::from(("sans-serif", size).into_font()).color(&RGBColor(40, 40, 40));
        area.draw_text(title, &text(19), (16, 12))?;
        let mut y = 50;
        for (group, bars) in groups {
            area.draw_text(group, &text(15), (16, y))?;
            y += LINE;
            let most = bars.iter().find(|bar| bar.ours).map_or(f64::INFINITY, |bar| 8.0 * bar.value);
            let longest = bars.iter().fold(f64::MIN_POSITIVE, |longest, bar| longest.max(bar.value.min(most)));
            for bar in bars {
                let length = (bar.value.min(most) / longest * f64::from(WIDTH - LEFT - 110)) as i32;
                let color = if bar.ours { RGBColor(0, 92, 153) } else { RGBColor(170, 190, 205) };
                let name = text(13).pos(Pos::new(HPos::Right, VPos::Center));
                area.draw_text(&bar.label, &name, (LEFT - 8, y + LINE / 2 - 1))?;
                let corners = [(LEFT, y + 2), (LEFT + length.max(1), y + LINE - 4)];
                area.draw(&Rectangle::new(corners, color.filled()))?;
                if bar.value > most {
                    let (x, top, bottom) = (LEFT + length * 9 / 10, y, y + LINE);
                    let gap = vec![(x + 8, top), (x + 16, top), (x + 4, bottom), (x - 4, bottom)];
                    area.draw(&Polygon::new(gap, WHITE.filled()))?;
                }
                let value = text(13).pos(Pos::new(HPos::Left, VPos::Center));
                area.draw_text(&bar.shown, &value, (LEFT + length + 6, y + LINE / 2 - 1))?;
                y += LINE;
            }
            y += LINE;
        }
        area.present()?;
        Ok(())
    };
    draw().map_err(|error| anyhow!("cannot draw the plot: {error}"))?;
    drop(area);
    Ok(svg)
}
