//! Every scenario in memory on every library: `group/op/library`. With `--test`, also checks every scenario in Redis.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use limiter_benches::declared::{self, MEMORY};
use limiter_benches::record::{REDIS, Record};
use limiter_benches::turns::Effort;

fn is_test() -> bool {
    let has = |wanted| std::env::args().any(|arg| arg == wanted);
    has("--test") || !has("--bench")
}

fn compare(c: &mut Criterion) {
    for scenario in &MEMORY.scenarios {
        let mut group = c.benchmark_group(&scenario.name);
        group.throughput(Throughput::Elements(1));
        for mut timed in scenario.timed(if is_test() { &Effort::TEST } else { &Effort::QUICK }) {
            group.bench_function(timed.who, |b| b.iter_custom(&mut timed.run));
        }
        group.finish();
    }
}

fn redis(_: &mut Criterion) {
    if !is_test() {
        return;
    }
    let record = Record::measure(&REDIS, &Effort::TEST, None).expect("every answer is as expected");
    for (scenario, figures) in &record.results {
        let positive = figures.values().flat_map(|figures| figures.values()).all(|figure| *figure > 0.0);
        assert!(positive && !figures.is_empty(), "{scenario}: {figures:?}");
    }
    assert_eq!(record.results.len(), declared::REDIS.scenarios.len(), "{:?}", record.results.keys());
}

criterion_group!(benches, compare, redis);
criterion_main!(benches);
