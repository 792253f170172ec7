//! Slots: permits that are held while work runs, in virtual time. `sim` plays histories of them with faults.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::{
    BoxFuture, Clock, ErrorKind, Limiter, Timestamp, WindowStore, WithClock, policy,
};
use limiter_testkit::ReferenceStore;
use tokio::time::{Instant, sleep, timeout};

/// Long, because the system's clock passes in real time.
const WINDOW: Duration = Duration::from_secs(32);
const TICK: Duration = Duration::from_millis(100);

/// Tokio's clock.
#[derive(Clone, Copy, Debug)]
struct Virtual(Instant);

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        let passed = self.0.elapsed().as_micros() as u64;
        Timestamp::from_micros_saturating((1 << 50) + passed)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(sleep(duration))
    }
}

/// Runs a test in virtual time.
fn virtually<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.unwrap().block_on(test)
}

/// Returns a limiter of one slot, over a store without faults.
fn one_slot() -> Limiter<Arc<WithClock<ReferenceStore, Virtual>>> {
    let store = WithClock::new(ReferenceStore::new(), Virtual(Instant::now()));
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
