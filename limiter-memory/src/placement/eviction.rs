//! Eviction: which logs leave a shard, and when.

use limiter_core::Timestamp;

use super::key::{Key, KeyedLog};
use super::table::Table;
use crate::log::Log;

/// How many logs are compared to find one to evict.
const SAMPLE: usize = 8;

/// Evicts the logs for which `is_over` holds, frees their memory, and returns how many there were.
pub(super) fn sweep(table: &mut Table, rehash: impl Fn(&Key) -> u64, is_over: impl Fn(&Log) -> bool) -> usize {
    let before = table.len();
    let keys = table.logs_from(0).filter(|(_, keyed)| !is_over(&keyed.log)).count();
    if keys < before {
        table.rebuild(keys, rehash, |keyed| !is_over(&keyed.log));
    }
    before - keys
}

/// Makes a full table able to take one more key, by growing unless many logs have expired. Takes amortised constant time per
/// insert, because it leaves space for a third of its keys or more.
pub(super) fn sweep_or_grow(table: &mut Table, rehash: impl Fn(&Key) -> u64, now: Timestamp, max_keys: usize) {
    let alive = |keyed: &KeyedLog| !keyed.log.has_expired(now);
    let keys = table.logs_from(0).filter(|(_, keyed)| alive(keyed)).count();
    table.rebuild((keys + keys / 2 + 1).min(max_keys).max(keys + 1), rehash, alive);
}

/// Evicts a log from a table that holds as many as it may, for a key with this hash. Of the [`SAMPLE`] logs that come next in the
/// table, it evicts one that has expired, or else the one with the fewest entries, or among equals the one longest unused. If
/// all of them have several entries, it searches the whole table. A flood of fresh keys therefore evicts itself.
pub(super) fn evict(table: &mut Table, rehash: impl Fn(&Key) -> u64, hash: u64, now: Timestamp) {
    if hash >> 58 == 0 && sweep(table, &rehash, |log| log.has_expired(now)) > 0 {
        return;
    }
    let worth = |log: &Log| (if log.has_expired(now) { 0 } else { log.len() }, log.newest());
    let least =
        |logs: &mut dyn Iterator<Item = (usize, &KeyedLog)>| logs.map(|(at, keyed)| (worth(&keyed.log), at)).min();
    let sampled = least(&mut table.logs_from(hash).take(SAMPLE)).filter(|((entries, _), _)| *entries <= 1);
    if let Some((_, at)) = sampled.or_else(|| least(&mut table.logs_from(hash))) {
        table.remove_at(at, rehash);
    }
}
