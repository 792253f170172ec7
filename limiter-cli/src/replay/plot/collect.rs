//! What is drawn.

use std::collections::HashMap;

use limiter_core::Policy;

use super::usage::{KeyUsage, UsageCollector};
use super::view::View;
use crate::replay::outcome::{Observer, Outcome};
use crate::trace::Row;

/// Collects what a [`View`] shows.
#[derive(Debug)]
pub struct Collector {
    view: View,
    key_usage: UsageCollector,
    bars: Vec<Bucket>,
    strips: Vec<Vec<Bucket>>,
    strip_of: HashMap<Box<[u8]>, usize>,
}

/// Everything in a picture.
#[derive(Debug)]
pub struct Picture {
    pub(super) view: View,
    pub(super) usage: KeyUsage,
    /// All keys, by buckets of time.
    pub(super) bars: Vec<Bucket>,
    /// The view's keys, by buckets of time.
    pub(super) strips: Vec<Vec<Bucket>>,
}

/// How many requests within a bucket of time.
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
    /// Nothing collected yet.
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

    /// What was collected.
    #[must_use]
    pub fn finish(self) -> Picture {
        Picture { view: self.view, usage: self.key_usage.finish(), bars: self.bars, strips: self.strips }
    }
}

impl Observer for Collector {
    fn row(&mut self, row: &Row<'_>, outcome: &Outcome) -> anyhow::Result<()> {
        let focus = *row.key == *self.view.key;
        match outcome {
            Outcome::Refused(_) => {}
            Outcome::Reset if focus => self.key_usage.reset(row.at.as_micros()),
            Outcome::Reset => {}
            Outcome::Decided(decision) => {
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
