//! The task that replays the journal.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use limiter_core::store::{LogKey, Op, Outcome, Settlement};
use limiter_core::{Error, NowStore, Timestamp, WindowStore};
use tokio::time::sleep;

use super::change::{Change, Charge, Settle};
use super::reset::Turn;
use super::shared::{Shared, difference, shifted};

/// How many logs are replayed at a time.
const LOGS_AT_A_TIME: usize = 64;
/// How long a log rests after an error.
const PAUSE: Duration = Duration::from_millis(100);

/// Replays the journal until it is empty, and then waits for the end of the outage.
pub(super) async fn replay<P: WindowStore, L: NowStore>(shared: Arc<Shared<P, L>>) {
    let mut replaying = Replaying { shared: &shared, is_over: false };
    let mut logs = FuturesUnordered::new();
    // The journal goes with the last handle.
    while Arc::strong_count(&shared) > 1 {
        while logs.len() < LOGS_AT_A_TIME
            && let Some(log) = next_log(&shared)
        {
            logs.push(replay_log(&shared, log));
        }
        if logs.next().await.is_some() {
            continue;
        }
        if let Some(left) = shared.outages.ends_in() {
            sleep(left.min(PAUSE)).await;
            shared.outages.end();
        } else if replaying.end() {
            return;
        } else {
            // A reset has the turn of the only log.
            sleep(PAUSE).await;
        }
    }
}

fn next_log<P: WindowStore, L: NowStore>(shared: &Shared<P, L>) -> Option<Turn<'_, P, L>> {
    shared.lock().journal.take_next().map(|log| shared.turn(log))
}

/// Replays the steps of one log until none is left, or one fails.
async fn replay_log<P: WindowStore, L: NowStore>(shared: &Shared<P, L>, turn: Turn<'_, P, L>) {
    let log = turn.log.key();
    let mut clock = None;
    loop {
        let first = shared.lock().journal.first(&turn.log);
        let Some((number, change)) = first else { break };
        let answer = match change {
            Change::Charge(charge) => replay_charge(shared, log, number, &charge, &mut clock).await,
            Change::Settle(Settle { receipt, cost, at, policies }) => {
                let mut settlement = Settlement::new(log, &policies.own, receipt, cost);
                settlement.at = at;
                let answer = shared.primary.settle(settlement).await;
                answer.map(|_| shared.state().journal.settled(number, cost))
            }
            Change::Reset => shared.primary.reset(log).await.map(|_| shared.state().journal.remove(number)),
        };
        let failed = answer.is_err();
        shared.outages.note_replay(&answer);
        if failed {
            sleep(PAUSE).await;
            break;
        }
    }
}

/// The primary store's clock, as a replay has read it.
#[derive(Clone, Copy)]
struct PrimaryClock {
    now: Timestamp,
    /// By how many µs it is ahead of the local store's.
    ahead: i64,
}

async fn replay_charge<P: WindowStore, L: NowStore>(
    shared: &Shared<P, L>,
    log: LogKey<'_>,
    number: u64,
    charge: &Charge,
    clock: &mut Option<PrimaryClock>,
) -> Result<(), Error> {
    let Some(at) = time_of(shared, log, charge, clock).await? else {
        shared.state().journal.remove(number);
        return Ok(());
    };
    // It may have been settled, refunded or reset meanwhile.
    let Some(charge) = shared.state().journal.send(number) else { return Ok(()) };
    let mut record = Op::record(log.key, &charge.policies.own).with_name(log.name).with_cost(charge.cost);
    record.limiter_policy = charge.policies.limiter.as_ref();
    let record = record.with_id(charge.entry.id).at(at);
    let facts = shared.primary.apply(record).await?;
    let mut state = shared.state();
    if let Outcome::Appended(entry) | Outcome::Repeated(entry) = facts.outcome {
        state.journal.recorded(number, entry);
        if let Some(issued) = state.verdicts.find(log, charge.entry.id).filter(|issued| issued.entry == charge.entry) {
            issued.primary = Some(entry);
        }
    } else {
        state.journal.remove(number);
    }
    Ok(())
}

/// Returns the time of an entry by the primary store's clock, or `None` if it has expired. It never lies in that clock's future:
/// an entry from the future would hold up the time of its log.
async fn time_of<P: WindowStore, L: NowStore>(
    shared: &Shared<P, L>,
    log: LogKey<'_>,
    charge: &Charge,
    clock: &mut Option<PrimaryClock>,
) -> Result<Option<Timestamp>, Error> {
    let peek = Op::peek(log.key, &charge.policies.own).with_name(log.name);
    if charge.is_given {
        let now = shared.primary.apply(peek.at(charge.entry.at)).await?.log.now;
        return Ok(charge.window.counts(charge.entry.at, now).then_some(charge.entry.at));
    }
    // What was appended after the clock was read needs another look.
    let read = match *clock {
        Some(read) if shifted(charge.entry.at, read.ahead) <= read.now => read,
        _ => {
            let now = shared.primary.apply(peek).await?.log.now;
            *clock.insert(PrimaryClock { now, ahead: difference(now, shared.now()) })
        }
    };
    let at = shifted(charge.entry.at, read.ahead).min(read.now);
    Ok(charge.window.counts(at, read.now).then_some(at))
}

/// Lets another task replay when this one is dropped.
struct Replaying<'a, P, L> {
    shared: &'a Shared<P, L>,
    is_over: bool,
}

impl<P, L> Replaying<'_, P, L> {
    /// Ends the replay if the journal is empty. Returns whether it is.
    fn end(&mut self) -> bool {
        let mut state = self.shared.state();
        self.is_over = state.journal.len() == 0;
        state.is_replaying = !self.is_over;
        self.is_over
    }
}

impl<P, L> Drop for Replaying<'_, P, L> {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.state().is_replaying = false;
        }
    }
}
