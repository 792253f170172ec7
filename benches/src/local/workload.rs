//! The workloads, and the loop that runs them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use limiter_core::{Limit, Policy};
use serde::Deserialize;

use super::library::{Library, only_limit};

/// Operations with known answers, as declared.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workload {
    pub(crate) limits: Vec<Limit>,
    #[serde(default = "one")]
    pub(crate) keys: usize,
    #[serde(default)]
    pub(crate) order: Order,
    /// The cost of a request, with the call for any number of units. `None`: one, with the call for one unit.
    pub(crate) cost: Option<u32>,
    /// Whether all requests are denied. Otherwise all are allowed.
    #[serde(default)]
    pub(crate) denied: bool,
    /// The number of entries of each key before the measurement. Default: one, or as many as use the limit up.
    pub(crate) entries: Option<u32>,
    #[serde(default = "one")]
    pub(crate) threads: usize,
    /// Whether another thread sweeps all the time.
    #[serde(default)]
    pub(crate) sweep: bool,
}

fn one() -> usize {
    1
}

/// The order of the keys.
#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Each equally often.
    #[default]
    Uniform,
    /// The n-th in proportion to 1/n.
    Zipf,
    /// Each equally often. The keys are not in the cache, so the caller has a cache miss or two before the call.
    Scattered,
    /// Each once. When the keys run out, a new limiter starts.
    Fresh,
}

impl Workload {
    /// Returns requests of keys at random.
    pub(crate) fn uniform(keys: usize, limit: Limit, denied: bool, entries: u32) -> Self {
        let (order, entries) = (Order::Uniform, Some(entries));
        Self { limits: vec![limit], keys, order, cost: None, denied, entries, threads: 1, sweep: false }
    }
}

/// A workload, its keys and its requests in memory.
#[derive(Clone)]
pub(crate) struct Requested {
    pub(crate) workload: Workload,
    keys: Arc<Vec<String>>,
    order: KeyOrder,
}

/// The keys in their order, repeated as often as needed. Their number is a power of two.
#[derive(Clone)]
enum KeyOrder {
    One,
    /// They lie in memory in this order, so each key is in the cache, as after reading a request from a socket.
    Keys(Arc<Vec<String>>),
    Numbers(Arc<Vec<u32>>),
}

/// Returns keys of 16 bytes.
pub(crate) fn keys(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("user:{i:011}")).collect()
}

/// Picks keys by their numbers.
fn picks(keys: usize, order: Order) -> Vec<u32> {
    // A fixed seed, so every run picks the same keys.
    let mut random = fastrand::Rng::with_seed(0x2545_f491_4f6c_dd1d);
    let count = if keys <= 1024 { 1 << 16 } else { (2 * keys).next_power_of_two().max(1 << 20) };
    if order != Order::Zipf {
        return (0..count).map(|_| random.u32(..keys as u32)).collect();
    }
    let mut sums = vec![0.0; keys];
    for n in 0..keys {
        sums[n] = 1.0 / (n + 1) as f64 + if n > 0 { sums[n - 1] } else { 0.0 };
    }
    let mut numbers: Vec<u32> = (0..keys as u32).collect();
    random.shuffle(&mut numbers);
    let mut pick = || {
        let wanted = random.f64() * sums[keys - 1];
        numbers[sums.partition_point(|&sum| sum < wanted)]
    };
    (0..count).map(|_| pick()).collect()
}

impl Requested {
    pub(crate) fn new(workload: Workload) -> Self {
        let keys = keys(workload.keys);
        let order = match workload.order {
            Order::Fresh => KeyOrder::One,
            _ if keys.len() == 1 => KeyOrder::One,
            Order::Scattered => KeyOrder::Numbers(Arc::new(picks(keys.len(), workload.order))),
            order => {
                let picks = picks(keys.len(), order).into_iter();
                KeyOrder::Keys(Arc::new(picks.map(|pick| keys[pick as usize].clone()).collect()))
            }
        };
        Self { workload, keys: Arc::new(keys), order }
    }

    /// Returns another workload with the same keys and requests.
    pub(crate) fn with(&self, workload: Workload) -> Self {
        Self { workload, ..self.clone() }
    }

    fn len(&self) -> usize {
        match &self.order {
            KeyOrder::One => 1,
            KeyOrder::Keys(keys) => keys.len(),
            KeyOrder::Numbers(numbers) => numbers.len(),
        }
    }

    /// Runs `count` operations, asserts their answers, and returns the duration.
    fn measure<L: Library>(&self, library: &L, from: usize, count: u64, threads: usize) -> Duration {
        let (mask, one) = (self.len() - 1, &self.keys[0]);
        let (elapsed, other) = match (&self.order, self.workload.cost) {
            (KeyOrder::One, None) => self.time(count, |_| library.allows(one)),
            (KeyOrder::One, Some(cost)) => self.time(count, |_| library.allows_n(one, cost)),
            (KeyOrder::Keys(keys), _) => self.time(count, |i| library.allows(&keys[(from + i) & mask])),
            (KeyOrder::Numbers(numbers), _) => {
                self.time(count, |i| library.allows(&self.keys[numbers[(from + i) & mask] as usize]))
            }
        };
        // A library that does not clamp time may deny a thread that was preempted after it read the clock.
        let tolerated = if threads == 1 { 0 } else { count / 50 };
        assert!(other <= tolerated, "{}: {other} of {count} answers were not as expected", L::NAME);
        elapsed
    }

    /// Returns the duration of `count` operations and the number of unexpected answers. Not inlined, so that each loop has
    /// all registers, as in a service.
    #[inline(never)]
    fn time(&self, count: u64, allows: impl Fn(usize) -> bool) -> (Duration, u64) {
        let mut other = 0;
        let start = Instant::now();
        for i in 0..count as usize {
            other += u64::from(allows(i) == self.workload.denied);
        }
        (start.elapsed(), other)
    }

    /// Runs `count` operations, starting with request number `from`. Returns the longest duration of any thread.
    fn run<L: Library>(&self, library: &L, from: usize, count: u64, threads: usize) -> Duration {
        let (stop, barrier) = (AtomicBool::new(false), Barrier::new(threads));
        let measure = |thread| {
            barrier.wait();
            self.measure(library, from + thread * self.len() / threads, count.div_ceil(threads as u64), threads)
        };
        thread::scope(|scope| {
            if self.workload.sweep {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        library.sweep();
                    }
                });
            }
            let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || measure(thread))).collect();
            let own = measure(0);
            stop.store(true, Ordering::Relaxed);
            others.into_iter().fold(own, |most, other| most.max(other.join().expect("no answer is unexpected")))
        })
    }
}

/// A filled limiter.
pub(crate) struct Prepared {
    /// Runs this many operations on this many threads.
    pub(crate) run: Box<dyn FnMut(usize, u64) -> Duration>,
    /// Returns the mean entries of a key.
    pub(crate) held: Box<dyn Fn() -> f64>,
}

/// Fills a limiter for a workload.
pub(crate) fn prepare<L: Library>(requested: &Requested) -> Prepared {
    let requested = requested.clone();
    let Workload { denied, entries, order, .. } = requested.workload;
    let policy = Policy::new(requested.workload.limits.iter().copied()).expect("the limits are valid");
    if order == Order::Fresh {
        let run = move |_, count| {
            let (keys, count) = (&requested.keys, count as usize);
            let mut elapsed = Duration::ZERO;
            for from in (0..count).step_by(keys.len()) {
                let library = L::with(&policy);
                let start = Instant::now();
                for key in &keys[..keys.len().min(count - from)] {
                    assert!(library.allows(key), "{} on {key}", L::NAME);
                }
                elapsed += start.elapsed();
            }
            elapsed
        };
        return Prepared { run: Box::new(run), held: Box::new(|| 0.0) };
    }
    let entries = entries.unwrap_or(if denied { only_limit(&policy).0 } else { 1 });
    let library = Arc::new(L::filled(&policy, &requested.keys, entries, !denied));
    let (held_by, keys, mut from) = (Arc::clone(&library), Arc::clone(&requested.keys), 0);
    let run = move |threads, count| {
        from += count as usize;
        requested.run(&*library, from, count, threads)
    };
    let held = move || keys.iter().map(|key| held_by.entries(key)).sum::<usize>() as f64 / keys.len() as f64;
    Prepared { run: Box::new(run), held: Box::new(held) }
}
