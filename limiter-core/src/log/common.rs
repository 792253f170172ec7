//! The most common operations under a resolution, in a few steps.

use super::{Log, MERGED, StoredEntry};
use crate::decision::SizedFacts;
use crate::facts::{Outcome, Usage};
use crate::merging::Merging;
use crate::op::Op;
use crate::time::Timestamp;

impl Log {
    /// Applies an operation under one limit that drops nothing, and merges no entry but its own, with the newest one. Returns
    /// `None`, and changes nothing, if the operation may be another: [`apply`](Self::apply) handles all.
    #[inline]
    pub(crate) fn apply_common(&mut self, op: &Op<'_>, now: Timestamp) -> Option<SizedFacts<1>> {
        let ([limit], None) = (op.policy.limits(), op.limiter_policy) else { return None };
        let (resolution, max) = (limit.resolution_micros(), limit.max());
        let (oldest, newest) = (self.entries.front()?.at, *self.entries.back()?);
        let (time, used) = (self.clamped(op.at, now), self.cost_from(0));
        if resolution == 0 || op.is_kept() || used > max || !limit.window().counts(oldest, time) {
            return None;
        }
        let admitted = used + op.cost <= max;
        if !op.appends(admitted) {
            let blocker = self.time_of_first_reaching(0, (used + op.cost).saturating_sub(max)).unwrap_or(time);
            let usage = [Usage { used, oldest, blocker }];
            let outcome = Outcome::Nothing;
            return Some(SizedFacts { admitted, outcome, now: time, newest: Some(newest.at), usage });
        }
        if !admitted || newest.is_marked_kept() || !self.passed(Merging::KEPT, newest.at, time).is_empty() {
            return None;
        }
        let appended = self.append(time, op.cost, 0);
        if time.as_micros() % resolution >= time.micros_since(newest.at) {
            self.entries.pop_back();
            let merged = StoredEntry { marked: appended.number() | MERGED, ..appended };
            self.entries.back_mut().into_iter().for_each(|newest| *newest = merged);
        }
        self.expire_after(op, time, now);
        let oldest = self.entries.front().map_or(time, |oldest| oldest.at);
        let usage = [Usage { used: used + op.cost, oldest, blocker: oldest }];
        let outcome = Outcome::Appended(self.entry(&appended));
        Some(SizedFacts { admitted, outcome, now: time, newest: Some(time), usage })
    }
}
