//! Slots: work that holds one, and the checks that it is neither lost nor kept.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context, ensure};
use fastrand::Rng;
use limiter_core::{Error, Limit, Limiter, Policy, Receipt, Window};
use tokio::time::{Instant, sleep};

use super::Run;
use crate::clocks::is_held;
use crate::history::{Choice, Step};
use crate::ledger::calls::Slot;
use crate::process::Stack;

impl Run {
    /// Takes a slot and works in it.
    pub(super) async fn hold(
        &self,
        step: &Step,
        limiter: &Limiter<Stack>,
        (log, id, is_holding): (usize, u128, &Cell<bool>),
        random: &mut Rng,
    ) -> Result<(), Error> {
        let key = (log % 2).to_string();
        let own = (random.u8(..6) == 0).then(|| &self.policies[log / 2][1]);
        let acquire = |id| {
            let acquire = limiter.acquire(&key).idempotency_key(id);
            match own {
                Some(own) => acquire.policy(own).permit(),
                None => acquire.permit(),
            }
        };
        // The server's clock may be faster, so it asks before the wait is over.
        let end = Instant::now() + Duration::from_secs(8);
        let mut begun = Instant::now();
        let mut permit = acquire(id).await?.into_result();
        while let Err(denied) = &permit
            && Instant::now() < end
        {
            sleep(denied.retry_after().mul_f64(0.9 + random.f64() / 10.0)).await;
            sleep(Duration::from_millis(1)).await;
            begun = Instant::now();
            permit = acquire(id).await?.into_result();
        }
        if random.u8(..6) == 0 && permit.is_ok() {
            // As if the first process had crashed.
            sleep(Duration::from_millis(random.u64(..4_500))).await;
            permit = acquire(id).await?.into_result();
        }
        let Ok(permit) = permit else { return Ok(()) };
        let policies = [
            &self.policies[log / 2][0],
            own.unwrap_or(&self.policies[log / 2][0]),
        ];
        let limits = policies.into_iter().flat_map(Policy::limits);
        let window = limits
            .map(Limit::window)
            .min()
            .map_or(Duration::ZERO, Window::as_duration);
        let receipt = permit.receipt();
        let ended = Cell::new(None);
        let length = Duration::from_millis(random.u64(..12_000));
        let work = async {
            self.work((step.process, log), receipt, id, (length, window))
                .await;
            ended.set(Some(Instant::now()));
        };
        let may_be_gone = begun.elapsed() + Duration::from_millis(100) > window;
        // Without a receipt, nothing can be refunded.
        is_holding.set(receipt.is_some());
        if random.u8(..12) == 0 {
            drop(permit.hold(work));
            if is_holding.replace(false) {
                self.check_given_back(step.process, log, id).await;
            }
            return Ok(());
        }
        let held = permit.hold(work).await;
        is_holding.set(false);
        let mut world = self.world.lock();
        let is_well = |since| {
            world.is_well_since(since) && !world.processes[step.process].was_paused_since(since)
        };
        let process = &world.processes[step.process];
        let is_quiet = |since| world.is_quiet_since(since) && !process.was_paused_since(since);
        let is_reached = |since: Instant| {
            is_well(since)
                || is_quiet(since - window) && process.failed.is_none_or(|failed| failed < since)
        };
        let is_lost = held.is_err() && receipt.is_some() && !may_be_gone && is_well(begun);
        let is_kept = held.is_ok()
            && ended.get().is_some_and(is_reached)
            && world.books[log].holds(id.into());
        // A renewal that fails is repeated soon.
        let since = Instant::now()
            .checked_sub(window / 2)
            .filter(|_| receipt.is_some() && !may_be_gone);
        let is_late = |error: &Error| error.to_string().contains("in time");
        let is_given_up = held.as_ref().err().is_some_and(is_late) && since.is_some_and(is_quiet);
        let check = || {
            ensure!(
                !is_given_up,
                "is lost although the store could be called for half a window"
            );
            ensure!(
                !is_lost,
                "is lost although all is well: {:?}",
                held.as_ref().err()
            );
            ensure!(!is_kept, "is kept although its work has ended");
            Ok(())
        };
        let result = check();
        world.check(&format!("slot {id:x} on log {log}"), result);
        held
    }

    /// Checks that a slot whose holder is gone is free soon.
    pub(super) async fn check_given_back(&self, process: usize, log: usize, id: u128) {
        let dropped = Instant::now();
        sleep(Duration::from_secs(1)).await;
        let mut world = self.world.lock();
        let is_well =
            world.is_well_since(dropped) && !world.processes[process].was_paused_since(dropped);
        let is_kept = is_well && world.books[log].holds(id.into());
        let result = (!is_kept)
            .then_some(())
            .context("is kept although its holder is gone");
        world.check(&format!("slot {id:x} on log {log}"), result);
    }

    /// Works with a slot, and notes when. It does not count if the server does not know it.
    async fn work(
        &self,
        (process, log): (usize, usize),
        receipt: Option<Receipt>,
        id: u128,
        (length, window): (Duration, Duration),
    ) {
        let first = Instant::now();
        let number = {
            let mut world = self.world.lock();
            let book = &world.books[log];
            let is_excused = book.has_lost_slots(world.now());
            let Some(receipt) = receipt else {
                let may_be_open = world.setting.choice == Choice::Open;
                let result = may_be_open.then_some(()).context("works without a receipt");
                world.check(&format!("slot {id:x}"), result);
                return;
            };
            if !book.knows(receipt.entry()) {
                return;
            }
            world.slots.push(Slot {
                log,
                first,
                last: first,
                is_excused,
            });
            world.slots.len() - 1
        };
        while first.elapsed() < length {
            {
                let mut world = self.world.lock();
                world.slots[number].last = Instant::now();
                let sent = world.held.get(&id.into()).copied();
                let is_held = sent.is_none_or(|sent| is_held(sent, process, window));
                let result = is_held.then_some(()).context("is worked in for too long");
                world.check(&format!("slot {number}"), result);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}
