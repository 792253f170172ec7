//! What is offered to a library, and the loop that offers it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::libraries::{Library, Quota};

/// Operations of which each has a known answer.
#[derive(Clone)]
pub(crate) struct Workload {
    pub(crate) quota: Quota,
    pub(crate) keys: Arc<Vec<String>>,
    pub(crate) asked: Asked,
    pub(crate) allowed: bool,
    pub(crate) threads: usize,
    /// Another thread sweeps all the time.
    pub(crate) sweep: bool,
}

/// What is asked for, as often again as needed: one unit of each of a power of two of keys.
#[derive(Clone)]
pub(crate) enum Asked {
    /// The first one only.
    One,
    /// The first one only, and so many units, by the call for any number of them.
    Units(u32),
    /// These. They lie in memory as they are asked for, and so are in the cache when they are, as they are where a request
    /// has just been read.
    InOrder(Arc<Vec<String>>),
    /// The keys with these numbers, where they are: a cache miss or two before a library is called.
    Strewn(Arc<Vec<u32>>),
}

impl Asked {
    pub(crate) fn in_order(keys: &[String], picks: &[u32]) -> Self {
        Self::InOrder(Arc::new(picks.iter().map(|&pick| keys[pick as usize].clone()).collect()))
    }

    fn len(&self) -> usize {
        match self {
            Self::One | Self::Units(_) => 1,
            Self::InOrder(keys) => keys.len(),
            Self::Strewn(picks) => picks.len(),
        }
    }
}

/// Keys of 16 bytes.
pub(crate) fn keys(count: usize) -> Arc<Vec<String>> {
    Arc::new((0..count).map(|i| format!("user:{i:011}")).collect())
}

/// A small generator: the picks are the same in every run.
pub(crate) struct Xorshift(pub(crate) u64);

impl Xorshift {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Each of `count` keys equally often.
pub(crate) fn uniform(count: usize, picks: usize) -> Vec<u32> {
    let mut random = Xorshift(0x2545_f491_4f6c_dd1d);
    (0..picks).map(|_| (random.next() >> 16) as u32 % count as u32).collect()
}

/// The n-th of `count` keys in proportion to 1/n, and the keys in no order.
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
    /// A limiter that has seen every key, and on a denied workload used the quota up.
    pub(crate) fn prepare<L: Library>(&self) -> L {
        let library = L::with(self.quota);
        let times = if self.allowed { 1 } else { self.quota.max };
        for key in self.keys.iter() {
            for _ in 0..times {
                library.allows(key);
            }
        }
        library
    }

    /// Offers `count` operations, asserts their answers, and returns how long they took.
    fn offer<L: Library>(&self, library: &L, from: usize, count: u64) -> Duration {
        let (mask, one) = (self.asked.len() - 1, &self.keys[0]);
        let (elapsed, other) = match &self.asked {
            Asked::One => self.time(count, |_| library.allows(one)),
            Asked::Units(cost) => self.time(count, |_| library.allows_n(one, *cost)),
            Asked::InOrder(keys) => self.time(count, |i| library.allows(&keys[(from + i) & mask])),
            Asked::Strewn(picks) => self.time(count, |i| library.allows(&self.keys[picks[(from + i) & mask] as usize])),
        };
        // A thread that is put to sleep between reading the clock and using it may be denied by a library that does not
        // clamp its time.
        let tolerated = if self.threads == 1 { 0 } else { count / 50 };
        assert!(other <= tolerated, "{}: {other} of {count} answers were not as expected", L::NAME);
        elapsed
    }

    /// How long so many operations took, and how many answers were not as expected. A function of its own for each loop,
    /// as a service has: several in one would have to share the registers.
    #[inline(never)]
    fn time(&self, count: u64, allows: impl Fn(usize) -> bool) -> (Duration, u64) {
        let mut other = 0;
        let start = Instant::now();
        for i in 0..count as usize {
            other += u64::from(allows(i) != self.allowed);
        }
        (start.elapsed(), other)
    }

    /// Offers `count` operations and measures them. `from` says where in those asked for to begin.
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
                self.offer(library, from, count)
            } else {
                self.offer_on_threads(library, from, count)
            };
            stop.store(true, Ordering::Relaxed);
            elapsed
        })
    }

    /// The longest time of any thread.
    fn offer_on_threads<L: Library>(&self, library: &L, from: usize, count: u64) -> Duration {
        let barrier = Barrier::new(self.threads);
        thread::scope(|scope| {
            let offer = |thread| {
                let from = from + thread * self.asked.len() / self.threads;
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    self.offer(library, from, count.div_ceil(self.threads as u64))
                })
            };
            let threads: Vec<_> = (0..self.threads).map(offer).collect();
            threads.into_iter().map(|thread| thread.join().expect("no answer is unexpected")).max().unwrap_or_default()
        })
    }
}
