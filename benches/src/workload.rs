//! The workloads, and the loop that runs them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::libraries::{Library, Quota};

/// Operations with known answers.
#[derive(Clone)]
pub(crate) struct Workload {
    pub(crate) quota: Quota,
    pub(crate) keys: Arc<Vec<String>>,
    pub(crate) requests: Requests,
    pub(crate) allowed: bool,
    /// The number of entries of each key before the measurement. Denied workloads use up the quota instead.
    pub(crate) filled: u32,
    pub(crate) threads: usize,
    /// Whether another thread sweeps continuously.
    pub(crate) sweep: bool,
}

/// The requests, repeated as often as needed. Each is for one unit, and the number of keys is a power of two.
#[derive(Clone)]
pub(crate) enum Requests {
    /// One unit of the first key.
    One,
    /// This many units of the first key, with the call for any number of units.
    Units(u32),
    /// One unit of each of these keys. They lie in memory in this order, so each key is in the cache, as after
    /// reading a request from a socket.
    InOrder(Arc<Vec<String>>),
    /// One unit of each key with these numbers. The keys lie elsewhere, so the caller has a cache miss or two before
    /// the call.
    Scattered(Arc<Vec<u32>>),
}

impl Requests {
    pub(crate) fn in_order(keys: &[String], picks: &[u32]) -> Self {
        Self::InOrder(Arc::new(picks.iter().map(|&pick| keys[pick as usize].clone()).collect()))
    }

    fn len(&self) -> usize {
        match self {
            Self::One | Self::Units(_) => 1,
            Self::InOrder(keys) => keys.len(),
            Self::Scattered(picks) => picks.len(),
        }
    }
}

/// Returns keys of 16 bytes.
pub(crate) fn keys(count: usize) -> Arc<Vec<String>> {
    Arc::new((0..count).map(|i| format!("user:{i:011}")).collect())
}

/// A small random generator with a fixed seed, so every run picks the same keys.
pub(crate) struct Xorshift(pub(crate) u64);

impl Xorshift {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Picks each of `count` keys equally often.
pub(crate) fn uniform(count: usize, picks: usize) -> Vec<u32> {
    let mut random = Xorshift(0x2545_f491_4f6c_dd1d);
    (0..picks).map(|_| (random.next() >> 16) as u32 % count as u32).collect()
}

/// Picks the n-th of `count` keys in proportion to 1/n, with the keys in random order.
pub(crate) fn zipf(count: usize, picks: usize) -> Vec<u32> {
    let mut random = Xorshift(0x2545_f491_4f6c_dd1d);
    let mut sums = Vec::with_capacity(count);
    let mut sum = 0.0;
    for n in 1..=count {
        sum += 1.0 / n as f64;
        sums.push(sum);
    }
    let mut pick = || {
        let wanted = (random.next() >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        let rank = sums.partition_point(|&sum| sum < wanted).min(count - 1) as u64;
        (rank * 7_368_787 % count as u64) as u32
    };
    (0..picks).map(|_| pick()).collect()
}

impl Workload {
    /// Returns a limiter that has seen every key. For a denied workload, every key has used up its quota.
    pub(crate) fn prepare<L: Library>(&self) -> L {
        let library = L::with(self.quota);
        let times = if self.allowed { self.filled } else { self.quota.max };
        for key in self.keys.iter() {
            for _ in 0..times {
                library.allows(key);
            }
        }
        library
    }

    /// Runs `count` operations, asserts their answers, and returns the duration.
    fn measure<L: Library>(&self, library: &L, from: usize, count: u64) -> Duration {
        let (mask, one) = (self.requests.len() - 1, &self.keys[0]);
        let (elapsed, other) = match &self.requests {
            Requests::One => self.time(count, |_| library.allows(one)),
            Requests::Units(cost) => self.time(count, |_| library.allows_n(one, *cost)),
            Requests::InOrder(keys) => self.time(count, |i| library.allows(&keys[(from + i) & mask])),
            Requests::Scattered(picks) => {
                self.time(count, |i| library.allows(&self.keys[picks[(from + i) & mask] as usize]))
            }
        };
        // A library that does not clamp time may deny a thread that was preempted after it read the clock.
        let tolerated = if self.threads == 1 { 0 } else { count / 50 };
        assert!(other <= tolerated, "{}: {other} of {count} answers were not as expected", L::NAME);
        elapsed
    }

    /// Returns the duration of `count` operations and the number of unexpected answers. Not inlined, so that each
    /// loop has all registers, as in a service.
    #[inline(never)]
    fn time(&self, count: u64, allows: impl Fn(usize) -> bool) -> (Duration, u64) {
        let mut other = 0;
        let start = Instant::now();
        for i in 0..count as usize {
            other += u64::from(allows(i) != self.allowed);
        }
        (start.elapsed(), other)
    }

    /// Runs `count` operations, starting with request number `from`, and measures them.
    pub(crate) fn run<L: Library>(&self, library: &L, from: usize, count: u64) -> Duration {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            if self.sweep {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        library.sweep();
                    }
                });
            }
            let elapsed = if self.threads == 1 {
                self.measure(library, from, count)
            } else {
                self.measure_on_threads(library, from, count)
            };
            stop.store(true, Ordering::Relaxed);
            elapsed
        })
    }

    /// Returns the longest duration of any thread.
    fn measure_on_threads<L: Library>(&self, library: &L, from: usize, count: u64) -> Duration {
        let barrier = Barrier::new(self.threads);
        thread::scope(|scope| {
            let measure = |thread| {
                let from = from + thread * self.requests.len() / self.threads;
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    self.measure(library, from, count.div_ceil(self.threads as u64))
                })
            };
            let threads: Vec<_> = (0..self.threads).map(measure).collect();
            threads.into_iter().map(|thread| thread.join().expect("no answer is unexpected")).max().unwrap_or_default()
        })
    }
}
