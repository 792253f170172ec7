//! The most common operations with a resolution, in a few steps.

use super::{Log, MERGED, StoredEntry};
use crate::decision::SizedFacts;
use crate::policy::bounds::MAX_COST;
use crate::policy::time::Timestamp;
use crate::store::facts::{Outcome, Usage};
use crate::store::op::Op;

impl Log {
    /// Applies an operation with one limit that drops no entry and merges only its own with the newest. Returns
    /// `None`, with the log unchanged, for all others: [`apply`](Self::apply) handles every operation.
    #[inline]
    pub(crate) fn apply_common(&mut self, op: &Op<'_>, now: Timestamp) -> Option<SizedFacts<1>> {
        let ([limit], None) = (op.policy.limits(), op.limiter_policy) else {
            return None;
        };
        let (max, oldest, newest) = (limit.max(), self.entries.front()?.at, *self.entries.back()?);
        let (time, used) = (self.clamped(op.at, now), self.cost());
        let clock = op.at.waits_from(time, now);
        let resolution = limit.resolution_micros();
        if resolution == 0 || used > max || !limit.window().counts(oldest, time) {
            return None;
        }
        let admitted = used.saturating_add(op.cost) <= max;
        if !op.appends(admitted) {
            let missing = used.saturating_add(op.cost).saturating_sub(max);
            let blocker = self.time_of_first_reaching(0, missing).unwrap_or(time);
            let (usage, outcome) = (
                [Usage {
                    used,
                    oldest,
                    blocker,
                }],
                Outcome::Nothing,
            );
            return Some(SizedFacts {
                admitted,
                outcome,
                now: time,
                clock,
                newest: Some(newest.at),
                usage,
            });
        }
        let joins = admitted
            && time.as_micros() % resolution >= time.micros_since(newest.at)
            && self.cost_of(self.len() - 1) + op.cost <= MAX_COST;
        if !joins {
            return None;
        }
        let merged = StoredEntry {
            at: time,
            total: newest.total.wrapping_add(op.cost),
            flagged: self.next | MERGED,
        };
        *self.entries.back_mut()? = merged;
        self.next = self.next.wrapping_add(1);
        self.expire_after(op, time, now);
        let oldest = self.entries.front().map_or(time, |oldest| oldest.at);
        let usage = [Usage {
            used: used + op.cost,
            oldest,
            blocker: oldest,
        }];
        let outcome = Outcome::Appended(self.entry(&merged));
        Some(SizedFacts {
            admitted,
            outcome,
            now: time,
            clock,
            newest: Some(time),
            usage,
        })
    }
}
