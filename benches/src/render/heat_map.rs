//! The plot of the surface.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::memory::surface::{Cell, ENTRIES, KEYS, LIBRARIES, THREADS};
use crate::record::Record;

/// The width and the height of a panel.
const PANEL: (u32, u32) = (430, 230);

/// Draws governor's time as a multiple of this library's, for governor as shipped and with this library's hasher. Green cells
/// are faster here, red ones in governor.
pub(super) fn draw(record: &Record) -> Result<String> {
    let mut svg = String::new();
    panels(record, &mut svg).map_err(|error| anyhow!("cannot draw the surface on {}: {error}", record.family()))?;
    Ok(svg)
}

fn panels(record: &Record, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let rows = THREADS.map(|threads| [true, false].map(|allowed| (threads, allowed))).concat();
    let size = (PANEL.0 * 2, PANEL.1 * rows.len() as u32 + 36);
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    let title =
        format!("governor's time as a multiple of limiter's ({}): green is slower than limiter", record.family());
    let areas = root.titled(&title, ("sans-serif", 18))?.split_evenly((rows.len(), 2));
    let labelled = ("sans-serif", 13).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Center));
    for (i, area) in areas.iter().enumerate() {
        let (threads, allowed) = rows[i / 2];
        let peer = LIBRARIES[1 + i % 2].name;
        let verdict = if allowed { "all allowed" } else { "limits used up" };
        let mut chart = ChartBuilder::on(area)
            .caption(format!("{peer}: {threads} thread(s), {verdict}"), ("sans-serif", 14))
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(84)
            .build_cartesian_2d((0..ENTRIES.len()).into_segmented(), (0..KEYS.len()).into_segmented())?;
        let of = |values: &[String], at: &SegmentValue<usize>| match at {
            SegmentValue::CenterOf(i) => values.get(*i).cloned().unwrap_or_default(),
            _ => String::new(),
        };
        let (entries, keys) = (ENTRIES.map(|entries| entries.to_string()), KEYS.map(|keys| keys.to_string()));
        chart
            .configure_mesh()
            .disable_mesh()
            .x_desc("entries per log")
            .y_desc("keys")
            .x_label_formatter(&|at| of(&entries, at))
            .y_label_formatter(&|at| of(&keys, at))
            .draw()?;
        for (x, &entries) in ENTRIES.iter().enumerate() {
            for (y, &keys) in KEYS.iter().enumerate() {
                let cell = Cell { keys, entries, allowed, threads };
                let ratio = record.ratio(&cell.to_string(), peer, LIBRARIES[0].name);
                let corner = |add| (SegmentValue::Exact(x + add), SegmentValue::Exact(y + add));
                chart.draw_series([Rectangle::new([corner(0), corner(1)], color(ratio).filled())])?;
                let label = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
                let center = (SegmentValue::CenterOf(x), SegmentValue::CenterOf(y));
                chart.draw_series([Text::new(label, center, labelled.clone())])?;
            }
        }
    }
    root.present()?;
    Ok(())
}

/// White at 1, full green at three, full red at a third.
fn color(ratio: Option<f64>) -> RGBColor {
    let Some(ratio) = ratio else { return RGBColor(240, 240, 240) };
    let strength = (ratio.ln() / 3_f64.ln()).clamp(-1.0, 1.0);
    let (full, part) = if strength > 0.0 { ((90, 180, 120), strength) } else { ((220, 100, 90), -strength) };
    let mix = |full: u8| (255.0 - (255.0 - f64::from(full)) * part) as u8;
    RGBColor(mix(full.0), mix(full.1), mix(full.2))
}
