//! The plots.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::table::thousands;
use crate::local::PEERS;
use crate::local::surface::{CONTESTANTS, Cell, ENTRIES, KEYS, THREADS};
use crate::record::Record;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn text(size: i32) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size).into_font()).color(&RGBColor(40, 40, 40))
}

fn at(horizontal: HPos) -> TextStyle<'static> {
    text(13).pos(Pos::new(horizontal, VPos::Center))
}

/// Draws an SVG with a title.
fn svg(title: &str, (width, height): (i32, i32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (width as u32, height as u32)).into_drawing_area();
    let drawn = || -> Drawn {
        area.fill(&WHITE)?;
        area.draw_text(title, &text(18), (16, 11))?;
        draw(&area)?;
        Ok(area.present()?)
    };
    drawn().map_err(|error| anyhow!("cannot draw {title}: {error}"))?;
    drop(area);
    Ok(svg)
}

/// Draws what each library admits in the worst window, as bars.
pub(super) fn admitted(records: &[Record]) -> Result<String> {
    const LEFT: i32 = 150;
    const LINE: i32 = 22;
    let loads = [
        ("boundary", "400 requests around the end of the first second"),
        ("steady", "four times the limit for three seconds"),
    ];
    let groups: Vec<_> = loads.iter().flat_map(|load| records.iter().map(move |record| (load, record))).collect();
    let height = 50 + LINE * (groups.len() * (PEERS.len() + 2)) as i32;
    svg("Admitted in the worst second (the limit is 100)", (860, height), |area| {
        let mut y = 50;
        for ((load, about), record) in groups {
            area.draw_text(&format!("{about} ({})", record.family()), &text(15), (16, y))?;
            y += LINE;
            for (i, library) in PEERS.iter().enumerate() {
                let admitted = record.get("admitted", library.name, load).unwrap_or_default();
                let end = LEFT + (2.5 * admitted) as i32;
                let color = if i == 0 { RGBColor(0, 92, 153) } else { RGBColor(170, 190, 205) };
                area.draw_text(library.name, &at(HPos::Right), (LEFT - 8, y + LINE / 2 - 1))?;
                area.draw(&Rectangle::new([(LEFT, y + 2), (end, y + LINE - 4)], color.filled()))?;
                area.draw_text(&admitted.to_string(), &at(HPos::Left), (end + 6, y + LINE / 2 - 1))?;
                y += LINE;
            }
            y += LINE;
        }
        Ok(())
    })
}

/// Draws this library's time as a multiple of governor's, as shipped and with this library's hasher. Green cells are faster
/// than governor, red ones slower.
pub(super) fn heat_map(record: &Record) -> Result<String> {
    const LEFT: i32 = 96;
    const CELL: (i32, i32) = (66, 30);
    const PANEL: (i32, i32) = (LEFT + CELL.0 * ENTRIES.len() as i32, 76 + CELL.1 * KEYS.len() as i32);
    let peers = [(CONTESTANTS[1].name, "governor"), (CONTESTANTS[2].name, "governor with foldhash")];
    let panels = THREADS.map(|threads| [true, false].map(|allowed| (threads, allowed))).concat();
    let size = (PANEL.0 * peers.len() as i32 + 24, PANEL.1 * panels.len() as i32 + 48);
    let title = format!("Time on {} as a multiple of governor's: green is faster, red is slower", record.family());
    svg(&title, size, |area| {
        for (row, &(threads, allowed)) in panels.iter().enumerate() {
            for (column, (peer, peer_text)) in peers.iter().enumerate() {
                let (x, y) = (PANEL.0 * column as i32, 44 + PANEL.1 * row as i32);
                let verdict = if allowed { "all allowed" } else { "limits used up" };
                let thread = if threads == 1 { "one thread" } else { "two threads" };
                area.draw_text(&format!("{peer_text}: {thread}, {verdict}"), &text(14), (x + 16, y))?;
                for (i, entries) in ENTRIES.iter().enumerate() {
                    let label = if *entries == 1 { "1 entry".to_owned() } else { entries.to_string() };
                    area.draw_text(&label, &at(HPos::Center), (x + LEFT + CELL.0 * i as i32 + CELL.0 / 2, y + 30))?;
                }
                for (j, &keys) in KEYS.iter().enumerate() {
                    let top = y + 42 + CELL.1 * j as i32;
                    let label = if keys == 1 { "1 key".to_owned() } else { thousands(keys) };
                    area.draw_text(&label, &at(HPos::Right), (x + LEFT - 8, top + CELL.1 / 2))?;
                    for (i, &entries) in ENTRIES.iter().enumerate() {
                        let left = x + LEFT + CELL.0 * i as i32;
                        let cell = Cell { keys, entries, allowed, threads };
                        let ratio = record.ratio(&cell.to_string(), "limiter", peer);
                        let corners = [(left + 1, top + 1), (left + CELL.0 - 1, top + CELL.1 - 1)];
                        area.draw(&Rectangle::new(corners, color(ratio).filled()))?;
                        let label = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
                        area.draw_text(&label, &at(HPos::Center), (left + CELL.0 / 2, top + CELL.1 / 2))?;
                    }
                }
            }
        }
        Ok(())
    })
}

/// White at 1, full green at a third, full red at three.
fn color(ratio: Option<f64>) -> RGBColor {
    let Some(ratio) = ratio else { return RGBColor(240, 240, 240) };
    let strength = (ratio.ln() / 3_f64.ln()).clamp(-1.0, 1.0);
    let (full, part) = if strength < 0.0 { ((90, 180, 120), -strength) } else { ((220, 100, 90), strength) };
    let mix = |full: u8| (255.0 - (255.0 - f64::from(full)) * part) as u8;
    RGBColor(mix(full.0), mix(full.1), mix(full.2))
}
