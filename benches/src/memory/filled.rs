//! A limiter with a workload.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use super::libraries::Library;
use super::limits::{Limits, only_limit};
use super::workload::{Requests, Workload};

/// A filled limiter: its entries are spread over the past window, or use up the quota.
pub struct Filled {
    name: &'static str,
    limiter: Box<dyn Limits>,
    requests: Requests,
    from: usize,
}

impl Filled {
    /// Fills a limiter for a workload.
    #[must_use]
    pub fn new(library: Library, requests: &Requests) -> Self {
        let policy = requests.policy();
        let requests = requests.clone();
        let (limiter, (max, window)) = ((library.limiter)(&policy), only_limit(&policy));
        let Workload {
            denied, entries, ..
        } = requests.workload;
        for key in requests.keys.iter() {
            if denied {
                (0..entries.unwrap_or(max)).for_each(|_| _ = limiter.allows(key));
            } else {
                limiter.append_past(key, entries.unwrap_or(1), window);
            }
        }
        Self {
            name: library.name,
            limiter,
            requests,
            from: 0,
        }
    }

    /// Makes `count` requests on all threads. Returns the longest duration of any thread.
    pub fn run(&mut self, count: u64) -> Duration {
        let count = count as usize;
        let threads = self.requests.workload.threads;
        self.from += count;
        let barrier = Barrier::new(threads);
        let this = &*self;
        let run = |thread| {
            barrier.wait();
            this.run_from(
                this.from + thread * this.requests.order.len() / threads,
                count.div_ceil(threads),
            )
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads)
                .map(|thread| scope.spawn(move || run(thread)))
                .collect();
            let own = run(0);
            others.into_iter().fold(own, |most, other| {
                most.max(other.join().expect("no answer is unexpected"))
            })
        })
    }

    fn run_from(&self, from: usize, count: usize) -> Duration {
        let (elapsed, unexpected) = self.limiter.time(&self.requests, from, count);
        // A library that does not clamp time may deny a thread that was preempted after it read the clock.
        let tolerated = if self.requests.workload.threads == 1 {
            0
        } else {
            count / 50
        };
        let name = self.name;
        assert!(
            unexpected <= tolerated,
            "{name}: {unexpected} of {count} answers were not as expected"
        );
        elapsed
    }

    /// Returns the mean entries of a key.
    pub(super) fn held(&self) -> f64 {
        let keys = &self.requests.keys;
        keys.iter()
            .map(|key| self.limiter.entries(key))
            .sum::<usize>() as f64
            / keys.len() as f64
    }
}
