//! What goes wrong in the world.

use std::mem::swap;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

use super::World;
use crate::history::{Fault, SLOTS};
use crate::ledger::Book;

impl World {
    /// Steps the server's clock by this many microseconds.
    fn step_clock(&mut self, by: i64) {
        self.offset += by;
        self.stepped = Some(Instant::now());
        let line = self.now().line;
        for (book, policy) in self.books.iter_mut().zip(&self.policies) {
            book.step(policy, by > 0, line);
            book.release(None, line);
        }
    }

    /// Copies the server's data for the fault that this step brings.
    pub(crate) fn copy(&mut self, step: usize) {
        self.copies.push((
            step,
            self.redis.copy(),
            self.rows.clone(),
            self.memory.save(),
            self.books.clone(),
        ));
    }

    /// Begins a fault, perhaps of a process. `number` is that of its step.
    pub(crate) fn fail(
        &mut self,
        fault: Fault,
        process: usize,
        number: usize,
        length: u64,
        random: &mut Rng,
    ) {
        self.note(|| format!("fault {fault:?} for {length} ms"));
        let end = Instant::now() + Duration::from_millis(length);
        // Late messages, an outage that has to end, and windows of entries that were lost.
        self.trouble(end + Duration::from_millis(2_500));
        let loses = matches!(
            fault,
            Fault::Forget | Fault::Failover | Fault::ServerClock | Fault::ProcessClock
        );
        let loud = end + Duration::from_secs(if loses { 20 } else { 0 });
        self.loud = self.loud.max(loud);
        match fault {
            Fault::Loss => self.lossy = self.lossy.max(end),
            Fault::Delay => self.slow = self.slow.max(end),
            Fault::Stop => self.stopped = self.stopped.max(end),
            Fault::Flush => self.redis.flush_scripts(),
            Fault::Memory => self.full = self.full.max(end),
            Fault::Refused => self.refused = Some((None, end)),
            Fault::Damaged => self.refused = Some((Some(random.usize(..4)), end)),
            Fault::ServerClock => self.step_clock(random.i64(-2_000_000..2_000_000)),
            Fault::Crash | Fault::Forget | Fault::Failover => {
                self.lives += 1;
                self.dead = self.dead.max(end);
                self.redis.flush_scripts();
                // A server that ends in order saves its memory then.
                let mut saved = self.memory.save();
                if let Some(place) = self.copies.iter().position(|(step, ..)| *step == number) {
                    let (_, copy, rows, older, books) = self.copies.remove(place);
                    self.redis.restore(copy);
                    (self.rows, saved) = (rows, older);
                    self.restore(books);
                }
                self.memory.load(saved);
                if fault == Fault::Failover {
                    self.step_clock(random.i64(-50_000..50_000));
                }
            }
            Fault::CutOff => self.processes[process].cut_off = Some(end),
            Fault::Pause => self.processes[process].paused = Some(end),
            Fault::Reload => self.reload(),
            Fault::ProcessClock | Fault::Restart => {}
        }
    }

    /// Changes the default policy of the limiter that has slots.
    fn reload(&mut self) {
        if self.setting.limiters[0] != SLOTS {
            return;
        }
        let line = self.now().line;
        for log in 0..2 {
            swap(&mut self.policies[log], &mut self.own[log]);
            self.books[log].change(&self.policies[log], line);
        }
        self.reloaded = Some(Instant::now());
    }

    /// Replaces the books by those of an older copy.
    fn restore(&mut self, books: Vec<Book>) {
        let line = self.now().line;
        for ((book, mut old), policy) in self.books.iter_mut().zip(books).zip(&self.policies) {
            old.keep(book);
            old.lose(policy, line);
            old.release(None, line);
            *book = old;
        }
    }
}
