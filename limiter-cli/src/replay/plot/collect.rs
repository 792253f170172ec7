//! Collects the data of a plot.

use std::collections::HashMap;

use limiter_core::Policy;

use super::usage::{KeyUsage, UsageCollector};
use super::view::View;
use crate::replay::row_result::{Observer, RowResult};
use crate::trace::Row;

/// Collects the data that a [`View`] shows.
#[derive(Debug)]
pub struct Collector {
    view: View,
    key_usage: UsageCollector,
    bars: Vec<Bucket>,
    strips: Vec<Vec<Bucket>>,
    strip_of: HashMap<Box<[u8]>, usize>,
}

/// The data of a plot.
#[derive(Debug)]
pub struct PlotData {
    pub(super) view: View,
    pub(super) usage: KeyUsage,
    /// Requests of all keys, by time bucket.
    pub(super) bars: Vec<Bucket>,
    /// Requests of each key in the view, by time bucket.
    pub(super) strips: Vec<Vec<Bucket>>,
}

/// The numbers of requests within a time bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

impl Bucket {
    fn count(&mut self, denied: bool) {
        if denied {
            self.denied += 1;
        } else {
            self.allowed += 1;
        }
    }
}

impl Collector {
    /// Returns an empty collector.
    #[must_use]
    pub fn new(view: View, policy: &Policy) -> Self {
        let buckets = vec![Bucket::default(); view.buckets()];
        Self {
            key_usage: UsageCollector::new(view.close, policy),
            strips: vec![buckets.clone(); view.strips.len()],
            bars: buckets,
            strip_of: view.strips.iter().enumerate().map(|(i, (key, _))| (key.clone(), i)).collect(),
            view,
        }
    }

    /// Returns the collected data.
    #[must_use]
    pub fn finish(self) -> PlotData {
        PlotData { view: self.view, usage: self.key_usage.finish(), bars: self.bars, strips: self.strips }
    }
}

impl Observer for Collector {
    fn row(&mut self, row: &Row<'_>, result: &RowResult) -> anyhow::Result<()> {
        let focus = *row.key == *self.view.key;
        match result {
            RowResult::Refused(_) => {}
            RowResult::Reset if focus => self.key_usage.reset(row.at.as_micros()),
            RowResult::Reset => {}
            RowResult::Decided(decision) => {
                let denied = decision.retry_after().is_some();
                let into = row.at.as_micros().saturating_sub(self.view.whole.from);
                let bucket = usize::try_from(into / self.view.bucket).unwrap_or(usize::MAX);
                if let Some(bar) = self.bars.get_mut(bucket) {
                    bar.count(denied);
                }
                let strip = self.strip_of.get(row.key).and_then(|&strip| self.strips[strip].get_mut(bucket));
                if let Some(strip) = strip {
                    strip.count(denied);
                }
                if focus {
                    self.key_usage.decided(row.action, row.cost, decision);
                }
            }
        }
        Ok(())
    }
}
