//! Every scenario in memory on every library: `group/op/library`, to compare with a baseline while working on the store.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use limiter_benches::memory::{Filled, MEMORY, contestants};

fn compare(c: &mut Criterion) {
    for scenario in &MEMORY.scenarios {
        let mut group = c.benchmark_group(&scenario.name);
        group.throughput(Throughput::Elements(1));
        for (library, requests) in contestants(scenario) {
            let mut filled = None;
            group.bench_function(library.name, |b| {
                let filled = filled.get_or_insert_with(|| Filled::new(library, &requests));
                b.iter_custom(|count| filled.run(count));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, compare);
criterion_main!(benches);
