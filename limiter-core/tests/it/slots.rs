//! Slots from outside: at no instant do more run than the limit allows, in seeded histories in virtual time.
//!
//! Four processes hold slots on one store, with lost requests and replies, slow replies, outages, pauses, crashes, and a store's clock
//! that runs faster or slower than theirs by a 128th.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use futures::future::{Either, join_all, select};
use limiter_core::store::{Facts, LogKey, Op, Settlement, SettlementFacts};
use limiter_core::{
    BoxFuture, Clock, Error, ErrorKind, Limiter, Permit, Timestamp, WindowStore, WithClock, policy,
};
use limiter_testkit::ReferenceStore;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Long, because the system's clock passes in real time.
const WINDOW: Duration = Duration::from_secs(32);
const TICK: Duration = Duration::from_millis(100);
const LENGTH: Duration = Duration::from_secs(32 * 12);

/// A clock that runs faster or slower than tokio's.
#[derive(Clone, Copy, Debug)]
struct Skewed {
    start: Instant,
    speed: f64,
}

impl Clock for Skewed {
    fn now(&self) -> Timestamp {
        let passed = self.start.elapsed().as_micros() as f64 * self.speed;
        Timestamp::from_micros_saturating((1 << 50) + passed as u64)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(sleep(duration))
    }
}

/// A process' way to the store.
#[derive(Clone, Debug)]
struct Process(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<WithClock<ReferenceStore, Skewed>>,
    random: Mutex<Rng>,
    /// The beginning and the end of the last or the next outage.
    outage: Mutex<(Instant, Instant)>,
    is_dead: AtomicBool,
}

impl Process {
    fn random<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.0.random.lock().unwrap())
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let millis = |random: &mut Rng| match random.u8(..10) {
            0 => random.u64(..40_000),
            _ => random.u64(1..20),
        };
        let [before, after] = self.random(|random| [millis(random), millis(random)]);
        let fate = self.random(|random| random.u8(..40));
        sleep(Duration::from_millis(before)).await;
        let is_down = {
            let mut outage = self.0.outage.lock().unwrap();
            if outage.1 <= Instant::now() {
                let draw = |random: &mut Rng| [random.u64(..150_000), random.u64(..60_000)];
                let [pause, length] = self.random(draw).map(Duration::from_millis);
                *outage = (Instant::now() + pause, Instant::now() + pause + length);
            }
            outage.0 <= Instant::now()
        };
        let lost = || Err(Error::new(ErrorKind::Timeout, "lost"));
        let arrives = !is_down && fate != 0 && !self.0.is_dead.load(Ordering::Relaxed);
        let result = if arrives { call.await } else { lost() };
        sleep(Duration::from_millis(after)).await;
        if fate == 1 { lost() } else { result }
    }
}

#[async_trait]
impl WindowStore for Process {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.call(self.0.store.apply(op)).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.call(self.0.store.settle(settlement)).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.call(self.0.store.reset(log)).await
    }
}

/// How long a holder that does not use [`Permit::hold`] counts itself in, and whether it counts from the reply.
type Control = (Duration, bool);

/// The first and the last instant at which each piece of work ran.
type Runs = Arc<Mutex<Vec<(Instant, Instant)>>>;

async fn work(runs: Runs, ticks: u64) {
    let mut number = None;
    for _ in 0..ticks {
        let now = Instant::now();
        {
            let mut runs = runs.lock().unwrap();
            let number = *number.get_or_insert(runs.len());
            if number == runs.len() {
                runs.push((now, now));
            }
            runs[number].1 = now;
        }
        sleep(TICK).await;
    }
}

/// Renews as [`Permit::hold`] does, but counts itself out otherwise.
async fn control(
    (held, from_reply): Control,
    mut permit: Permit<'_, Process>,
    sent: Instant,
    work: impl Future,
) {
    let from = |sent| if from_reply { Instant::now() } else { sent };
    let mut since = from(sent);
    let mut due = since + WINDOW / 3;
    let mut work = pin!(work);
    loop {
        let ended = timeout_at(due.min(since + held), work.as_mut()).await;
        if ended.is_ok() || Instant::now() >= since + held {
            break;
        }
        let sent = Instant::now();
        let renewal = pin!(timeout_at(since + held, permit.renew()));
        match select(work.as_mut(), renewal).await {
            Either::Right((Ok(Ok(renewed)), _)) if renewed.applied() => {
                (since, due) = (from(sent), sent + WINDOW / 3);
            }
            Either::Right((Ok(Err(_)), _)) => due = Instant::now() + WINDOW / 24,
            _ => break,
        }
    }
    _ = timeout(WINDOW, permit.refund().into_future()).await;
}

/// A process that takes slots, one after another, until it crashes.
async fn process(process: Process, holder: Option<Control>, runs: Runs) {
    let limiter = Limiter::new("slots", policy!("2/32s"), process.clone());
    let life = async {
        loop {
            let (id, ticks) = process.random(|random| (random.u128(..), random.u64(..900)));
            let sent = Instant::now();
            let permit = limiter.acquire("k").idempotency_key(id).permit().await;
            if let Some(permit) = permit.ok().and_then(|permit| permit.into_result().ok()) {
                let work = work(Arc::clone(&runs), ticks);
                match holder {
                    None => drop(permit.hold(work).await),
                    Some(holder) => control(holder, permit, sent, work).await,
                }
            }
            sleep(TICK).await;
        }
    };
    let mut life = pin!(life);
    let end = process.random(|random| random.u64(..LENGTH.as_millis() as u64 * 2));
    let end = Instant::now() + Duration::from_millis(end).min(LENGTH);
    while Instant::now() < end {
        let [runs, pause] = process.random(|random| [random.u64(..100_000), random.u64(..40_000)]);
        let runs = end.min(Instant::now() + Duration::from_millis(runs));
        _ = timeout_at(runs, life.as_mut()).await;
        // The process stands still: nothing of it is polled.
        sleep(Duration::from_millis(pause)).await;
    }
    process.0.is_dead.store(true, Ordering::Relaxed);
}

/// Runs a test in virtual time.
fn virtually<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.unwrap().block_on(test)
}

/// Returns the largest number of slots that were held at one instant, and the number of runs.
fn history(seed: u64, holder: Option<Control>) -> (usize, usize) {
    virtually(async {
        let mut random = Rng::with_seed(seed);
        let speed = 1.0 + [-1.0, 0.0, 1.0][random.usize(..3)] / 128.0;
        let start = Instant::now();
        let clock = Skewed { start, speed };
        let store = Arc::new(WithClock::new(ReferenceStore::new(), clock));
        let runs = Runs::default();
        let processes = (0..4).map(|_| {
            let inner = Inner {
                store: Arc::clone(&store),
                random: Mutex::new(random.fork()),
                outage: Mutex::new((start, start)),
                is_dead: AtomicBool::new(false),
            };
            process(Process(Arc::new(inner)), holder, Arc::clone(&runs))
        });
        join_all(processes.collect::<Vec<_>>()).await;
        let runs = runs.lock().unwrap();
        let at = |instant: Instant| {
            let holds = |(first, last): &&(Instant, Instant)| *first <= instant && instant <= *last;
            runs.iter().filter(holds).count()
        };
        let most = runs.iter().map(|(first, _)| at(*first)).max();
        (most.unwrap_or(0), runs.len())
    })
}

#[test]
fn no_more_slots_are_held_at_once_than_the_limit_allows_and_controls_hold_more() {
    let mut runs = 0;
    for seed in 0..60 {
        let (most, made) = history(seed, None);
        assert!(most <= 2, "seed {seed}: {most} at once");
        runs += made;
    }
    assert!(runs > 200, "{runs} runs");
    // From the reply, or for a whole window.
    for control in [(WINDOW - WINDOW / 64, true), (WINDOW, false)] {
        let above = (0..60).find(|seed| history(*seed, Some(control)).0 > 2);
        assert!(above.is_some(), "{control:?} never held more");
    }
}

/// Returns a limiter of one slot, over a store without faults.
fn one_slot() -> Limiter<Arc<WithClock<ReferenceStore, Skewed>>> {
    let clock = Skewed {
        start: Instant::now(),
        speed: 1.0,
    };
    let store = WithClock::new(ReferenceStore::new(), clock);
    Limiter::new("slots", policy!("1/32s"), Arc::new(store))
}

#[test]
fn a_slot_is_held_while_work_runs_and_free_at_its_end() {
    virtually(async {
        let limiter = &one_slot();
        let permit = async || limiter.acquire("k").permit().await.unwrap().into_result();
        let used = async || limiter.status("k").await.unwrap().used();
        let slot = permit().await.unwrap();
        let ten = async {
            for _ in 0..10 {
                assert!(permit().await.is_err());
                sleep(WINDOW).await;
            }
            7
        };
        assert_eq!(slot.hold(ten).await.unwrap(), 7);
        assert_eq!(used().await, 0);

        // Dropped work gives the slot back.
        let held = permit().await.unwrap().hold(std::future::pending::<()>());
        assert!(timeout(WINDOW * 3, held).await.is_err());
        sleep(TICK).await;
        assert_eq!(used().await, 0);

        // A slot that is refunded elsewhere is lost at the next renewal.
        let slot = permit().await.unwrap();
        assert!(limiter.reset("k").await.unwrap());
        let start = Instant::now();
        let lost = slot.hold(std::future::pending::<()>()).await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::SlotLost);
        assert!(start.elapsed() <= WINDOW / 2, "{:?}", start.elapsed());

        let now = limiter.store().clock().unwrap().now();
        let given = limiter.acquire("k").at(now).permit().await;
        let given = given.unwrap().into_result().unwrap();
        let error = given.hold(async {}).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
    });
}

/// Its entry may have counted for almost a window when the acquire is repeated.
#[test]
fn a_repeated_acquire_is_renewed_before_its_work_begins() {
    virtually(async {
        let limiter = &one_slot();
        let acquire = async || {
            let acquire = limiter.acquire("k").idempotency_key(7_u128).permit();
            acquire.await.unwrap().into_result().unwrap()
        };
        acquire().await;
        sleep(WINDOW - TICK).await;
        let held = acquire().await.hold(std::future::pending::<()>());
        assert!(timeout(WINDOW * 3, held).await.is_err(), "it is not lost");
    });
}
