//! A plot of a replay: one key's usage against the limit, and the denials of all keys over time.
//!
//! The plot must know its key and time span before it starts, so the trace is replayed twice. The first pass fills
//! the [`Summary`](super::summary::Summary). The second fills a [`Collector`] with the data that the [`View`] needs.
//! Memory is bounded by the size of the plot and the requests of its key within the longest window.

mod axis;
mod canvas;
mod overview;
mod usage;
mod usage_panel;
mod view;

use std::collections::HashMap;
use std::iter;

use limiter_core::Policy;
use plotters::style::Color;

use super::rows::RowResult;
use crate::trace::Row;
use canvas::Canvas;
use usage::KeyUsage;

pub(super) use view::View;

/// Draws a plot as SVG.
pub(super) fn draw(data: &Collector<'_>, policy: &Policy) -> anyhow::Result<String> {
    let mut svg = String::new();
    let strips = i32::try_from(data.strips.len()).unwrap_or(0);
    let height = (canvas::STRIPS_TOP + strips * canvas::STRIP + 20).unsigned_abs();
    let canvas = Canvas::new(&mut svg, (canvas::WIDTH, height));
    canvas.rect((0, 0), (canvas::WIDTH as i32, height as i32), plotters::style::WHITE.to_rgba())?;
    usage_panel::draw(&canvas, data, policy)?;
    overview::draw(&canvas, data)?;
    canvas.finish()?;
    Ok(svg)
}

/// Collects the data that a [`View`] shows.
#[derive(Debug)]
pub(super) struct Collector<'a> {
    view: View<'a>,
    usage: KeyUsage,
    /// Requests of all keys, by time bucket.
    bars: Vec<Bucket>,
    /// Requests of each key in the view, by time bucket.
    strips: Vec<Vec<Bucket>>,
    strip_of: HashMap<&'a [u8], usize>,
}

/// The numbers of requests within a time bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bucket {
    allowed: u64,
    denied: u64,
}

impl<'a> Collector<'a> {
    pub(super) fn new(view: View<'a>, policy: &Policy) -> anyhow::Result<Self> {
        let buckets = vec![Bucket::default(); view.buckets()];
        Ok(Self {
            usage: KeyUsage::new(view.close, policy)?,
            strips: vec![buckets.clone(); view.strips.len()],
            bars: buckets,
            strip_of: view.strips.iter().enumerate().map(|(i, (key, _))| (*key, i)).collect(),
            view,
        })
    }

    /// Returns the data after the last row.
    pub(super) fn finish(self) -> anyhow::Result<Self> {
        Ok(Self { usage: self.usage.finish()?, ..self })
    }

    /// Adds the result of a row.
    pub(super) fn add(&mut self, row: &Row<'_>, result: &RowResult) -> anyhow::Result<()> {
        let focus = row.key == self.view.key;
        match result {
            RowResult::Reset if focus => self.usage.reset(row.at.as_micros()),
            RowResult::Refused(_) | RowResult::Reset => Ok(()),
            RowResult::Decided(decision) => {
                let denied = decision.retry_after().is_some();
                let into = row.at.as_micros().saturating_sub(self.view.whole.from);
                let bucket = usize::try_from(into / self.view.bucket).unwrap_or(usize::MAX);
                let strip = self.strip_of.get(row.key).map(|&strip| &mut self.strips[strip]);
                for buckets in iter::once(&mut self.bars).chain(strip) {
                    if let Some(bucket) = buckets.get_mut(bucket) {
                        *(if denied { &mut bucket.denied } else { &mut bucket.allowed }) += 1;
                    }
                }
                if focus { self.usage.decided(row.action, row.cost, decision) } else { Ok(()) }
            }
        }
    }
}
