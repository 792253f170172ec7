//! Collects the data of a plot.

use std::collections::HashMap;
use std::iter;

use limiter_core::Policy;

use super::usage::KeyUsage;
use super::view::View;
use crate::replay::rows::RowResult;
use crate::trace::Row;

/// Collects the data that a [`View`] shows.
#[derive(Debug)]
pub(crate) struct Collector {
    pub(super) view: View,
    pub(super) usage: KeyUsage,
    /// Requests of all keys, by time bucket.
    pub(super) bars: Vec<Bucket>,
    /// Requests of each key in the view, by time bucket.
    pub(super) strips: Vec<Vec<Bucket>>,
    strip_of: HashMap<Box<[u8]>, usize>,
}

/// The numbers of requests within a time bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

impl Collector {
    pub(crate) fn new(view: View, policy: &Policy) -> anyhow::Result<Self> {
        let buckets = vec![Bucket::default(); view.buckets()];
        Ok(Self {
            usage: KeyUsage::new(view.close, policy)?,
            strips: vec![buckets.clone(); view.strips.len()],
            bars: buckets,
            strip_of: view.strips.iter().enumerate().map(|(i, (key, _))| (key.clone(), i)).collect(),
            view,
        })
    }

    /// Returns the data after the last row.
    pub(crate) fn finish(self) -> anyhow::Result<Self> {
        Ok(Self { usage: self.usage.finish()?, ..self })
    }

    /// Adds the result of a row.
    pub(crate) fn add(&mut self, row: &Row<'_>, result: &RowResult) -> anyhow::Result<()> {
        let focus = *row.key == *self.view.key;
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
