//! The memory store does what every store must do.

use std::sync::Arc;

use limiter_core::{BoxFuture, Limiter, policy};
use limiter_memory::MemoryStore;
use limiter_testkit::conformance::{Phase, Sizes, Suite};
use limiter_testkit::conformance_tests;

/// Returns the first size, or the second if the tests run in full.
fn size(brief: u64, full: u64) -> u64 {
    match std::env::var_os("LIMITER_TEST_ALL") {
        Some(_) => full,
        None => brief,
    }
}

conformance_tests!(
    the_store,
    Suite::new(),
    async |suite| {
        let store = Arc::new(MemoryStore::new());
        let sweeper = Arc::clone(&store);
        let sweep = move || -> BoxFuture<'static, ()> {
            sweeper.sweep();
            Box::pin(async {})
        };
        let handle = || Arc::new(Arc::clone(&store));
        suite
            .sweep(sweep)
            .beside(Arc::new(MemoryStore::new()))
            .run_handles(vec![handle(), handle(), handle()], async { handle() })
            .await
    },
    handles
);

#[test]
fn many_tasks_on_a_key_conform() {
    let calls = size(400, 2_000) as usize;
    for tasks in [2, 4, 8] {
        let size = |sizes: &mut Sizes| {
            (sizes.tasks, sizes.tries, sizes.rounds) = (tasks, calls / tasks, 2);
        };
        let suite = Suite::new().sizes(size).phases(&[Phase::Contention]);
        let report = suite.run_blocking(Arc::new(MemoryStore::new())).unwrap();
        assert!(
            report.checks_of(Phase::Contention) >= 5 * 5 * calls as u64,
            "{report:?}"
        );
    }
}

/// The other keys make the store's tables grow. The number of sequences is `LIMITER_SEQUENCES`.
#[test]
fn many_random_sequences_conform() {
    let number = std::env::var("LIMITER_SEQUENCES");
    let number = number.map_or(size(500, 5_000), |text| {
        text.parse().expect("LIMITER_SEQUENCES")
    });
    for others in [0, 5_000, 20_000_u32] {
        let store = Arc::new(MemoryStore::new());
        let limiter = Limiter::new("others", policy!("1/1h"), Arc::clone(&store));
        for other in 0..others {
            let decision = limiter.acquire(other.to_le_bytes()).now().unwrap();
            assert!(decision.is_allowed());
        }
        let suite = Suite::new()
            .sizes(|sizes| sizes.sequences = number)
            .phases(&[Phase::Random]);
        let report = suite.run_blocking(Arc::clone(&store)).unwrap();
        assert_eq!(report.checks_of(Phase::Random), number);
        let left = store.len();
        assert_eq!(left, others as usize, "every sequence ends with a reset");
    }
}
