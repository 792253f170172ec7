//! Slots: work that holds one, and the checks that it is neither lost nor kept.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, ensure};
use fastrand::Rng;
use limiter_core::{Error, ErrorKind, Limit, Limiter, Policy, Receipt, Window};
use tokio::time::{Instant, sleep, sleep_until};

use super::Run;
use crate::clocks::{is_held, system_off};
use crate::history::{Choice, Step};
use crate::ledger::calls::Slot;
use crate::process::Stack;

/// The longest shortest window of the policies of slots.
const LONGEST: Duration = Duration::from_secs(6);

const TOO_LATE: &str = "no renewal has succeeded in time";

fn shortest_window(policy: &Policy) -> Duration {
    let windows = policy.limits().iter().map(Limit::window);
    windows.min().map_or(Duration::ZERO, Window::as_duration)
}

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
        let default = limiter.policy();
        let own = self.world.lock().own[log].clone();
        let own = (random.u8(..6) == 0).then_some(&own);
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
        let is_first = permit.is_ok();
        while let Err(denied) = &permit
            && Instant::now() < end
        {
            sleep(denied.retry_after().mul_f64(0.9 + random.f64() / 10.0)).await;
            sleep(Duration::from_millis(1)).await;
            begun = Instant::now();
            permit = acquire(id).await?.into_result();
        }
        let is_repeated = random.u8(..6) == 0 && permit.is_ok();
        if is_repeated {
            // As if the first process had crashed.
            sleep(Duration::from_millis(random.u64(..4_500))).await;
            permit = acquire(id).await?.into_result();
        }
        let Ok(permit) = permit else { return Ok(()) };
        let policies = [default, own.unwrap_or(default)];
        let max = policies.map(Policy::smallest_max).into_iter().min();
        let window = policies.map(shortest_window).into_iter().min();
        let window = window.unwrap_or_default();
        let held_for = Cell::new(window);
        let receipt = permit.receipt();
        let ended = Cell::new(None);
        let length = Duration::from_millis(random.u64(..12_000));
        let work = async {
            let slot = (step.process, log, max.unwrap_or(0));
            self.work(slot, receipt, id, (length, &held_for)).await;
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
        let is_by_receipt = random.u8(..4) == 0 && own.is_none() && is_first && !is_repeated;
        let held = match receipt.filter(|_| is_by_receipt) {
            Some(receipt) => {
                // Nothing gives it back if its holder is gone.
                is_holding.set(false);
                let slot = (step.process, log, &*key, id);
                self.hold_by_receipt(slot, (receipt, begun), &held_for, work)
                    .await
            }
            None => permit.hold(work).await,
        };
        is_holding.set(false);
        let window = window.min(held_for.get());
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
        let is_late = |error: &Error| error.to_string().contains(TOO_LATE);
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

    /// Holds a slot as a client of limiter-server does: by its receipt, with the policy that its limiter has at each renewal.
    async fn hold_by_receipt(
        &self,
        (process, log, key, id): (usize, usize, &str, u128),
        (mut receipt, begun): (Receipt, Instant),
        held_for: &Cell<Duration>,
        work: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let lost = |text| Err(Error::new(ErrorKind::SlotLost, text));
        let limiter = || self.processes[process].stack.lock().unwrap().limiters()[log / 2].clone();
        let sent = Cell::new((begun, system_off(process)));
        let mut work = pin!(work);
        let mut work = poll_fn(
            |context| match is_held(sent.get(), process, held_for.get()) {
                true => work.as_mut().poll(context).map(|()| true),
                false => Poll::Ready(false),
            },
        );
        let mut due = begun + held_for.get() / 3;
        loop {
            let limiter = limiter();
            let renewing = async {
                sleep_until(due).await;
                let now = (Instant::now(), system_off(process));
                (now, limiter.renew(key, receipt).idempotency_key(id).await)
            };
            tokio::select! {
                biased;
                is_done = &mut work => match is_done {
                    true => break,
                    false => return lost(TOO_LATE),
                },
                (now, renewed) = renewing => match renewed {
                    Ok(settled) => match settled.receipt() {
                        None => return lost("the store no longer holds its entry"),
                        Some(renewed) => {
                            held_for.set(shortest_window(limiter.policy()));
                            (receipt, due) = (renewed, now.0 + held_for.get() / 3);
                            sent.set(now);
                        }
                    },
                    Err(_) => due = Instant::now() + held_for.get() / 24,
                },
            }
        }
        // A renewal under way may have moved the entry.
        if let Ok(settled) = limiter().renew(key, receipt).idempotency_key(id).await {
            receipt = settled.receipt().unwrap_or(receipt);
        }
        _ = limiter().refund(key, receipt).await;
        Ok(())
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
        (process, log, max): (usize, usize, u64),
        receipt: Option<Receipt>,
        id: u128,
        (length, held_for): (Duration, &Cell<Duration>),
    ) {
        let first = Instant::now();
        let number = {
            let mut world = self.world.lock();
            let book = &world.books[log];
            // A shorter window does not count the slots of those that could not read it.
            let is_unread = world.reloaded.is_some() && !world.is_quiet_since(first - LONGEST);
            let is_excused = is_unread || book.has_lost_slots(world.now());
            let Some(receipt) = receipt else {
                let may_be_open = world.setting.choice == Choice::Open;
                let result = may_be_open.then_some(()).context("works without a receipt");
                world.check(&format!("slot {id:x}"), result);
                return;
            };
            if !book.knows(world.memory.named(log, receipt)) {
                return;
            }
            world.slots.push(Slot {
                log,
                first,
                last: first,
                max,
                is_excused,
            });
            world.slots.len() - 1
        };
        while first.elapsed() < length {
            {
                let mut world = self.world.lock();
                world.slots[number].last = Instant::now();
                let sent = world.held.get(&id.into()).copied();
                let is_held = sent.is_none_or(|sent| is_held(sent, process, held_for.get()));
                let result = is_held.then_some(()).context("is worked in for too long");
                world.check(&format!("slot {number}"), result);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}
