//! A batch: calls that are applied to one loading of their logs, in order, and saved once.

use std::future::poll_fn;
use std::mem;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use limiter_core::store::Log;
use limiter_core::{Error, ErrorKind, Timestamp};

use crate::call::{Call, Held};
use crate::table::{Change, Loaded, New, Table};

/// How often a batch is applied to newly loaded logs after a lost comparison. Each lost one is a change by another process.
const ATTEMPTS: usize = 100;
/// How long a log stays in the table after its entries, and how long after its load a swap may take effect. So no swap finds a key
/// absent again that was there since the load.
const GRACE: Duration = Duration::from_secs(60);
/// After how many calls other tasks run.
const MOST_IN_TURN: usize = 32;

/// Applies calls to the logs of all their keys, which are sorted, until none has changed meanwhile.
///
/// Ends early if no caller waits any more.
pub(crate) async fn run(
    table: &impl Table,
    keys: &[Vec<u8>],
    calls: &mut [Call],
) -> Result<(), Error> {
    for _ in 0..ATTEMPTS {
        let (loaded, has_waited) = wanted(calls, table.load(keys)).await?;
        let Loaded { logs: old, now } = loaded;
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
        for (number, call) in calls.iter_mut().enumerate() {
            // Who runs a worker in place polls it once.
            if has_waited && number % MOST_IN_TURN == MOST_IN_TURN - 1 {
                let_others_run().await;
            }
            let own = call.keys.iter();
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
        let compared = all.filter(|(_, is_compared)| *is_compared);
        let changes = compared.map(|(((key, old), held), _)| change(key.clone(), old, held, now));
        let mut changes: Vec<Change> = changes.collect();
        if changes.iter().all(|change| change.new == New::Unchanged) {
            return Ok(());
        }
        for change in &mut changes {
            if change.old.is_none() && change.new == New::Unchanged {
                // Nobody else can now save a first log.
                change.new = saved(&Log::new(), now);
            }
        }
        let swap = table.swap(changes, now.saturating_add(GRACE));
        if wanted(calls, swap).await?.0 {
            return Ok(());
        }
    }
    let text = format!(
        "other processes changed the log during each of {ATTEMPTS} attempts: give the limit a lease, or share the key among fewer processes"
    );
    Err(Error::new(ErrorKind::Unavailable, text))
}

/// Makes a request to the table, for as long as a caller waits. Returns its result, and `true` if it had to wait.
async fn wanted<T>(
    calls: &mut [Call],
    request: impl Future<Output = Result<T, Error>>,
) -> Result<(T, bool), Error> {
    let mut request = pin!(request);
    let (mut gone, mut has_waited) = (0, false);
    poll_fn(|context| {
        while let Some(call) = calls.get_mut(gone)
            && call.poll_gone(context).is_ready()
        {
            gone += 1;
        }
        if gone == calls.len() {
            let text = "no caller waits any more";
            return Poll::Ready(Err(Error::new(ErrorKind::Unavailable, text)));
        }
        let polled = request.as_mut().poll(context);
        let polled = polled.map_ok(|reply| (reply, has_waited));
        has_waited = true;
        polled
    })
    .await
}

async fn let_others_run() {
    let mut has_run = false;
    poll_fn(|context| {
        if mem::replace(&mut has_run, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

pub(crate) fn read(bytes: Option<&[u8]>) -> Held {
    let read = bytes.map_or_else(|| Ok(Log::new()), Log::from_bytes);
    read.map_err(|error| format!("{error} (reset removes it)"))
}

fn change(key: Vec<u8>, old: Option<Vec<u8>>, held: &Held, now: Timestamp) -> Change {
    let new = match held {
        Ok(log) if !log.is_empty() || old.is_some() => saved(log, now),
        _ => New::Unchanged,
    };
    let is_same = matches!(&new, New::Saved { log, .. } if Some(log) == old.as_ref());
    let new = if is_same { New::Unchanged } else { new };
    Change { key, old, new }
}

fn saved(log: &Log, now: Timestamp) -> New {
    New::Saved {
        log: log.to_bytes(),
        expires_at: log.expires_at().unwrap_or(now).saturating_add(GRACE),
    }
}
