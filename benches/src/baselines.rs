//! The baselines: the minimum work of every library, and of every exact log.

use std::hash::{BuildHasher, Hasher};
use std::hint::{self, black_box};
use std::sync::atomic::{AtomicU64, Ordering};

use spin::Mutex;

use crate::libraries::{Library, Quota};

/// A baseline: reads the clock.
pub struct ClockBaseline {
    clock: quanta::Clock,
    start: u64,
}

impl ClockBaseline {
    #[inline(always)]
    fn micros(&self) -> u64 {
        self.clock.delta_as_nanos(self.start, self.clock.raw()) / 1000
    }
}

impl Library for ClockBaseline {
    const NAME: &str = "baseline: clock";

    fn with(_: Quota) -> Self {
        let clock = quanta::Clock::new();
        Self { start: clock.raw(), clock }
    }

    #[inline(always)]
    fn allows_n(&self, _: &String, _: u32) -> bool {
        self.micros() < u64::MAX / 2
    }
}

#[inline(always)]
fn hash(seed: &foldhash::fast::RandomState, key: &[u8]) -> u64 {
    let mut hasher = seed.build_hasher();
    hasher.write(key);
    hasher.finish()
}

#[repr(align(64))]
#[derive(Default)]
struct Line(AtomicU64);

/// A baseline: hashes the key and updates one cache line. There are as many lines as in a table of a million keys.
pub struct LineBaseline {
    seed: foldhash::fast::RandomState,
    lines: Vec<Line>,
}

impl Library for LineBaseline {
    const NAME: &str = "baseline: hash, line";

    fn with(_: Quota) -> Self {
        let lines = std::iter::repeat_with(Line::default).take(1 << 20).collect();
        Self { seed: foldhash::fast::RandomState::default(), lines }
    }

    #[inline(always)]
    fn allows_n(&self, key: &String, cost: u32) -> bool {
        let line = &self.lines[hash(&self.seed, key.as_bytes()) as usize % self.lines.len()].0;
        line.store(line.load(Ordering::Relaxed) + u64::from(cost), Ordering::Relaxed);
        true
    }
}

/// A lower bound for every keyed limiter: reads the clock and updates one number per key in a `DashMap` (hash, shard
/// lock, probe).
pub struct MapBaseline {
    clock: ClockBaseline,
    map: dashmap::DashMap<String, u64, foldhash::fast::RandomState>,
}

impl Library for MapBaseline {
    const NAME: &str = "baseline: clock, map";

    fn with(quota: Quota) -> Self {
        Self { clock: ClockBaseline::with(quota), map: dashmap::DashMap::default() }
    }

    #[inline(always)]
    fn allows_n(&self, key: &String, cost: u32) -> bool {
        let now = self.clock.micros();
        match self.map.get_mut(key) {
            Some(mut last) => *last = now + u64::from(cost),
            None => _ = self.map.insert(key.clone(), now),
        }
        true
    }
}

/// A lower bound for every exact log, without its table. It reads the clock, hashes, locks the key's bucket, compares
/// the four oldest entries with the window, writes one entry, and writes as many bytes as a decision has. It makes no
/// decision. Its 4,096 buckets hold one key of 16 bytes each, with linear probing.
pub struct LogBaseline {
    clock: ClockBaseline,
    seed: foldhash::fast::RandomState,
    buckets: Box<[Bucket]>,
    window: u32,
}

const BUCKETS: usize = 4096;

#[repr(align(64))]
#[derive(Default)]
struct Bucket(Mutex<Option<Log>>);

struct Log {
    key: [u8; 16],
    entries: Box<[u32; Log::CAPACITY]>,
    first: u32,
    appended: u64,
}

impl Log {
    const CAPACITY: usize = 64;
    /// About the number of entries of each of 1,024 keys at 100 per millisecond.
    const LEN: usize = 24;

    #[inline(always)]
    fn append(&mut self, now: u32, window: u32) -> [u64; 14] {
        let index = |i: usize| (self.first as usize).wrapping_add(i) % Self::CAPACITY;
        let left: usize = (0..4).map(|i| usize::from(now.wrapping_sub(self.entries[index(i)]) >= window)).sum();
        let oldest = u64::from(self.entries[index(left)]);
        self.entries[index(Self::LEN)] = now;
        self.first = self.first.wrapping_add(left as u32);
        self.appended += 1;
        let now = u64::from(now);
        [now, 1, now, oldest, 1, self.appended, 0, left as u64, now, oldest, oldest, 2, 3, 4]
    }
}

impl Library for LogBaseline {
    const NAME: &str = "baseline: clock, table, log";

    fn with(quota: Quota) -> Self {
        Self {
            clock: ClockBaseline::with(quota),
            seed: foldhash::fast::RandomState::default(),
            buckets: (0..BUCKETS).map(|_| Bucket::default()).collect(),
            window: quota.window.as_micros() as u32,
        }
    }

    #[inline(always)]
    fn allows_n(&self, key: &String, _: u32) -> bool {
        let Some(key) = key.as_bytes().first_chunk::<16>() else { return false };
        let (hash, now) = (hash(&self.seed, key), self.clock.micros() as u32);
        for i in 0..BUCKETS {
            let lock = &self.buckets[(hash as usize).wrapping_add(i) % BUCKETS].0;
            let mut bucket = loop {
                match lock.try_lock() {
                    Some(bucket) => break bucket,
                    None => (0..32).for_each(|_| hint::spin_loop()),
                }
            };
            match &mut *bucket {
                Some(log) if log.key == *key => {
                    let answer = log.append(now, self.window);
                    drop(bucket);
                    return black_box(&answer)[1] == 1;
                }
                Some(_) => {}
                vacant => {
                    *vacant = Some(Log { key: *key, entries: Box::new([0; Log::CAPACITY]), first: 0, appended: 0 });
                    return true;
                }
            }
        }
        false
    }
}
