//! The recipes for priorities and for shares, each over 10,000 seeds, against a count of what each window admitted.

use std::time::Duration;

use exact_limiter::time::{Clock, WithClock};
use exact_limiter::{Limiter, MemoryStore, Policy, SharedStore, policy};
use fastrand::Rng;
use limiter_testkit::{MockClock, worst_window};

const SEEDS: u64 = 10_000;
const WINDOW: u64 = 1_000_000;

/// The admissions of one seed: their time in microseconds, their cost and who made them.
#[derive(Default)]
struct Admitted(Vec<(u64, u64, usize)>);

impl Admitted {
    /// Returns the cost that counts at a time, of one caller or of all.
    fn used(&self, now: u64, by: Option<usize>) -> u64 {
        let counts = |(at, _, caller): &&(u64, u64, usize)| {
            now - at < WINDOW && by.is_none_or(|by| by == *caller)
        };
        self.0.iter().filter(counts).map(|(_, cost, _)| cost).sum()
    }

    /// Returns the cost of the window that admitted most.
    fn worst(&self) -> u64 {
        let admissions = self
            .0
            .iter()
            .map(|(at, cost, _)| (Duration::from_micros(*at), *cost));
        worst_window(admissions, Duration::from_micros(WINDOW))
    }
}

fn store() -> (SharedStore, MockClock) {
    let clock = MockClock::new();
    let store = WithClock::new(MemoryStore::new(), clock.clone());
    (std::sync::Arc::new(store), clock)
}

/// Moves the clock: by the wait of the last denial or next to it, or by any time.
fn advance(clock: &MockClock, random: &mut Rng, wait: Option<Duration>) {
    let any = Duration::from_micros(random.u64(0..200_000));
    let near = wait.map(|wait| match random.u8(0..3) {
        0 => wait - Duration::from_micros(1),
        1 => wait,
        _ => wait + Duration::from_micros(1),
    });
    clock.advance(near.filter(|_| random.bool()).unwrap_or(any));
}

#[tokio::test]
async fn only_a_full_window_denies_an_important_call() {
    static LOW: Policy = policy!("8/1s");
    let (store, clock) = store();
    let api = Limiter::new("api", policy!("10/1s"), store);
    let mut denials = [0_u32; 2];
    for seed in 0..SEEDS {
        let random = &mut Rng::with_seed(seed);
        let mut admitted = Admitted::default();
        let mut wait = None;
        for _ in 0..40 {
            advance(&clock, random, wait);
            let now = clock.now().as_micros();
            let is_low = random.bool();
            let cost = random.u64(1..=3);
            let call = api.acquire(seed).cost(cost);
            let call = if is_low { call.policy(&LOW) } else { call };
            let permit = call.permit().await.unwrap();
            wait = permit.decision().retry_after();
            let max = if is_low { 8 } else { 10 };
            let fits = admitted.used(now, None) + cost <= max;
            assert_eq!(wait.is_none(), fits, "seed {seed}");
            let Ok(permit) = permit.into_result() else {
                denials[usize::from(is_low)] += 1;
                continue;
            };
            if random.u8(0..8) == 0 {
                assert!(permit.refund().await.unwrap().applied());
            } else {
                admitted.0.push((now, cost, 0));
            }
        }
        assert!(admitted.worst() <= 10, "seed {seed}");
    }
    assert!(
        denials.iter().all(|denials| *denials > 10_000),
        "{denials:?}"
    );
}

#[tokio::test]
async fn a_share_is_never_denied_and_all_together_never_exceed_the_limit() {
    // 2 + 3 + 1 are guaranteed, 4 are for everybody.
    static SHARES: [Policy; 3] = [policy!("2/1s"), policy!("3/1s"), policy!("1/1s")];
    const POOL: u64 = 4;
    let (store, clock) = store();
    let shares = Limiter::new("share", policy!("3/1s"), store.clone());
    let pool = Limiter::new("pool", policy!("4/1s"), store);
    let mut fullest = 0;
    let mut denials = 0;
    for seed in 0..SEEDS {
        let random = &mut Rng::with_seed(seed);
        let [mut own, mut shared] = [Admitted::default(), Admitted::default()];
        let mut all = Admitted::default();
        let mut wait = None;
        for _ in 0..40 {
            advance(&clock, random, wait);
            let now = clock.now().as_micros();
            let tenant = random.usize(0..3);
            let share = SHARES[tenant].smallest_max();
            let first = shares
                .acquire((seed, tenant as u64))
                .policy(&SHARES[tenant]);
            let first = first.await.unwrap().retry_after();
            let by = Some(tenant);
            assert_eq!(first.is_none(), own.used(now, by) < share, "seed {seed}");
            wait = None;
            if let Some(first) = first {
                let second = pool.acquire(seed).await.unwrap().retry_after();
                assert_eq!(second.is_none(), shared.used(now, None) < POOL, "{seed}");
                wait = second.map(|second| first.min(second));
                if second.is_none() {
                    shared.0.push((now, 1, tenant));
                }
            } else {
                own.0.push((now, 1, tenant));
            }
            if wait.is_none() {
                all.0.push((now, 1, tenant));
            } else {
                denials += 1;
                assert!(all.used(now, by) >= share, "seed {seed}: below its share");
            }
        }
        assert!(all.worst() <= 10, "seed {seed}");
        fullest = fullest.max(all.worst());
    }
    assert!(fullest == 10 && denials > 10_000, "{fullest}, {denials}");
}
