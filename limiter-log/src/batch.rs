//! A batch: calls that are applied to one loading of their logs, in order, and saved once.

use std::mem;

use limiter_core::store::Log;
use limiter_core::{Error, ErrorKind};

use crate::call::{Call, Held};
use crate::table::{Change, Loaded, New, Table};

/// How often a batch is applied to newly loaded logs after a lost comparison. Each lost one is a change by another process.
const ATTEMPTS: usize = 100;

/// Applies calls to the logs of all their keys, which are sorted, until none has changed meanwhile.
///
/// Ends early if no caller waits any more.
pub(crate) async fn run(
    table: &impl Table,
    keys: &[Vec<u8>],
    calls: &mut [Box<dyn Call>],
) -> Result<(), Error> {
    for _ in 0..ATTEMPTS {
        let Loaded { logs: old, now } = table.load(keys).await?;
        if old.len() != keys.len() {
            let text = format!(
                "the table returned {} logs of {} keys",
                old.len(),
                keys.len()
            );
            return Err(Error::new(ErrorKind::Inconsistent, text));
        }
        let mut held: Vec<Held> = old.iter().map(|old| read(old.as_deref())).collect();
        let mut compared = vec![false; keys.len()];
        for call in calls.iter_mut() {
            let own = call.keys().iter();
            let own = own.filter_map(|key| keys.binary_search(key).ok());
            let own: Vec<usize> = own.collect();
            let take = |i: &usize| mem::replace(&mut held[*i], Err(String::new()));
            let mut logs: Vec<Held> = own.iter().map(take).collect();
            let depends = call.run(&mut logs, now);
            for (place, (i, log)) in own.into_iter().zip(logs).enumerate() {
                held[i] = log;
                compared[i] |= depends.get(place).is_some_and(|depends| *depends);
            }
        }
        let all = keys.iter().zip(old).zip(&held).zip(compared);
        let changes: Vec<Change> = all
            .filter(|(_, is_compared)| *is_compared)
            .map(|(((key, old), held), _)| change(key.clone(), old, held))
            .collect();
        let is_same = changes.iter().all(|change| change.new == New::Unchanged);
        if is_same || table.swap(changes).await? {
            return Ok(());
        }
        if !calls.iter().any(|call| call.is_wanted()) {
            break;
        }
    }
    let text = format!(
        "other processes changed the log during each of {ATTEMPTS} attempts: give the limit a lease, or share the key among fewer processes"
    );
    Err(Error::new(ErrorKind::Unavailable, text))
}

pub(crate) fn read(bytes: Option<&[u8]>) -> Held {
    let read = bytes.map_or_else(|| Ok(Log::new()), Log::from_bytes);
    read.map_err(|error| format!("{error} (reset removes it)"))
}

fn change(key: Vec<u8>, old: Option<Vec<u8>>, held: &Held) -> Change {
    let new = match held {
        Err(_) => New::Unchanged,
        Ok(log) if log.is_empty() && old.is_none() => New::Unchanged,
        Ok(log) if log.is_empty() => New::Removed,
        Ok(log) => match log.to_bytes() {
            log if Some(&log) == old.as_ref() => New::Unchanged,
            bytes => New::Saved {
                log: bytes,
                expires_at: log.expires_at().unwrap_or_default(),
            },
        },
    };
    Change { key, old, new }
}
