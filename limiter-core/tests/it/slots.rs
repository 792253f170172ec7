//! Slots: permits that are held while work runs, in virtual time. `sim` plays histories of them with faults.

use std::cell::Cell;
use std::future::{pending, ready};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use limiter_core::internal::set_system_clock;
use limiter_core::{
    BoxFuture, Clock, ErrorKind, Limiter, Permit, Policy, Timestamp, WindowStore, WithClock,
};
use limiter_testkit::ReferenceStore;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

const WINDOW: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(50);

thread_local! {
    /// When this test's virtual time began, and for how long work has blocked the thread since.
    static VIRTUAL: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// Returns the time since the beginning of a test in virtual time.
fn elapsed() -> Option<Duration> {
    let (start, blocked) = VIRTUAL.get()?;
    Some(start.elapsed() + blocked)
}

fn system_clock() -> SystemTime {
    elapsed().map_or_else(SystemTime::now, |elapsed| SystemTime::UNIX_EPOCH + elapsed)
}

/// Lets time pass during one poll.
fn block(duration: Duration) {
    let (start, blocked) = VIRTUAL.get().unwrap();
    VIRTUAL.set(Some((start, blocked + duration)));
}

/// The virtual clock.
#[derive(Clone, Copy, Debug)]
struct Virtual;

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros_saturating((1 << 50) + elapsed().unwrap().as_micros() as u64)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(sleep(duration))
    }
}

/// Runs a test in virtual time.
fn virtually<T>(test: impl Future<Output = T>) -> T {
    set_system_clock(system_clock);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        VIRTUAL.set(Some((Instant::now(), Duration::ZERO)));
        test.await
    })
}

type Store = Arc<WithClock<ReferenceStore, Virtual>>;

/// Returns a limiter on a store without faults.
fn limiter(policy: &str) -> Limiter<Store> {
    let store = WithClock::new(ReferenceStore::new(), Virtual);
    let policy: Policy = policy.parse().unwrap();
    Limiter::new("slots", policy, Arc::new(store))
}

async fn used(limiter: &Limiter<Store>) -> u64 {
    limiter.status("k").await.unwrap().used()
}

async fn permit(limiter: &Limiter<Store>) -> Option<Permit<'_, Store>> {
    let acquire = limiter.acquire("k").permit().await;
    acquire.unwrap().into_result().ok()
}

#[test]
fn a_slot_is_held_while_work_runs_and_free_at_its_end() {
    virtually(async {
        let limiter = &limiter("1/3s");
        let ten = async {
            for _ in 0..10 {
                assert!(permit(limiter).await.is_none());
                sleep(WINDOW).await;
            }
            7
        };
        let slot = permit(limiter).await.unwrap();
        assert_eq!(slot.hold(ten).await.unwrap(), 7);
        assert_eq!(used(limiter).await, 0);

        // A slot that is refunded elsewhere is lost at the next renewal.
        let slot = permit(limiter).await.unwrap();
        assert!(limiter.reset("k").await.unwrap());
        let start = Instant::now();
        let lost = slot.hold(pending::<()>()).await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::SlotLost);
        assert!(start.elapsed() <= WINDOW / 2, "{:?}", start.elapsed());
    });
}

/// A shorter limit of either policy would stop counting the slot if the longer one decided.
#[test]
fn the_shortest_exact_window_is_the_longest_silence_of_a_holder() {
    for (default, own, most) in [
        ("2/3s", None, 2),
        ("2/300ms", None, 2),
        ("2/300ms, 100/3s", None, 2),
        ("100/3s, 2/300ms", None, 2),
        ("2/300ms, 100/30s~1s", None, 2),
        ("100/3s", Some("2/300ms"), 2),
        ("3/3s", Some("4/300ms"), 3),
    ] {
        virtually(async {
            let limiter = limiter(default);
            let own: Option<Policy> = own.map(|own| own.parse().unwrap());
            let held = &Cell::new(0);
            let one = async |start: u32| {
                sleep(TICK * start).await;
                let mut acquire = limiter.acquire("k");
                if let Some(own) = &own {
                    acquire = acquire.policy(own);
                }
                let Ok(permit) = acquire.permit().await.unwrap().into_result() else {
                    return;
                };
                let work = async {
                    held.set(held.get() + 1);
                    assert!(held.get() <= most, "{default} {own:?}");
                    sleep(2 * WINDOW).await;
                    held.set(held.get() - 1);
                };
                match permit.hold(work).await {
                    Ok(()) => {}
                    // Beyond the limiter's default policy.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Configuration),
                }
            };
            futures::future::join_all((0..100).map(one)).await;
            assert_eq!(held.get(), 0);
        });
    }
}

#[test]
fn a_slot_that_cannot_be_held_is_refused_before_its_work_begins() {
    virtually(async {
        let limiter = limiter("2/3s");
        let gold: Policy = "5/3s".parse().unwrap();
        let mut all = Vec::new();
        for _ in 0..5 {
            let acquire = limiter.acquire("k").policy(&gold).permit().await;
            all.push(acquire.unwrap().into_result().unwrap());
        }
        let beyond = all.split_off(2);
        for permit in beyond {
            let refused = permit.hold(async { panic!("it has begun") }).await;
            let text = refused.unwrap_err().to_string();
            assert_eq!(
                text,
                "limiter \"slots\": the slot exceeds the limiter's default policy, so it cannot be renewed or refunded; \
                 it counts until it has left its windows"
            );
        }
        let status = limiter.status("k").policy(&gold).await.unwrap();
        assert_eq!(status.used(), 5, "their entries stay");
        for permit in all {
            assert!(permit.hold(ready(())).await.is_ok());
        }

        let limiter = self::limiter("1/3s");
        let now = limiter.store().clock().unwrap().now();
        let given = limiter.acquire("k").at(now).permit().await;
        let given = given.unwrap().into_result().unwrap();
        let error = given.hold(async { panic!("it has begun") }).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Configuration);
        yield_now().await;
        assert_eq!(used(&limiter).await, 0, "it is refunded");
    });
}

#[test]
fn work_that_blocks_its_thread_past_the_window_has_lost_its_slot() {
    for (blocks, is_held) in [
        (WINDOW / 64 * 62, true),
        (WINDOW / 64 * 63, false),
        (WINDOW * 5 / 2, false),
    ] {
        virtually(async {
            let limiter = limiter("1/3s");
            let slot = permit(&limiter).await.unwrap();
            let result = slot.hold(async { block(blocks) }).await;
            let kind = result.map_err(|error| error.kind());
            let expected = is_held.then_some(()).ok_or(ErrorKind::SlotLost);
            assert_eq!(kind, expected, "{blocks:?}");
        });
    }
}

#[test]
fn a_dropped_hold_refunds_its_slot_even_before_its_first_poll() {
    virtually(async {
        let limiter = &limiter("1/3s");
        let slot = permit(limiter).await.unwrap();
        drop(slot.hold(pending::<()>()));
        yield_now().await;
        assert_eq!(used(limiter).await, 0);

        let slot = permit(limiter).await.unwrap();
        tokio::select! {
            biased;
            () = ready(()) => {}
            _ = slot.hold(pending::<()>()) => panic!("it has ended"),
        }
        yield_now().await;
        assert_eq!(used(limiter).await, 0);

        let held = permit(limiter).await.unwrap().hold(pending::<()>());
        assert!(timeout(WINDOW * 3, held).await.is_err());
        yield_now().await;
        assert_eq!(used(limiter).await, 0);
    });
}

/// Its entry may have counted for almost a window when the acquire is repeated.
#[test]
fn a_repeated_acquire_is_renewed_before_its_work_begins() {
    virtually(async {
        let limiter = &limiter("1/3s");
        let acquire = async || {
            let acquire = limiter.acquire("k").idempotency_key(7_u128).permit();
            acquire.await.unwrap().into_result().unwrap()
        };
        acquire().await;
        sleep(WINDOW - TICK).await;
        let held = acquire().await.hold(pending::<()>());
        assert!(timeout(WINDOW * 3, held).await.is_err(), "it is not lost");
    });
}
