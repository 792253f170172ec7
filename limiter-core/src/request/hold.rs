//! Slots: permits that are renewed while work runs.

use std::pin::{Pin, pin};
use std::sync::OnceLock;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use futures_util::future::{Either, poll_fn, select};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::permit::Permit;
use crate::error::{Error, ErrorKind};
use crate::store::WindowStore;
use crate::store::op::At;

/// A moment by both clocks of a process: the monotonic one stops while the machine sleeps, the system's may step.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// By tokio's clock.
    pub monotonic: Instant,
    /// By the system's clock.
    pub system: SystemTime,
}

static SYSTEM_CLOCK: OnceLock<fn() -> SystemTime> = OnceLock::new();

/// Lets all moments of this program read another system's clock. Only the first call has an effect.
pub fn set_system_clock(clock: fn() -> SystemTime) {
    _ = SYSTEM_CLOCK.set(clock);
}

impl Moment {
    /// Returns the current moment.
    #[must_use]
    pub fn now() -> Self {
        let system = SYSTEM_CLOCK
            .get()
            .map_or_else(SystemTime::now, |clock| clock());
        let monotonic = Instant::now();
        Self { monotonic, system }
    }

    /// Returns `true` if `length` has passed by one of the clocks. If the system's has stepped back, nobody knows how far.
    #[must_use]
    pub fn has_passed(self, length: Duration, now: Self) -> bool {
        let system = now.system.duration_since(self.system);
        now.monotonic.duration_since(self.monotonic) >= length
            || system.map_or(true, |passed| passed >= length)
    }
}

impl<S: WindowStore + Clone> Permit<'_, S> {
    /// Runs `work` while the permit's entry counts, so that the limit bounds how much work runs at the same time: a permit is a slot.
    ///
    /// The limit's window is the longest silence of a holder, not the longest work. `hold` renews the entry each third of the window, and
    /// refunds it when the work has ended. At any instant, at most the limit's maximum is held in all processes together. The slot of a
    /// process that crashed is free within a window of its last renewal.
    ///
    /// It needs a store that can be cloned, such as an `Arc<RedisStore>` or a [`SharedStore`](crate::SharedStore).
    ///
    /// Give the acquire an [idempotency key](super::Acquire::idempotency_key). Without it, a renewal whose reply was lost looks like a lost
    /// slot.
    ///
    /// ```
    /// # use limiter_core::{Error, Limiter};
    /// # async fn write_report() -> Result<(), Error> { Ok(()) }
    /// # async fn example(exports: Limiter, id: u128) -> Result<(), Box<dyn std::error::Error>> {
    /// let slot = exports.acquire("customer 7").idempotency_key(id).permit().await?.into_result()?;
    /// slot.hold(write_report()).await??;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// - [`SlotLost`](ErrorKind::SlotLost) if the store no longer holds the entry, or if 63/64 of the window has passed since the last
    ///   successful renewal was sent, by the monotonic clock or by the system's. The work has been dropped. Threads and tasks that it has
    ///   started run on.
    /// - [`Configuration`](ErrorKind::Configuration) if the acquire had a caller-supplied time.
    /// - The error of the first renewal, if the permit is from [`AllOf`](crate::AllOf) or its acquire repeated another one: its work begins
    ///   after that renewal.
    ///
    /// Other renewals that fail are repeated. A refund that fails is not: the slot then stays taken for a window.
    ///
    /// # Panics
    /// Outside a tokio runtime with timers.
    ///
    /// # Cancel safety
    /// If the future is dropped, or if the work panics, a task refunds the entry.
    pub async fn hold<T>(self, work: impl Future<Output = T>) -> Result<T, Error> {
        if self.target.at != At::StoreClock {
            let text = "cannot hold a permit of an acquire at a caller-supplied time, expected one at the store's clock";
            return Err(Error::new(ErrorKind::Configuration, text));
        }
        let mut slot = Slot::new(self.into_owned());
        if slot.permit.sent.is_none() && !slot.permit.renew().await?.applied() {
            return Err(slot.lost(GONE));
        }
        // Dropped before the slot, which then refunds the entry.
        let mut work = pin!(work);
        loop {
            let held = (slot.permit.sent, slot.held_for);
            let pause = pin!(sleep_until(slot.due));
            let mut ended = match select(watch(held, work.as_mut()), pause).await {
                Either::Left((ended, _)) => Some(ended),
                Either::Right(_) => None,
            };
            if ended.is_none() {
                let renewal = pin!(slot.renew());
                match select(watch(held, work.as_mut()), renewal).await {
                    Either::Left((output, renewal)) => {
                        // The refund needs the receipt that this returns.
                        _ = renewal.await;
                        ended = Some(output);
                    }
                    Either::Right((renewed, _)) => renewed?,
                }
            }
            match ended {
                Some(Some(output)) => {
                    slot.give_back().await;
                    return Ok(output);
                }
                Some(None) => return Err(slot.lost(TOO_LATE)),
                None => {}
            }
        }
    }
}

/// Polls the work of a slot that is held for this long after a renewal was sent. `None` if it is held no longer.
fn watch<W: Future>(
    (sent, held_for): (Option<Moment>, Duration),
    mut work: Pin<&mut W>,
) -> impl Future<Output = Option<W::Output>> + Unpin {
    poll_fn(move |context| match sent {
        Some(sent) if !sent.has_passed(held_for, Moment::now()) => {
            work.as_mut().poll(context).map(Some)
        }
        _ => Poll::Ready(None),
    })
}

const GONE: &str = "the store no longer holds its entry";
const TOO_LATE: &str = "no renewal has succeeded in time";

/// A held permit. Refunds the entry when it is dropped.
struct Slot<S: WindowStore + Clone> {
    permit: Permit<'static, S>,
    window: Duration,
    /// How long it is held after a renewal was sent. The rest of the window is for clocks that differ in speed by up to a 64th.
    held_for: Duration,
    /// The time of the next renewal.
    due: Instant,
    is_given_back: bool,
}

impl<S: WindowStore + Clone> Slot<S> {
    fn new(permit: Permit<'static, S>) -> Self {
        let window = permit.entry.window().as_duration();
        let sent = permit.sent.unwrap_or_else(Moment::now);
        Self {
            permit,
            window,
            held_for: window - window / 64,
            due: sent.monotonic + window / 3,
            is_given_back: false,
        }
    }

    /// Renews the entry. If that fails, the next renewal comes soon.
    async fn renew(&mut self) -> Result<(), Error> {
        let sent = self
            .permit
            .sent
            .map_or_else(Instant::now, |sent| sent.monotonic);
        let now = Instant::now();
        self.due = match timeout_at(sent + self.held_for, self.permit.renew()).await {
            Ok(Ok(renewed)) if renewed.applied() => now + self.window / 3,
            Ok(Ok(_)) => return Err(self.lost(GONE)),
            // Otherwise nothing would wake work that waits for longer than the slot is held.
            Ok(Err(_)) => (Instant::now() + self.window / 24).min(sent + self.held_for),
            Err(_) => return Err(self.lost(TOO_LATE)),
        };
        Ok(())
    }

    fn lost(&self, why: &str) -> Error {
        let limiter = &self.permit.target.limiter;
        let text = format!("a slot of {} is lost: {why}", limiter.name());
        Error::new(ErrorKind::SlotLost, text).with_log(limiter.log(&self.permit.target.key))
    }

    async fn give_back(&mut self) {
        give_back(self.permit.clone()).await;
        self.is_given_back = true;
    }
}

/// Refunds the entry, wherever a renewal has moved it.
async fn give_back<S: WindowStore>(mut permit: Permit<'_, S>) {
    if permit.is_uncertain {
        _ = permit.renew().await;
    }
    _ = permit.refund().await;
}

impl<S: WindowStore + Clone> Drop for Slot<S> {
    fn drop(&mut self) {
        if let (false, Ok(runtime)) = (self.is_given_back, Handle::try_current()) {
            runtime.spawn(give_back(self.permit.clone()));
        }
    }
}
