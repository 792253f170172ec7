use std::sync::Arc;
use limiter_memory::MemoryStore;
use limiter_testkit::conformance::{Phase, Suite};
#[test]
fn all() {
    let store = Arc::new(MemoryStore::new());
    let sweeper = Arc::clone(&store);
    let suite = Suite::new().sweep(move || { sweeper.sweep(); });
        let handles = vec![Arc::clone(&store), store];
        for phase in Phase::ALL {
            let start = std::time::Instant::now();
            match suite.clone().phases(&[phase]).run_handles_blocking(handles.clone()) {
                Ok(report) => println!("{phase:?} {} {:?} {}", report.operations_of(phase), start.elapsed(), report.longest_log),
                Err(failure) => println!("{failure}"),
            }
        }
    println!("left {}", handles[0].len());
}
