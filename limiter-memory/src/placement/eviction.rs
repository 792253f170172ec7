//! Eviction: which logs leave a shard, and when.

use limiter_core::Timestamp;

use super::key::{Key, KeyedLog};
use super::table::Table;
use crate::log::LogForm;

/// How many logs are compared to find one to evict.
const SAMPLE: usize = 8;

/// Evicts the logs for which `is_over` holds, frees their memory, and returns how many there were.
pub(super) fn sweep(
    table: &mut Table,
    rehash: impl Fn(&Key) -> u64,
    is_over: impl Fn(&LogForm) -> bool,
) -> usize {
    let before = table.len();
    let keys = table
        .logs_from(0)
        .filter(|(_, keyed)| !is_over(&keyed.log))
        .count();
    if keys < before {
        table.rebuild(keys, rehash, |keyed| !is_over(&keyed.log));
    }
    before - keys
}

/// Inserts a key that the table does not hold, evicts another if it holds as many as it may, and grows it if necessary.
pub(super) fn insert(
    table: &mut Table,
    rehash: impl Fn(&Key) -> u64,
    keyed: KeyedLog,
    now: impl Fn() -> Timestamp,
    max_keys: usize,
) {
    let hash = rehash(&keyed.key);
    if table.len() >= max_keys {
        evict(table, &rehash, hash, now());
    }
    if table.is_full() {
        sweep_or_grow(table, rehash, now(), max_keys);
    }
    table.insert(hash, keyed);
}

/// Makes room for one more key in a full table. Grows unless many logs have expired. Takes amortised constant time per insert,
/// because it leaves space for a third of its keys or more.
fn sweep_or_grow(table: &mut Table, rehash: impl Fn(&Key) -> u64, now: Timestamp, max_keys: usize) {
    let alive = |keyed: &KeyedLog| !keyed.log.has_expired(now);
    let keys = table.logs_from(0).filter(|(_, keyed)| alive(keyed)).count();
    table.rebuild(
        (keys + keys / 2 + 1).min(max_keys).max(keys + 1),
        rehash,
        alive,
    );
}

/// Evicts a log from a table that holds as many as it may, for a key with this hash. It examines the next [`SAMPLE`] logs in
/// the table and evicts an expired one. If none has expired, it evicts the one with the fewest entries; among equals, the one
/// longest unused. If all of them have several entries, it searches the whole table. A flood of fresh keys therefore evicts
/// itself.
fn evict(table: &mut Table, rehash: impl Fn(&Key) -> u64, hash: u64, now: Timestamp) {
    if hash >> 58 == 0 && sweep(table, &rehash, |log| log.has_expired(now)) > 0 {
        return;
    }
    let worth = |log: &LogForm| {
        let weight = if log.has_expired(now) {
            0
        } else {
            log.weight()
        };
        (weight, log.newest())
    };
    let least = |logs: &mut dyn Iterator<Item = (usize, &KeyedLog)>| {
        logs.map(|(at, keyed)| (worth(&keyed.log), at)).min()
    };
    let sampled =
        least(&mut table.logs_from(hash).take(SAMPLE)).filter(|((entries, _), _)| *entries <= 1);
    if let Some((_, at)) = sampled.or_else(|| least(&mut table.logs_from(hash))) {
        table.remove_at(at, rehash);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use limiter_core::store::Op;
    use limiter_core::{Policy, policy};

    use super::*;
    use crate::evaluate;

    const POLICY: Policy = policy!("3/1h");

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros_saturating((1 << 50) + micros)
    }

    fn holds(table: &mut Table, hash: impl Fn(&Key) -> u64, key: u32) -> bool {
        let key = key.to_le_bytes();
        table.get_mut(hash(&Key::new(0, &key)), 0, &key).is_some()
    }

    /// Inserts keys with this many entries. The table never holds too many keys, and always the last one.
    fn fill(
        table: &mut Table,
        hash: impl Fn(&Key) -> u64,
        keys: Range<u32>,
        entries: u64,
        max_keys: usize,
    ) {
        for key in keys {
            let mut log = LogForm::new(0);
            for at in (0..entries).map(|i| at(u64::from(key) + i)) {
                let _ = evaluate::apply_any((&mut log, None), &Op::acquire("", &POLICY), at);
            }
            let keyed = KeyedLog {
                key: Key::new(0, &key.to_le_bytes()),
                log,
            };
            insert(table, &hash, keyed, || at(1_000_000), max_keys);
            assert!(table.len() <= max_keys, "{key}");
            assert!(holds(table, &hash, key), "{key} of {max_keys}");
        }
    }

    #[test]
    fn a_flood_evicts_itself_even_if_all_keys_collide() {
        let spread = |key: &Key| u64::from(key.parts().1[0]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for hash in [&spread as &dyn Fn(&Key) -> u64, &|_| 7, &|_| u64::MAX] {
            let mut table = Table::default();
            // Six in seven hold a denial, among them all neighbours in the table.
            fill(&mut table, hash, 0..60, 3, 70);
            fill(&mut table, hash, 60..5_000, 1, 70);
            assert!((0..60).all(|key| holds(&mut table, hash, key)));
            // Among equals, the one longest unused goes.
            assert!(holds(&mut table, hash, 4_998) && !holds(&mut table, hash, 100));
        }
    }

    #[test]
    fn a_table_of_denials_takes_a_fresh_key() {
        let hash = |key: &Key| u64::from(key.parts().1[0]) << 26;
        for max_keys in [1, 2, 7, 8, 9, 64] {
            fill(&mut Table::default(), hash, 0..200, 3, max_keys);
        }
    }
}
