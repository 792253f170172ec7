//! The plot of a replay: one key's usage against the limit, all keys' denials over time, and the keys that were denied most or
//! came closest.

mod collector;
mod usage;
mod view;

use std::ops::Range;

use limiter_core::{Policy, Timestamp};
use plotters::coord::Shift;
use plotters::coord::combinators::WithKeyPoints;
use plotters::coord::types::{RangedCoordf64, RangedCoordu64};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::text;
use usage::KeyUsage;
use view::{COLUMNS, column_start, ticks};

pub(super) use collector::Collector;
pub(super) use view::View;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a> =
    ChartContext<'a, SVGBackend<'a>, Cartesian2d<WithKeyPoints<RangedCoordu64>, RangedCoordf64>>;

/// Text stays readable where a page shows the plot with a width of 800 pixels.
const WIDTH: u32 = 1000;
const USAGE_HEIGHT: u32 = 360;
const BARS_HEIGHT: u32 = 200;
/// The height of the frame of the lowest panel, and of each key in it.
const KEYS_HEIGHT: (u32, u32) = (100, 24);
const LABELS_WIDTH: u32 = 230;
const FONT: (&str, i32) = ("sans-serif", 15);

const DENIED: RGBColor = RGBColor(206, 45, 45);
const ALLOWED: RGBColor = RGBColor(107, 150, 201);
const DEMAND: RGBColor = RGBColor(243, 202, 202);
const GRID: RGBColor = RGBColor(228, 231, 235);

/// Demand above this multiple of the limit is cut off.
const MAX_SHOWN: f64 = 4.0;

/// The maximum length of a key in the lowest panel.
const MAX_KEY_CHARS: usize = 19;

/// Draws a plot as SVG.
pub(super) fn draw(data: &Collector<'_>, policy: &Policy) -> anyhow::Result<String> {
    let mut svg = String::new();
    let height =
        USAGE_HEIGHT + BARS_HEIGHT + KEYS_HEIGHT.0 + KEYS_HEIGHT.1 * data.view.top.len() as u32;
    let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let title = title(&data.view, policy);
    // A policy of eight limits makes a long title.
    let size = if title.chars().count() > 95 { 12 } else { 22 };
    let (usage, rest) = root
        .titled(&title, ("sans-serif", size))?
        .split_vertically(USAGE_HEIGHT);
    let (bars, keys) = rest.split_vertically(BARS_HEIGHT);
    draw_usage(&usage, &data.view, &data.usage, policy)?;
    draw_bars(&bars, data)?;
    draw_keys(&keys, data)?;
    root.present()?;
    drop((root, usage, rest, bars, keys));
    Ok(svg)
}

fn title(view: &View<'_>, policy: &Policy) -> String {
    let key = text::key(view.key, 40);
    let requests = text::requests(view.count.rows);
    match view.count.denied {
        0 => format!(
            "{key} stays within {policy}: at most {} used, {requests}",
            percent(view.count.peak.0)
        ),
        denied => format!(
            "{key} exceeds {policy}: {} of {requests} denied",
            text::grouped(denied)
        ),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Draws the usage of the plot's key against its limits.
fn draw_usage(
    area: &Area<'_>,
    view: &View<'_>,
    usage: &KeyUsage,
    policy: &Policy,
) -> anyhow::Result<()> {
    let [from, to] = [view.close.start, view.close.end].map(Timestamp::from_micros_saturating);
    let [from, to] = [from, to].map(|at| text::date_time(at, view.relative));
    let part = match (view.is_close_up, view.count.denied) {
        (false, _) => "",
        (true, 0) => "around its peak: ",
        (true, _) => "longest run of denials: ",
    };
    let peak = |shares: &[f64]| shares.iter().copied().fold(0.0, f64::max);
    let used = usage
        .used()
        .iter()
        .map(|shares| peak(shares))
        .fold(0.0, f64::max);
    let demand = peak(usage.requested()).max(used);
    let top = (demand * 1.08).clamp(1.25, MAX_SHOWN);
    let caption = format!("{part}{from} to {to}");
    let mut chart = panel(
        area,
        &caption,
        &view.close,
        view.relative,
        0.0..100.0 * top,
        &|share| format!("{share:.0} %"),
    )?;
    let line = |shares: &[f64]| steps(&view.close, shares, top);
    let black = BLACK.to_rgba();
    // Draws a label next to some columns: to the right in the left half, otherwise to the left.
    let label =
        |text: String, (first, last): (usize, usize), height: f64, down: i32, color: RGBAColor| {
            let (column, into, x) = if last < COLUMNS / 2 {
                (last, 6, HPos::Left)
            } else {
                (first, -6, HPos::Right)
            };
            let y = if down < 0 { VPos::Bottom } else { VPos::Top };
            let text = Text::new(
                text,
                (into, down),
                FONT.into_font().color(&color).pos(Pos::new(x, y)),
            );
            [EmptyElement::at((column_start(&view.close, column), 100.0 * height)) + text]
        };
    // An area's label stands where the area is highest.
    let area_label = |text: String, shares: &[f64]| {
        let height = peak(shares).min(top);
        let column = shares
            .iter()
            .position(|share| *share >= height)
            .unwrap_or(0);
        label(
            text,
            (column, column),
            height,
            if height < 0.3 * top { -4 } else { 4 },
            black,
        )
    };

    if view.count.denied > 0 {
        chart.draw_series(AreaSeries::new(line(usage.requested()), 0.0, DEMAND))?;
        let text = format!("demand, up to {} of the limit", percent(demand));
        chart.draw_series(area_label(text, usage.requested()))?;
    }
    for (i, (shares, limit)) in usage.used().iter().zip(policy.limits()).enumerate() {
        // The first colours of the palette are red, green, yellow and blue.
        let color = if i == 0 {
            ALLOWED.to_rgba()
        } else {
            Palette99::pick(i + 3).to_rgba()
        };
        let is_only = policy.limits().len() == 1;
        let text = format!("used of {limit}");
        let fill = if is_only { color } else { TRANSPARENT };
        chart.draw_series(
            AreaSeries::new(line(shares), 0.0, fill).border_style(color.stroke_width(2)),
        )?;
        let label = if is_only {
            area_label(text, shares)
        } else {
            label(text, (0, 0), 1.0, 4 + 16 * i as i32, color)
        };
        chart.draw_series(label)?;
    }
    let limit = PathElement::new(
        [view.close.start, view.close.end].map(|at| (at, 100.0)),
        BLACK.stroke_width(2),
    );
    chart.draw_series([limit])?;
    chart.draw_series(label("limit".to_owned(), (0, 0), 1.0, -3, black))?;
    let denied: Vec<usize> = (0..COLUMNS)
        .filter(|column| usage.denied[*column])
        .collect();
    if let (Some(first), Some(last)) = (denied.first(), denied.last()) {
        chart.draw_series(label(
            "denied requests".to_owned(),
            (*first, *last),
            top,
            0,
            DENIED.to_rgba(),
        ))?;
    }
    chart.draw_series(denied.into_iter().map(|column| {
        let at = column_start(&view.close, column);
        PathElement::new(
            [(at, 95.0 * top), (at, 100.0 * top)],
            DENIED.stroke_width(2),
        )
    }))?;
    Ok(())
}

/// Draws the requests of all keys over the whole trace.
fn draw_bars(area: &Area<'_>, data: &Collector<'_>) -> anyhow::Result<()> {
    let (view, summary) = (&data.view, data.view.summary);
    let allowed = text::requests(summary.allowed + summary.recorded);
    let denied = text::grouped(summary.denied);
    let caption = format!(
        "All keys, per {}: {allowed} allowed, {denied} denied",
        text::duration(view.bucket)
    );
    let top = data
        .all
        .iter()
        .map(|count| count.allowed + count.denied)
        .max()
        .unwrap_or(0)
        .max(1) as f64
        * 1.08;
    let label = |requests: &f64| text::grouped(*requests as u64);
    let mut chart = panel(area, &caption, &view.whole, view.relative, 0.0..top, &label)?;
    if view.is_close_up {
        // A short span is still visible.
        let margin = (view.whole.end - view.whole.start) / 400;
        let from = view
            .close
            .start
            .saturating_sub(margin)
            .max(view.whole.start);
        let to = view.close.end.saturating_add(margin).min(view.whole.end);
        chart.draw_series([Rectangle::new(
            [(from, 0.0), (to, top)],
            BLACK.mix(0.14).filled(),
        )])?;
    }
    let bars = data
        .all
        .iter()
        .enumerate()
        .map(|(i, count)| (view.bar(i), count));
    chart.draw_series(bars.flat_map(|((from, to), count)| {
        let allowed = count.allowed as f64;
        // A few denials among many requests are still visible.
        let all =
            allowed + (count.denied as f64).max(if count.denied > 0 { top / 50.0 } else { 0.0 });
        let bar = |from, to, color: RGBColor| Rectangle::new([from, to], color.filled());
        [
            bar((from, allowed), (to, all), DENIED),
            bar((from, 0.0), (to, allowed), ALLOWED),
        ]
    }))?;
    Ok(())
}

/// Draws a line for each of the keys that were denied most or came closest.
fn draw_keys(area: &Area<'_>, data: &Collector<'_>) -> anyhow::Result<()> {
    let view = &data.view;
    let [over, all] =
        [view.summary.keys_denied(), view.summary.keys.len()].map(|n| text::grouped(n as u64));
    let caption = format!(
        "Keys denied: {over} of {all}. Most denied first, then closest to the limit (red: some denied)"
    );
    let rows = view.top.len();
    let middle = |row: usize| (rows - row) as f64;
    let label = |y: &f64| {
        let (key, count) = view.top[rows.saturating_sub(*y as usize)];
        let result = if count.denied > 0 {
            format!("{} denied", text::grouped(count.denied))
        } else {
            percent(count.peak.0)
        };
        format!("{}: {result}", text::key(key, MAX_KEY_CHARS))
    };
    let mut chart = panel(
        area,
        &caption,
        &view.whole,
        view.relative,
        0.5..rows as f64 + 0.5,
        &label,
    )?;
    for (row, counts) in data.top.iter().enumerate() {
        let bars = counts
            .iter()
            .enumerate()
            .filter(|(_, count)| count.allowed + count.denied > 0);
        chart.draw_series(bars.map(|(i, count)| {
            let (from, to) = view.bar(i);
            let color = if count.denied > 0 { DENIED } else { ALLOWED };
            Rectangle::new(
                [(from, middle(row) - 0.4), (to, middle(row) + 0.4)],
                color.filled(),
            )
        }))?;
    }
    Ok(())
}

/// Draws the axes of a panel, with time from left to right.
fn panel<'a>(
    area: &Area<'a>,
    caption: &str,
    time: &Range<u64>,
    relative: bool,
    y: Range<f64>,
    label: &dyn Fn(&f64) -> String,
) -> anyhow::Result<Chart<'a>> {
    const MAX_LABELS: usize = 9;
    let ticks = ticks(time, relative);
    // Only whole numbers have labels.
    let labels = (y.end as usize).saturating_add(1).min(MAX_LABELS);
    let of_tick = |at: &u64| {
        ticks
            .iter()
            .find(|tick| tick.0 == *at)
            .map_or_else(String::new, |tick| tick.1.clone())
    };
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 16))
        .margin(8)
        .margin_right(40)
        .x_label_area_size(24)
        .y_label_area_size(LABELS_WIDTH)
        .build_cartesian_2d(
            time.clone()
                .with_key_points(ticks.iter().map(|tick| tick.0).collect()),
            y,
        )?;
    let mut mesh = chart.configure_mesh();
    mesh.bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .y_labels(labels)
        .label_style(FONT);
    mesh.x_label_formatter(&of_tick)
        .y_label_formatter(label)
        .draw()?;
    Ok(chart)
}

/// Returns the line through the shares of all columns, in percent, with a step where they change.
fn steps(time: &Range<u64>, shares: &[f64], top: f64) -> Vec<(u64, f64)> {
    let mut column = 0;
    let runs = shares.chunk_by(|a, b| a == b).flat_map(|run| {
        let [from, to] = [column, column + run.len()];
        column = to;
        [from, to].map(|column| (column_start(time, column), 100.0 * run[0].min(top)))
    });
    runs.collect()
}
