//! Every scenario on every library: `group/op/library`.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use limiter_benches::scenario::SCENARIOS;

fn compare(c: &mut Criterion) {
    for scenario in SCENARIOS {
        let mut group = c.benchmark_group(scenario.name);
        group.throughput(Throughput::Elements(1));
        for mut case in (scenario.cases)() {
            group.bench_function(case.library, |b| b.iter_custom(&mut case.run));
        }
        group.finish();
    }
}

criterion_group!(benches, compare);
criterion_main!(benches);
