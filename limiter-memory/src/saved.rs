//! Logs on their way out of the store and into it, in the core's form.

use limiter_core::store::{self, Op};
use limiter_core::{Limit, MAX_COST, Policy};

use crate::evaluate;
use crate::log::inline::{Inline, NUMBERS};
use crate::log::lifetime::Lifetime;
use crate::log::ring::{Format, Ring};
use crate::log::sparse::Sparse;
use crate::log::view::Header;
use crate::log::{LogForm, Other, with_entries};

/// Returns a log in the core's form.
pub(crate) fn export(mut log: LogForm) -> store::Log {
    let lifetime = log.lifetime();
    let mut saved = with_entries!(&mut log, entries => Sparse::copy_of(&entries, lifetime).log, sparse => sparse.log.clone());
    let newest = saved.newest().unwrap_or_default();
    saved.set_expiry(lifetime.expires_at(newest));
    saved
}

/// Returns a log in the smallest form that holds it.
pub(crate) fn import(saved: &store::Log) -> LogForm {
    let newest = saved.newest().unwrap_or_default();
    let lifetime = Lifetime::until(saved.expires_at().unwrap_or_default(), newest);
    compact(saved, lifetime).unwrap_or_else(|| {
        let log = saved.clone();
        let sparse = Sparse { log, lifetime };
        LogForm::Other(Other::Sparse(Box::new(sparse)))
    })
}

/// Returns the log in a form without ids. `None` if it needs one with ids.
fn compact(saved: &store::Log, lifetime: Lifetime) -> Option<LogForm> {
    let (first, entries) = saved.numbered_entries()?;
    let first = u32::try_from(first).ok()?;
    let policy = Policy::from(Limit::with_window(MAX_COST, lifetime.window()).ok()?);
    let op = |cost| Op::record("", &policy).with_cost(cost);
    let mut log = if first < NUMBERS {
        LogForm::new(first)
    } else {
        let format = Format::default();
        let mut ring = Ring::copy_of(&Inline::new(0).view(), 0, &op(1), lifetime, format);
        ring.header.set_range(first, 0);
        LogForm::Ring(ring)
    };
    for (at, cost) in entries {
        let _ = evaluate::apply_any((&mut log, None), &op(cost), at);
    }
    Some(log)
}

#[cfg(test)]
mod tests {
    use limiter_core::{Timestamp, policy};

    use super::*;

    #[test]
    fn a_ring_keeps_its_numbers_beyond_their_range_and_its_format() {
        let policy = policy!("9/1h");
        let mut log = LogForm::new(0);
        let now = |i: u64| Timestamp::from_micros_saturating((1 << 50) + i);
        for i in 0..20 {
            let _ = evaluate::apply_any((&mut log, None), &Op::record("", &policy), now(i));
            match &mut log {
                LogForm::Ring(ring) if i == 5 => ring.header.set_range(u32::MAX - 3, 0),
                _ => {}
            }
        }
        let form = |log: &mut LogForm| {
            let LogForm::Ring(ring) = &*log else {
                panic!("not a ring")
            };
            let format = ring.header.format();
            let entries = with_entries!(log, e => (0..e.len()).map(|i| (e.number(i), e.at(i))).collect(), _ => vec![]);
            (format, entries)
        };
        let mut copy = import(&export(log.clone()));
        assert_eq!(form(&mut copy), form(&mut log));
        assert_eq!(form(&mut copy).1[0], (1, now(11)));
        assert!(!copy.has_expired(now(3_600_000_000)) && copy.has_expired(now(7_200_000_000)));
    }

    #[test]
    fn a_log_at_the_end_of_time_keeps_its_entries() {
        let policy = policy!("9/1h");
        let mut log = LogForm::new(0);
        for before_end in [3_599_999_999, 1_000_000, 0] {
            let now = Timestamp::from_micros_saturating(Timestamp::MAX.as_micros() - before_end);
            let _ = evaluate::apply_any((&mut log, None), &Op::record("", &policy), now);
        }
        let saved = export(log);
        assert_eq!(saved.len(), 3);
        assert_eq!(export(import(&saved)).cost(), saved.cost());
    }
}
