//! Every scenario on every library: `group/op/library`.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use limiter_benches::declared::MEMORY;
use limiter_benches::turns::Effort;

fn compare(c: &mut Criterion) {
    let test = !std::env::args().any(|arg| arg == "--bench") || std::env::args().any(|arg| arg == "--test");
    for scenario in &MEMORY.scenarios {
        let mut group = c.benchmark_group(&scenario.name);
        group.throughput(Throughput::Elements(1));
        for mut timed in scenario.timed(if test { &Effort::TEST } else { &Effort::QUICK }) {
            group.bench_function(timed.who, |b| b.iter_custom(&mut timed.run));
        }
        group.finish();
    }
}

criterion_group!(benches, compare);
criterion_main!(benches);
