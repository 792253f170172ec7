//! Every scenario in memory on every library: `group/op/library`, to compare with a baseline while working on the store. And
//! `all_of/N`: a decision over N limiters.

use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use limiter_benches::memory::{Filled, MEMORY, contestants};
use limiter_core::{AllOf, Limiter, policy};
use limiter_memory::MemoryStore;

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

fn all_of(c: &mut Criterion) {
    let store = Arc::new(MemoryStore::new());
    let names: Vec<_> = (0..1_000).map(|n| format!("limiter {n}")).collect();
    let limiter = |name: &String| Limiter::new(name, policy!("1000000000/1ms"), store.clone());
    let limiters: Vec<_> = names.iter().map(limiter).collect();
    let mut group = c.benchmark_group("all_of");
    for count in [1, 10, 100, 1_000] {
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(count.to_string(), |b| {
            b.iter(|| {
                let mut calls = AllOf::new();
                for limiter in &limiters[..count] {
                    calls = calls.with(limiter.acquire(7));
                }
                assert!(calls.now().is_ok_and(|decision| !decision.is_denied()));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, compare, all_of);
criterion_main!(benches);
