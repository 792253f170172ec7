//! Draws all keys over the whole trace, and a strip for each of the keys with the most denials.

use plotters::style::text_anchor::HPos;
use plotters::style::{Color, RGBColor};

use super::Collector;
use super::axis::{COLUMNS, round_numbers};
use super::canvas::{BARS, Canvas, DENIED, GRID, INK, LEFT, QUIET, RIGHT, STRIP, STRIPS_TOP, USAGE, USED, height};
use super::view::View;
use crate::text;

/// The maximum length of a key beside a strip.
const MAX_KEY_CHARS: usize = 21;

pub(super) fn draw(canvas: &Canvas<'_>, data: &Collector<'_>) -> anyhow::Result<()> {
    let view = &data.view;
    if view.is_close_up() {
        mark_close_up(canvas, view)?;
    }
    bars(canvas, data)?;
    strips(canvas, data)
}

/// Marks the part of the trace that the panel above shows.
fn mark_close_up(canvas: &Canvas<'_>, view: &View<'_>) -> anyhow::Result<()> {
    let (from, to) = (x(view, view.close.from), x(view, view.close.to));
    let (from, to) = if to - from < 6 { (from - 3, from + 3) } else { (from, to) };
    let funnel = vec![(LEFT, USAGE.1 + 26), (RIGHT, USAGE.1 + 26), (to, BARS.0 - 4), (from, BARS.0 - 4)];
    canvas.area(funnel, INK.mix(0.05))?;
    canvas.rect((from, BARS.0 - 4), (to, BARS.1), INK.mix(0.14))
}

fn bars(canvas: &Canvas<'_>, data: &Collector<'_>) -> anyhow::Result<()> {
    let view = &data.view;
    let highest = data.bars.iter().map(|bar| bar.allowed + bar.denied).max().unwrap_or(0).max(1);
    let top = highest as f64 * 1.08;
    canvas.time_axis(view.whole, view.relative, BARS)?;
    canvas.number_axis(BARS, top, &round_numbers(top, 4), |number| text::grouped(number as u64))?;
    for (i, bar) in data.bars.iter().enumerate() {
        let (from, to) = cell(view, i);
        let share = |count: u64| height(BARS, count as f64 / top);
        let (allowed, all) = (share(bar.allowed), share(bar.allowed + bar.denied));
        if bar.allowed > 0 {
            canvas.rect((from, allowed.min(BARS.1 - 1)), (to, BARS.1), USED.mix(0.75))?;
        }
        if bar.denied > 0 {
            // A few denials among many requests still get one pixel.
            canvas.rect((from, all.min(allowed - 2)), (to, allowed), DENIED.to_rgba())?;
        }
    }
    let keys = match view.summary.keys.len() {
        1 => "The one key".to_owned(),
        n => format!("All {} keys", text::grouped(n as u64)),
    };
    let allowed = text::requests(view.summary.allowed + view.summary.recorded);
    let counts = format!("{allowed} allowed, {} denied", text::grouped(view.summary.denied));
    canvas.heading(&format!("{keys}: {counts}"), &format!("per {}", text::duration(view.bucket)), BARS.0 - 18)
}

fn strips(canvas: &Canvas<'_>, data: &Collector<'_>) -> anyhow::Result<()> {
    let view = &data.view;
    let most = data.strips.iter().flatten().map(|bucket| bucket.denied).max().unwrap_or(0).max(1);
    let title = match view.summary.keys_denied() {
        0 => "No key is over the limit: the busiest keys".to_owned(),
        1 => "1 key is over the limit".to_owned(),
        n if n <= view.strips.len() => format!("{n} keys are over the limit"),
        n => format!("{} keys are over the limit: those denied most", text::grouped(n as u64)),
    };
    canvas.heading(&title, "requests: pale if all were allowed, darker red for more denials", STRIPS_TOP - 18)?;
    for (i, ((key, count), buckets)) in view.strips.iter().zip(&data.strips).enumerate() {
        let top = STRIPS_TOP + i as i32 * STRIP;
        let middle = top + STRIP / 2 - 2;
        canvas.rect((LEFT, top), (RIGHT, top + STRIP - 4), GRID.mix(0.45))?;
        let color = if *key == view.key { INK } else { QUIET };
        canvas.text(&text::key(key, MAX_KEY_CHARS), (LEFT - 8, middle), 12, color, HPos::Right)?;
        let (shown, color) = if count.denied > 0 { (count.denied, DENIED) } else { (count.rows, QUIET) };
        canvas.text(&text::grouped(shown), (RIGHT + 8, middle), 12, color, HPos::Left)?;
        for (i, bucket) in buckets.iter().enumerate().filter(|(_, bucket)| bucket.allowed + bucket.denied > 0) {
            let (from, to) = cell(view, i);
            let color = if bucket.denied == 0 { PALE } else { red(bucket.denied as f64 / most as f64) };
            canvas.rect((from, top), (to, top + STRIP - 4), color.to_rgba())?;
        }
    }
    Ok(())
}

const PALE: RGBColor = RGBColor(178, 202, 228);

/// Returns a colour from light to dark red.
fn red(share: f64) -> RGBColor {
    let mix = |light: u8, dark: u8| (f64::from(light) + (f64::from(dark) - f64::from(light)) * share.sqrt()) as u8;
    RGBColor(mix(250, 150), mix(176, 12), mix(160, 20))
}

fn x(view: &View<'_>, at: u64) -> i32 {
    LEFT + view.whole.scale(at, COLUMNS) as i32
}

/// Returns the left and right edges of a bucket, with a gap of one pixel.
fn cell(view: &View<'_>, bucket: usize) -> (i32, i32) {
    let from = view.whole.from + bucket as u64 * view.bucket;
    let (left, right) = (x(view, from), x(view, from.saturating_add(view.bucket)));
    (left, (right - 1).max(left + 1))
}
