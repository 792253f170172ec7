//! Eviction: which logs leave a shard, and when.

use limiter_core::Timestamp;

use super::key::{Key, KeyedLog};
use super::table::Table;
use crate::log::Log;

/// Evicts the logs for which `is_over` holds, frees their memory, and returns how many there were.
pub(super) fn sweep(table: &mut Table, hash: impl Fn(&Key) -> u64, is_over: impl Fn(&Log) -> bool) -> usize {
    let over = table.logs().filter(|keyed| is_over(&keyed.log)).count();
    if over > 0 {
        let keys = table.len() - over;
        let kept = table.take_logs().filter(|keyed| !is_over(&keyed.log));
        table.refill(kept, keys, hash);
    }
    over
}

/// Makes a full table able to take one more key without exceeding `max_keys`, at least 1. Evicts expired logs. If a bounded
/// table is still more than seven eighths full, evicts the logs with the fewest entries too, the longest unused first. A flood of
/// fresh keys therefore evicts itself before it evicts a log that denies.
///
/// The table then has space for half as many keys again, so this takes amortised constant time per insert.
pub(super) fn make_space(table: &mut Table, hash: impl Fn(&Key) -> u64, now: Timestamp, max_keys: usize) {
    let goal = max_keys - max_keys.div_ceil(8);
    let alive = |keyed: &KeyedLog| !keyed.log.has_expired(now);
    let keys = table.logs().filter(|keyed| alive(keyed)).count();
    if keys <= goal {
        let keys = keys + (keys / 2 + 1).min(max_keys - keys);
        let kept = table.take_logs().filter(alive);
        return table.refill(kept, keys, hash);
    }
    let mut kept: Vec<KeyedLog> = table.take_logs().filter(alive).collect();
    let evicted = kept.len() - goal;
    if evicted < kept.len() {
        kept.select_nth_unstable_by_key(evicted, |KeyedLog { log, .. }| (log.len(), log.newest()));
    }
    table.refill(kept.drain(evicted..), max_keys, hash);
}
