//! Collects the data of a plot.
//!
//! The plot must know its keys and time spans before it starts, so the trace is replayed twice. The first pass fills
//! the [`Summary`](crate::replay::summary::Summary). The second fills a [`Collector`] with the data that the [`View`]
//! needs. Memory is bounded by the size of the plot and the requests of its key within the longest window.

use limiter_core::Policy;

use super::usage::KeyUsage;
use super::view::View;
use crate::pass::RowResult;
use crate::trace::Row;

/// Collects the data that a [`View`] shows.
#[derive(Debug)]
pub(crate) struct Collector<'a> {
    pub(super) view: View<'a>,
    pub(super) usage: KeyUsage,
    /// The requests of all keys, by bucket.
    pub(super) all: Vec<Bucket>,
    /// The requests of each of the view's top keys, by bucket.
    pub(super) top: Vec<Vec<Bucket>>,
}

/// The numbers of requests within a bucket of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

impl<'a> Collector<'a> {
    pub(crate) fn new(view: View<'a>, policy: &Policy) -> anyhow::Result<Self> {
        let buckets = usize::try_from((view.whole.end - view.whole.start) / view.bucket)?;
        let all = vec![Bucket::default(); buckets];
        let usage = KeyUsage::new(view.close.clone(), policy)?;
        Ok(Self {
            usage,
            top: vec![all.clone(); view.top.len()],
            all,
            view,
        })
    }

    /// Returns the data after the last row.
    pub(crate) fn finish(mut self) -> anyhow::Result<Self> {
        self.usage.advance(self.view.close.end)?;
        Ok(self)
    }

    /// Adds the result of a row.
    pub(crate) fn add(&mut self, row: &Row<'_>, result: &RowResult) -> anyhow::Result<()> {
        let is_plotted = row.key == self.view.key;
        let decision = match result {
            RowResult::Decided(decision) => decision,
            RowResult::Reset if is_plotted => return self.usage.reset(row.at.as_micros()),
            RowResult::Refused(_) | RowResult::Reset => return Ok(()),
        };
        let into = row.at.as_micros().saturating_sub(self.view.whole.start);
        let bucket = usize::try_from(into / self.view.bucket).unwrap_or(usize::MAX);
        let top = self
            .view
            .top
            .iter()
            .position(|(key, _)| *key == row.key)
            .map(|i| &mut self.top[i]);
        for buckets in [Some(&mut self.all), top].into_iter().flatten() {
            if let Some(bucket) = buckets.get_mut(bucket) {
                *(if decision.retry_after().is_some() {
                    &mut bucket.denied
                } else {
                    &mut bucket.allowed
                }) += 1;
            }
        }
        if is_plotted {
            self.usage.decided(row.action, row.cost, decision)
        } else {
            Ok(())
        }
    }
}
