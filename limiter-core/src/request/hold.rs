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
use crate::policy::time::Window;
use crate::store::WindowStore;
use crate::store::op::{At, Mode};
use crate::store::settlement::Receipt;

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
    /// The shortest window of the exact limits, the acquire's own and the limiter's, is the longest silence of a holder, not the longest
    /// work. `hold` renews the entry each third of that window, and refunds it when the work has ended. At any instant, at most the
    /// limit's maximum is held in all processes together. The slot of a process that crashed is free within a window of its last renewal.
    ///
    /// If the store was down and [admitted without counting](crate::Decision::appended), the work runs to its end without renewals.
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
    ///   successful renewal was sent, by the monotonic clock or by the system's. The work has been dropped, or its result if it has
    ///   blocked its thread for so long. Threads and tasks that it has started run on.
    /// - [`Configuration`](ErrorKind::Configuration), before the work begins, if the acquire had a caller-supplied time, or if it exceeded
    ///   the limiter's default policy. The latter has no [receipt](Self::receipt), so it counts until it has left its windows.
    /// - The error of the first renewal, if the permit is from [`AllOf`](crate::AllOf) or its acquire repeated another one: its work begins
    ///   after that renewal.
    ///
    /// Other renewals that fail are repeated. A refund that fails is not: the slot then stays taken for a window.
    ///
    /// # Panics
    /// Outside a tokio runtime with timers.
    ///
    /// # Cancel safety
    /// If the future is dropped, even before its first poll, if it returns an error, or if the work panics, a task refunds the entry.
    pub fn hold<T, W: Future<Output = T>>(
        self,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + use<T, W, S> {
        Slot::new(self.into_owned()).hold(work)
    }
}

impl<S: WindowStore + Clone> Slot<S> {
    async fn hold<W: Future>(self, work: W) -> Result<W::Output, Error> {
        let mut slot = self;
        if slot.permit.target.at != At::StoreClock {
            return Err(slot.refused("was acquired at a caller-supplied time, expected the store's clock; it is refunded"));
        }
        if slot.permit.decision().is_uncounted() {
            return Ok(work.await);
        }
        if slot.permit.receipt().is_none() {
            return Err(slot.refused(
                "exceeds the limiter's default policy, so it cannot be renewed or refunded; it counts until it has left its windows",
            ));
        }
        if slot.permit.sent.is_none() {
            slot.renew_first().await?;
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
    let is_held = move || sent.is_some_and(|sent| !sent.has_passed(held_for, Moment::now()));
    poll_fn(move |context| {
        if !is_held() {
            return Poll::Ready(None);
        }
        let polled = work.as_mut().poll(context);
        // The work may have blocked its thread for that long.
        polled.map(|output| is_held().then_some(output))
    })
}

const GONE: &str = "the store no longer holds its entry";
const TOO_LATE: &str = "no renewal has succeeded in time";

/// A held permit. Refunds its entry when it is dropped, if that has a receipt.
struct Slot<S: WindowStore + Clone> {
    permit: Permit<'static, S>,
    window: Duration,
    /// How long it is held after a renewal was sent. The rest of the window is for clocks that differ in speed by up to a 64th.
    held_for: Duration,
    /// The time of the next renewal.
    due: Instant,
    is_refundable: bool,
}

impl<S: WindowStore + Clone> Slot<S> {
    fn new(permit: Permit<'static, S>) -> Self {
        let window = permit.target.op(Mode::Acquire).slot_window();
        let window = window.map_or(Duration::ZERO, Window::as_duration);
        let sent = permit.sent.unwrap_or_else(Moment::now);
        Self {
            is_refundable: permit.receipt().is_some(),
            permit,
            window,
            held_for: window - window / 64,
            due: sent.monotonic + window / 3,
        }
    }

    /// Renews an entry of unknown age, unless it has left the shortest window: then others may hold its units.
    async fn renew_first(&mut self) -> Result<(), Error> {
        let whole = self.permit.entry.window();
        let window = self.permit.target.op(Mode::Acquire).slot_window();
        let within = |entry: Receipt, window| Receipt::new(entry.entry(), entry.at(), window);
        self.permit.entry = within(self.permit.entry, window.unwrap_or(whole));
        let renewed = self.permit.renew().await;
        self.permit.entry = within(self.permit.entry, whole);
        if renewed?.applied() {
            Ok(())
        } else {
            Err(self.lost(GONE))
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

    fn refused(&self, why: &str) -> Error {
        self.error(ErrorKind::Configuration, format!("the slot {why}"))
    }

    fn lost(&self, why: &str) -> Error {
        self.error(ErrorKind::SlotLost, format!("the slot is lost: {why}"))
    }

    fn error(&self, kind: ErrorKind, text: String) -> Error {
        let target = &self.permit.target;
        Error::new(kind, text).with_log(target.limiter.log(&target.key))
    }

    async fn give_back(&mut self) {
        give_back(self.permit.clone()).await;
        self.is_refundable = false;
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
        if let (true, Ok(runtime)) = (self.is_refundable, Handle::try_current()) {
            runtime.spawn(give_back(self.permit.clone()));
        }
    }
}
