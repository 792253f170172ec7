//! The task that replays the journal.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use limiter_core::store::{At, Entry, LogKey, Op, Outcome, Settlement};
use limiter_core::{Error, NowStore, Timestamp, WindowStore};
use tokio::time::{sleep, timeout};

use super::charge::{Charge, Local};
use super::journal::Change;
use super::reset::Turn;
use super::shared::{CLOCK, Shared, difference, shifted};

/// How many logs are replayed at a time.
const LOGS_AT_A_TIME: usize = 64;
/// How long a log rests after an error, and how soon the journal is looked at again.
const PAUSE: Duration = Duration::from_millis(100);

/// Replays the journal until it is empty, and then waits for the end of the outage.
pub(super) async fn replay<P: WindowStore, L: NowStore>(shared: Arc<Shared<P, L>>) {
    let mut logs = FuturesUnordered::new();
    // The journal goes with the last handle.
    while Arc::strong_count(&shared) > 1 {
        while logs.len() < LOGS_AT_A_TIME
            && let Some(turn) = shared.take_next()
        {
            logs.push(replay_log(&shared, turn));
        }
        if !logs.is_empty() {
            // Another log may have changed meanwhile.
            let _ = timeout(PAUSE, logs.next()).await;
        } else if let Some(left) = shared.outages.ends_in() {
            sleep(left.min(PAUSE)).await;
            shared.outages.end();
        } else if shared.end_replay() {
            return;
        } else {
            // A reset has the turn of the only log.
            sleep(PAUSE).await;
        }
    }
}

/// Replays what waits of one log until nothing is left, or a call fails.
async fn replay_log<P: WindowStore, L: NowStore>(shared: &Shared<P, L>, turn: Turn<'_, P, L>) {
    let log = turn.log.key();
    let mut clock = None;
    loop {
        let first = shared.lock().journal.first(&turn.log);
        let Some((number, change)) = first else { break };
        let answer = match change {
            Change::Reset => shared.primary.reset(log).await.map(|_| shared.state().journal.remove(number)),
            Change::Charge(charge) => match (charge.primary, &charge.local) {
                (None, Some(local)) => record(shared, log, number, &charge, local, &mut clock).await,
                (primary, _) => settle(shared, log, number, &charge, primary.unwrap_or(charge.entry)).await,
            },
        };
        let failed = answer.is_err();
        shared.outages.note_replay(&answer, || shared.primary.place(log).node);
        if failed {
            sleep(PAUSE).await;
            break;
        }
    }
}

async fn settle<P: WindowStore, L: NowStore>(
    shared: &Shared<P, L>,
    log: LogKey<'_>,
    number: u64,
    charge: &Charge,
    entry: Entry,
) -> Result<(), Error> {
    // Nobody reads the usage.
    let mut settlement = Settlement::new(log, &CLOCK, charge.receipt(entry), charge.cost);
    settlement.at = if charge.is_given { At::Given(entry.at) } else { At::StoreClock };
    shared.primary.settle(settlement).await?;
    shared.state().journal.answered(number, entry, charge.cost);
    Ok(())
}

async fn record<P: WindowStore, L: NowStore>(
    shared: &Shared<P, L>,
    log: LogKey<'_>,
    number: u64,
    charge: &Charge,
    local: &Local,
    clock: &mut Option<PrimaryClock>,
) -> Result<(), Error> {
    let Some(at) = time_of(shared, log, charge, local, clock).await? else {
        shared.state().journal.remove(number);
        return Ok(());
    };
    // It may have been settled, refunded or reset meanwhile.
    let Some(cost) = shared.state().journal.send(number) else { return Ok(()) };
    let mut record = Op::record(log.key, &local.policies.own).with_name(log.name).with_cost(cost);
    record.limiter_policy = local.policies.limiter.as_ref();
    let facts = shared.primary.apply(record.with_id(charge.entry.id).at(at)).await?;
    let mut state = shared.state();
    match facts.outcome {
        Outcome::Appended(entry) | Outcome::Repeated(entry) => state.journal.answered(number, entry, cost),
        // Which no store answers to a record.
        Outcome::Nothing => state.journal.remove(number),
    }
    Ok(())
}

/// The primary store's clock, as a replay has read it.
#[derive(Clone, Copy)]
struct PrimaryClock {
    now: Timestamp,
    /// By how many µs it is ahead of the local store's, at most.
    ahead: i64,
}

/// Returns the time of an entry by the primary store's clock, or `None` if it has expired. It never lies in that clock's future:
/// an entry from the future would hold up the time of its log.
async fn time_of<P: WindowStore, L: NowStore>(
    shared: &Shared<P, L>,
    log: LogKey<'_>,
    charge: &Charge,
    local: &Local,
    clock: &mut Option<PrimaryClock>,
) -> Result<Option<Timestamp>, Error> {
    // Not under the charge's policy: a denial cache must not answer.
    let peek = Op::peek(log.key, &CLOCK).with_name(log.name);
    let at = charge.entry.at;
    if charge.is_given {
        let now = shared.primary.apply(peek.at(at)).await?.log.now;
        return Ok(local.counts_for.counts(at, now).then_some(at));
    }
    // What was appended after the clock was read needs another look.
    let read = match *clock {
        Some(read) if shifted(at, read.ahead) <= read.now => read,
        _ => {
            // Read first: an entry may count for longer than it should, but not shorter.
            let before = shared.now();
            let now = shared.primary.apply(peek).await?.log.now;
            *clock.insert(PrimaryClock { now, ahead: difference(now, before) })
        }
    };
    let at = shifted(at, read.ahead).min(read.now);
    Ok(local.counts_for.counts(at, read.now).then_some(at))
}
