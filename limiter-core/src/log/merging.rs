//! Which entries of a log merge, if a limit has a resolution.

use smallvec::SmallVec;

use crate::policy::limit::Limit;
use crate::policy::time::{Timestamp, Window};

/// The rule by which an append merges entries. See *Merging* in the contract of [`WindowStore`](crate::WindowStore).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merging {
    /// The smallest resolution, in microseconds.
    pub resolution: u64,
    /// The longest window of the exact limits. `None` if no limit is exact.
    pub exact: Option<Window>,
    /// The windows that are longer than `exact`, shortest first, each once. Their limits have a resolution.
    ///
    /// Shorter windows count neither of two entries that may merge.
    pub windows: SmallVec<[Window; 4]>,
}

impl Merging {
    /// `None` if an exact limit sees every entry.
    pub(crate) fn of(limits: impl Iterator<Item = Limit> + Clone) -> Option<Self> {
        let resolutions = limits.clone().map(|limit| limit.resolution_micros());
        let resolution = resolutions.filter(|resolution| *resolution > 0).min()?;
        let is_exact = |limit: &Limit| limit.resolution_micros() == 0;
        let exact = limits
            .clone()
            .filter(is_exact)
            .map(|limit| limit.window())
            .max();
        let longer = limits.map(|limit| limit.window());
        let mut windows: SmallVec<_> = longer.filter(|window| Some(*window) > exact).collect();
        windows.sort_unstable();
        windows.dedup();
        (!windows.is_empty()).then_some(Self {
            resolution,
            exact,
            windows,
        })
    }

    /// Returns `true` if an entry at `newer` merges with the entry before it, at `older`, once an append at `now` makes it due: both are
    /// in one cell, and each limit counts both or neither.
    #[must_use]
    pub fn joins(&self, older: Timestamp, newer: Timestamp, now: Timestamp) -> bool {
        newer.as_micros() % self.resolution >= newer.micros_since(older)
            && self
                .windows
                .iter()
                .all(|window| window.counts(older, now) == window.counts(newer, now))
    }
}
