//! Which entries of a log may merge, if a limit has a resolution.

use smallvec::SmallVec;

use crate::limit::Limit;
use crate::time::Window;

/// The windows of an operation's limits, each with its resolution, by which an append merges entries.
///
/// See *Merging* in the contract of [`WindowStore`](crate::WindowStore).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merging(SmallVec<[(Window, u64); 4]>);

impl Merging {
    /// How long a log with named entries keeps them apart, and how long their idempotency keys and receipts are valid: ten minutes.
    pub const NAMED_FOR: Window = Window::TEN_MINUTES;

    pub(crate) fn of(limits: impl Iterator<Item = Limit>) -> Self {
        let mut windows: SmallVec<_> = limits
            .map(|limit| (limit.window(), limit.resolution_micros()))
            .collect();
        windows.sort_unstable();
        // Of equal windows, the first has the smallest resolution.
        windows.dedup_by_key(|(window, _)| *window);
        Self(windows)
    }

    /// Returns the windows, shortest first, each once, with its smallest resolution in microseconds. 0 is exact.
    #[must_use]
    pub fn windows(&self) -> &[(Window, u64)] {
        &self.0
    }

    /// Returns the ages at which an entry may merge: the windows and ten minutes, shortest first, each once.
    #[must_use]
    pub fn boundaries(&self) -> SmallVec<[Window; 5]> {
        let mut boundaries: SmallVec<_> = self.0.iter().map(|(window, _)| *window).collect();
        if let Err(i) = boundaries.binary_search(&Self::NAMED_FOR) {
            boundaries.insert(i, Self::NAMED_FOR);
        }
        boundaries
    }

    /// Returns the smallest resolution among the limits that count an entry of this age. Both are in microseconds.
    ///
    /// 0 if one of these limits is exact, if no limit counts the entry, or if the entry is younger than ten minutes and the
    /// appended one `is_marked`.
    #[must_use]
    pub fn resolution_at(&self, age: u64, is_marked: bool) -> u64 {
        if is_marked && age < Self::NAMED_FOR.as_micros() {
            return 0;
        }
        let counting = self.0.iter().filter(|(window, _)| age < window.as_micros());
        counting
            .map(|(_, resolution)| *resolution)
            .min()
            .unwrap_or(0)
    }
}
