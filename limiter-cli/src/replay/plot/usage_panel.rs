//! Draws the usage of one key against its limits.

use limiter_core::{Policy, Timestamp};
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, RGBColor};

use super::Collector;
use super::axis::round_numbers;
use super::canvas::{Canvas, DENIED, INK, LEFT, Point, QUIET, RIGHT, USAGE, USED, height};
use super::usage::Column;
use super::view::View;
use crate::text;

/// The line colours for several limits.
const LINES: [RGBColor; 8] = [
    USED,
    RGBColor(217, 130, 43),
    RGBColor(38, 140, 102),
    RGBColor(124, 84, 168),
    RGBColor(140, 110, 70),
    RGBColor(70, 160, 180),
    RGBColor(190, 90, 140),
    RGBColor(110, 120, 50),
];

/// Demand above this multiple of the limit is cut off.
const MAX_SHOWN: f64 = 4.0;

pub(super) fn draw(canvas: &Canvas<'_>, data: &Collector<'_>, policy: &Policy) -> anyhow::Result<()> {
    let (view, usage) = (&data.view, &data.usage);
    let peak = |columns: &[Column]| columns.iter().fold(0.0, |peak, column| f64::max(peak, column.high));
    let used = usage.used().iter().map(|columns| peak(columns)).fold(0.0, f64::max);
    let asked = peak(usage.requested()).max(used);
    // If the limit is far out of reach, as for a meter, the usage alone sets the scale.
    let limit_shown = asked > 0.1;
    let top = if limit_shown { (asked * 1.08).clamp(1.25, MAX_SHOWN) } else { (asked * 1.25).max(1e-15) };

    title(canvas, view, policy, asked)?;
    let mut x = LEFT;
    for run in usage.blocked.chunk_by(|a, b| a == b) {
        let from = x;
        x += run.len() as i32;
        if run[0] {
            canvas.rect((from, USAGE.0), (x, USAGE.1), DENIED.mix(0.07))?;
        }
    }
    canvas.time_axis(view.close, view.relative, USAGE)?;
    scale(canvas, policy, top)?;
    if view.summary.denied > 0 {
        canvas.area(outline(usage.requested(), top), DENIED.mix(0.25))?;
    }
    for (i, columns) in usage.used().iter().enumerate() {
        if usage.used().len() == 1 {
            canvas.area(outline(columns, top), RGBColor(165, 195, 228).to_rgba())?;
        }
        canvas.line(curve(columns, top), LINES[i % LINES.len()], 2)?;
    }
    if limit_shown {
        let y = height(USAGE, 1.0 / top);
        canvas.dashes((LEFT, y), RIGHT)?;
        if let [limit] = policy.limits() {
            canvas.text(&text::grouped(limit.max()), (RIGHT + 8, y), 14, INK, HPos::Left)?;
        }
    }
    for (x, _) in (LEFT..).zip(&usage.denied).filter(|(_, denied)| **denied) {
        canvas.line(vec![(x, USAGE.0), (x, USAGE.0 + 10)], DENIED, 1)?;
    }
    legend(canvas, view, policy, limit_shown)
}

fn title(canvas: &Canvas<'_>, view: &View<'_>, policy: &Policy, asked: f64) -> anyhow::Result<()> {
    let (key, count) = (text::key(view.key, 40), view.count);
    let title = if count.denied > 0 {
        let (denied, rows) = (text::grouped(count.denied), text::requests(count.rows));
        format!("{key} is over the limit {policy}: {denied} of {rows} denied")
    } else {
        let peak = 100.0 * count.peak.0;
        format!("{key} stays within {policy}: at most {peak:.0} % used, {}", text::requests(count.rows))
    };
    // A policy of eight limits makes a long title.
    let size = if title.chars().count() > 95 { 14 } else { 20 };
    canvas.text(&title, (LEFT, 30), size, INK, HPos::Left)?;
    let (from, to) = (view.close.from, view.close.to);
    let [from, to] = [from, to].map(Timestamp::from_micros_saturating);
    let date = |at| text::clock(at, "%-d %b %Y", false);
    let mut when = if view.relative || date(from) != date(to) {
        format!("{} to {}", text::date_time(from, view.relative), text::date_time(to, view.relative))
    } else {
        let clock = |at| text::clock(at, "%H:%M:%S", false);
        format!("{}, {} to {} UTC", date(from), clock(from), clock(to))
    };
    if view.is_close_up() {
        let what = match count.denied {
            0 => "around its peak",
            _ if view.ends_early() => "the beginning of its longest run of denials",
            _ => "its longest run of denials",
        };
        when = format!("{what}: {when}");
    }
    if asked > MAX_SHOWN {
        when = format!("{when}; demand up to {asked:.0} times the limit");
    }
    canvas.text(&when, (LEFT, 56), 13, QUIET, HPos::Left)
}

/// Returns units for one limit, shares for several.
fn scale(canvas: &Canvas<'_>, policy: &Policy, top: f64) -> anyhow::Result<()> {
    if let [limit] = policy.limits() {
        let units = top * limit.max() as f64;
        canvas.number_axis(USAGE, units, &round_numbers(units, 6), |number| text::grouped(number as u64))
    } else {
        let percent = top * 100.0;
        canvas.number_axis(USAGE, percent, &round_numbers(percent, 6), |number| format!("{number} %"))
    }
}

fn legend(canvas: &Canvas<'_>, view: &View<'_>, policy: &Policy, limit_shown: bool) -> anyhow::Result<()> {
    const Y: i32 = 86;
    let mut x = LEFT;
    let label = |x: &mut i32, text: &str| {
        canvas.text(text, (*x + 28, Y), 12, INK, HPos::Left)?;
        *x += 28 + text.chars().count() as i32 * 13 / 2 + 22;
        anyhow::Ok(())
    };
    let one = policy.limits().len() == 1;
    for (i, limit) in policy.limits().iter().enumerate() {
        if one {
            canvas.rect((x, Y - 4), (x + 22, Y + 5), RGBColor(165, 195, 228).to_rgba())?;
        }
        let y = if one { Y - 4 } else { Y };
        canvas.line(vec![(x, y), (x + 22, y)], LINES[i % LINES.len()], 2)?;
        let text = if one { format!("used within {}", limit.window()) } else { format!("used of {limit}") };
        label(&mut x, &text)?;
    }
    let limit = if one { format!("limit {policy}") } else { "limit".to_owned() };
    if limit_shown {
        canvas.dashes((x, Y), x + 23)?;
        label(&mut x, &limit)?;
    } else {
        label(&mut x, &format!("{limit} is far above"))?;
    }
    if view.summary.denied > 0 {
        canvas.rect((x, Y - 4), (x + 22, Y + 5), DENIED.mix(0.3))?;
        label(&mut x, "demand beyond that")?;
        for dx in [4, 9, 11, 18] {
            canvas.line(vec![(x + dx, Y - 5), (x + dx, Y + 5)], DENIED, 1)?;
        }
        label(&mut x, "denied requests")?;
        canvas.rect((x, Y - 6), (x + 22, Y + 7), DENIED.mix(0.09))?;
        label(&mut x, "until a retry fits")?;
    }
    Ok(())
}

/// Returns the outline of the area under a curve.
fn outline(columns: &[Column], top: f64) -> Vec<Point> {
    let steps = (LEFT..).zip(columns).flat_map(|(x, column)| {
        let y = height(USAGE, column.high / top);
        [(x, y), (x + 1, y)]
    });
    [(LEFT, USAGE.1)].into_iter().chain(steps).chain([(RIGHT, USAGE.1)]).collect()
}

/// Returns a curve through the minimum and maximum of every column.
fn curve(columns: &[Column], top: f64) -> Vec<Point> {
    let through = (LEFT..).zip(columns).flat_map(|(x, column)| {
        let stops = [column.first, column.low, column.high, column.last];
        stops.map(|share| (x, height(USAGE, share / top)))
    });
    through.collect()
}
