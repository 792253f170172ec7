//! A limiter with a workload.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use limiter_core::Policy;

use super::libraries::Library;
use super::limits::{Limits, only_limit};
use super::requests::Requests;
use crate::declared::memory::{Order, Workload};

/// A filled limiter: its entries are spread over the past window, or use up the quota.
pub struct Filled {
    library: Library,
    policy: Policy,
    limiter: Box<dyn Limits>,
    requests: Requests,
    from: usize,
}

impl Filled {
    /// Fills a limiter for a workload.
    #[must_use]
    pub fn new(library: Library, requests: &Requests) -> Self {
        let (policy, requests) = (requests.policy(), requests.clone());
        let (limiter, (max, window)) = ((library.limiter)(&policy), only_limit(&policy));
        let Workload { denied, entries, order, .. } = requests.workload;
        let filled: &[String] = if order == Order::Fresh { &[] } else { &requests.keys };
        for key in filled {
            if denied {
                (0..entries.unwrap_or(max)).for_each(|_| _ = limiter.allows(key));
            } else {
                limiter.append_past(key, entries.unwrap_or(1), window);
            }
        }
        Self { library, policy, limiter, requests, from: 0 }
    }

    /// Makes `count` requests, and returns the duration.
    pub fn run(&mut self, count: u64) -> Duration {
        let (count, all) = (count as usize, self.requests.workload.keys);
        if self.requests.workload.order != Order::Fresh {
            self.from += count;
            return self.run_on_all_threads(count);
        }
        let mut elapsed = Duration::ZERO;
        for done in (0..count).step_by(all) {
            self.limiter = (self.library.limiter)(&self.policy);
            elapsed += self.run_from(0, all.min(count - done));
        }
        elapsed
    }

    /// Returns the longest duration of any thread.
    fn run_on_all_threads(&self, count: usize) -> Duration {
        let threads = self.requests.workload.threads;
        let barrier = Barrier::new(threads);
        let run = |thread| {
            barrier.wait();
            self.run_from(self.from + thread * self.requests.order.len() / threads, count.div_ceil(threads))
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
            let own = run(0);
            others.into_iter().fold(own, |most, other| most.max(other.join().expect("no answer is unexpected")))
        })
    }

    fn run_from(&self, from: usize, count: usize) -> Duration {
        let (elapsed, unexpected) = self.limiter.time(&self.requests, from, count);
        // A library that does not clamp time may deny a thread that was preempted after it read the clock.
        let tolerated = if self.requests.workload.threads == 1 { 0 } else { count / 50 };
        let name = self.library.name;
        assert!(unexpected <= tolerated, "{name}: {unexpected} of {count} answers were not as expected");
        elapsed
    }

    /// Returns the mean entries of a key.
    pub(super) fn held(&self) -> f64 {
        let keys = &self.requests.keys;
        keys.iter().map(|key| self.limiter.entries(key)).sum::<usize>() as f64 / keys.len() as f64
    }
}
