//! The heat map.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::thousands;
use super::{Cell, ENTRIES, KEYS, Surface, THREADS};
use crate::libraries::{Governor, GovernorFoldhash, Library};

/// Draws this library's time as a multiple of governor's, as shipped and with this library's hasher, as SVG. Green cells are
/// faster than governor, red ones slower.
///
/// # Errors
/// If a shape cannot be drawn.
pub fn heat_map(surface: &Surface) -> Result<String> {
    const LEFT: i32 = 96;
    const CELL: (i32, i32) = (66, 30);
    const PANEL: (i32, i32) = (LEFT + CELL.0 * ENTRIES.len() as i32, 76 + CELL.1 * KEYS.len() as i32);
    let peers = [(Governor::NAME, "governor"), (GovernorFoldhash::NAME, "governor with foldhash")];
    let panels = THREADS.map(|threads| [true, false].map(|allowed| (threads, allowed))).concat();
    let size = (PANEL.0 * peers.len() as i32 + 24, PANEL.1 * panels.len() as i32 + 48);
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (size.0 as u32, size.1 as u32)).into_drawing_area();
    let draw = || -> Result<(), Box<dyn std::error::Error>> {
        area.fill(&WHITE)?;
        let text = |size: i32| TextStyle::from(("sans-serif", size).into_font()).color(&RGBColor(40, 40, 40));
        let centred = text(13).pos(Pos::new(HPos::Center, VPos::Center));
        let right = text(13).pos(Pos::new(HPos::Right, VPos::Center));
        area.draw_text(
            "Time as a multiple of governor's: green is faster than governor, red is slower",
            &text(18),
            (16, 10),
        )?;
        for (row, &(threads, allowed)) in panels.iter().enumerate() {
            for (column, (peer, peer_text)) in peers.iter().enumerate() {
                let (x, y) = (PANEL.0 * column as i32, 44 + PANEL.1 * row as i32);
                let verdict = if allowed { "all allowed" } else { "limits used up" };
                let thread = if threads == 1 { "one thread" } else { "two threads" };
                area.draw_text(&format!("{peer_text}: {thread}, {verdict}"), &text(14), (x + 16, y))?;
                for (i, entries) in ENTRIES.iter().enumerate() {
                    let entries = if *entries == 1 { "1 entry".to_owned() } else { entries.to_string() };
                    area.draw_text(&entries, &centred, (x + LEFT + CELL.0 * i as i32 + CELL.0 / 2, y + 30))?;
                }
                for (j, &keys) in KEYS.iter().enumerate() {
                    let top = y + 42 + CELL.1 * j as i32;
                    let label = if keys == 1 { "1 key".to_owned() } else { thousands(keys) };
                    area.draw_text(&label, &right, (x + LEFT - 8, top + CELL.1 / 2))?;
                    for (i, &entries) in ENTRIES.iter().enumerate() {
                        let left = x + LEFT + CELL.0 * i as i32;
                        let ratio =
                            surface.of(Cell { keys, entries, allowed, threads }).and_then(|cell| cell.ratio(peer));
                        let corners = [(left + 1, top + 1), (left + CELL.0 - 1, top + CELL.1 - 1)];
                        area.draw(&Rectangle::new(corners, color(ratio).filled()))?;
                        let shown = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
                        area.draw_text(&shown, &centred, (left + CELL.0 / 2, top + CELL.1 / 2))?;
                    }
                }
            }
        }
        area.present()?;
        Ok(())
    };
    draw().map_err(|error| anyhow!("cannot draw the heat map: {error}"))?;
    drop(area);
    Ok(svg)
}

/// White at 1, full green at a third, full red at three.
fn color(ratio: Option<f64>) -> RGBColor {
    let Some(ratio) = ratio else { return RGBColor(240, 240, 240) };
    let strength = (ratio.ln() / 3_f64.ln()).clamp(-1.0, 1.0);
    let (full, part) = if strength < 0.0 { ((90, 180, 120), -strength) } else { ((220, 100, 90), strength) };
    let mix = |full: u8| (255.0 - (255.0 - f64::from(full)) * part) as u8;
    RGBColor(mix(full.0), mix(full.1), mix(full.2))
}
