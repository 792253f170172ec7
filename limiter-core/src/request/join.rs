//! Runs futures concurrently, without a runtime.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::{mem, vec};

use crate::clock::BoxFuture;

/// Runs futures, at most `width` at a time, and collects their outputs in the order in which they complete.
///
/// Starts the futures in order. Polls only those that were woken.
pub(super) struct Join<'a, T> {
    waiting: vec::IntoIter<BoxFuture<'a, T>>,
    running: Vec<Slot<'a, T>>,
    width: usize,
    outputs: Vec<T>,
    ready: Arc<Ready>,
}

struct Slot<'a, T> {
    /// `None` once all futures of this slot are done.
    future: Option<BoxFuture<'a, T>>,
    wake: Arc<WakeSlot>,
}

/// The slots to poll, and the waker of the whole.
#[derive(Default)]
struct Ready(Mutex<(Vec<usize>, Option<Waker>)>);

impl Ready {
    fn lock(&self) -> MutexGuard<'_, (Vec<usize>, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct WakeSlot {
    ready: Arc<Ready>,
    slot: usize,
    is_queued: AtomicBool,
}

impl Wake for WakeSlot {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let waker = {
            let mut ready = self.ready.lock();
            ready.0.push(self.slot);
            ready.1.take()
        };
        // Outside the lock: a waker may run anything.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<'a, T> Join<'a, T> {
    pub(super) fn new(futures: Vec<BoxFuture<'a, T>>, width: usize) -> Self {
        let outputs = Vec::with_capacity(futures.len());
        Self { waiting: futures.into_iter(), running: Vec::new(), width, outputs, ready: Arc::default() }
    }

    /// Polls the future of a slot, and those that follow it in the slot.
    fn poll_slot(&mut self, number: usize) {
        let Some(slot) = self.running.get_mut(number) else { return };
        // Before the poll, so that a wake during the poll is not lost.
        slot.wake.is_queued.store(false, Ordering::Release);
        let waker = Waker::from(Arc::clone(&slot.wake));
        while let Some(future) = &mut slot.future {
            let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) else { return };
            self.outputs.push(output);
            slot.future = self.waiting.next();
        }
    }
}

// The outputs are never pinned.
impl<T> Unpin for Join<'_, T> {}

impl<T> Future for Join<'_, T> {
    type Output = Vec<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<T>> {
        let woken = {
            let mut ready = self.ready.lock();
            ready.1 = Some(context.waker().clone());
            mem::take(&mut ready.0)
        };
        for slot in woken {
            self.poll_slot(slot);
        }
        while self.running.len() < self.width
            && let Some(future) = self.waiting.next()
        {
            let (slot, ready) = (self.running.len(), Arc::clone(&self.ready));
            let wake = Arc::new(WakeSlot { ready, slot, is_queued: AtomicBool::new(true) });
            self.running.push(Slot { future: Some(future), wake });
            self.poll_slot(slot);
        }
        if self.running.iter().all(|slot| slot.future.is_none()) {
            return Poll::Ready(mem::take(&mut self.outputs));
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Completes after `left` polls, each of which wakes it.
    struct Countdown<'a> {
        left: usize,
        polls: &'a AtomicUsize,
        running: &'a AtomicUsize,
        most: &'a AtomicUsize,
        started: bool,
    }

    impl Future for Countdown<'_> {
        type Output = usize;

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<usize> {
            self.polls.fetch_add(1, Ordering::Relaxed);
            if !mem::replace(&mut self.started, true) {
                self.most.fetch_max(self.running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            if self.left == 0 {
                self.running.fetch_sub(1, Ordering::Relaxed);
                return Poll::Ready(0);
            }
            self.left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }
    }

    #[test]
    fn polls_what_was_woken_and_no_more_at_a_time_than_it_should() {
        let [polls, running, most] = [const { AtomicUsize::new(0) }; 3];
        for (count, width) in [(0, 4), (1, 4), (4, 4), (100, 4), (3, 100)] {
            for counter in [&polls, &running, &most] {
                counter.store(0, Ordering::Relaxed);
            }
            let futures = (0..count).map(|n| -> BoxFuture<'_, usize> {
                let (polls, running, most) = (&polls, &running, &most);
                Box::pin(Countdown { left: n % 5, polls, running, most, started: false })
            });
            let outputs = futures::executor::block_on(Join::new(futures.collect(), width));
            assert_eq!(outputs.len(), count);
            assert_eq!(polls.load(Ordering::Relaxed), (0..count).map(|n| n % 5 + 1).sum::<usize>());
            assert!(most.load(Ordering::Relaxed) <= width.min(count));
        }
    }

    #[test]
    fn wakes_from_other_threads_are_not_lost() {
        use futures::channel::oneshot;
        for _ in 0..200 {
            let (senders, receivers): (Vec<_>, Vec<_>) = (0..20).map(|_| oneshot::channel::<usize>()).unzip();
            let thread = std::thread::spawn(move || {
                for (n, sender) in senders.into_iter().enumerate().rev() {
                    sender.send(n).unwrap();
                }
            });
            let futures = receivers.into_iter().map(|one| -> BoxFuture<'_, _> { Box::pin(one) });
            let mut outputs = futures::executor::block_on(Join::new(futures.collect(), 20));
            outputs.sort_unstable_by_key(|output| *output.as_ref().unwrap());
            assert_eq!(outputs, (0..20).map(Ok).collect::<Vec<_>>());
            thread.join().unwrap();
        }
    }
}
