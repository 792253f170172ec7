//! Calls on one log.

use smallvec::SmallVec;

use super::part::Part;
use crate::store::WindowStore;
use crate::store::log_key::LogKey;
use crate::store::op::Mode;

/// Merges calls that are one operation. Returns the operations, and the place of each call's.
pub(super) fn merged<S: WindowStore>(
    calls: SmallVec<[Part<'_, S>; 2]>,
) -> (SmallVec<[Part<'_, S>; 2]>, SmallVec<[usize; 4]>) {
    let mut operations = SmallVec::<[Part<'_, S>; 2]>::with_capacity(calls.len());
    let mut places = SmallVec::<[usize; 4]>::with_capacity(calls.len());
    let firsts = firsts(&calls);
    for (i, (mut call, (first, wave))) in calls.into_iter().zip(firsts).enumerate() {
        if first == i {
            places.push(operations.len());
            call.wave = wave;
            operations.push(call);
            continue;
        }
        let cost = &mut operations[places[first]].cost;
        *cost = match call.mode {
            Mode::Peek => call.cost.max(*cost),
            Mode::Acquire | Mode::Record => call.cost.saturating_add(*cost),
        };
        places.push(places[first]);
    }
    (operations, places)
}

/// Returns for each call the first with which it is one operation, and how many other operations on its log come before that.
fn firsts<S: WindowStore>(calls: &[Part<'_, S>]) -> SmallVec<[(usize, usize); 4]> {
    let log = |i: usize| {
        let LogKey { name, key } = calls[i].op(false).log;
        (name.id(), key)
    };
    let order = |&i: &usize, &j: &usize| {
        let kinds = || calls[i].kind(i).cmp(&calls[j].kind(j));
        log(i).cmp(&log(j)).then_with(kinds)
    };
    let mut firsts: SmallVec<[_; 4]> = (0..calls.len()).map(|call| (call, 0)).collect();
    let mut by_log: SmallVec<[usize; 4]> = (0..calls.len()).collect();
    by_log.sort_by(order);
    for on_log in by_log.chunk_by(|&i, &j| log(i) == log(j)) {
        let mut operations = SmallVec::<[usize; 4]>::new();
        for alike in on_log.chunk_by(|i, j| order(i, j).is_eq()) {
            // The sort is stable.
            operations.push(alike[0]);
            alike.iter().for_each(|call| firsts[*call].0 = alike[0]);
        }
        operations.sort_unstable();
        for (wave, first) in operations.into_iter().enumerate() {
            firsts[first].1 = wave;
        }
    }
    firsts
}
