//! The lanes of the queue.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;

use crate::call::Call;

/// How many logs are one batch. If another process changes one of them, the whole batch begins again.
const MOST_LOGS: usize = 64;
/// How many calls are one batch, so that the first of them do not wait for all.
const MOST_CALLS: usize = 1_000;

type Keys = Vec<Vec<u8>>;

#[derive(Default)]
pub(super) struct State {
    /// The waiting calls by their numbers, which are their order.
    calls: BTreeMap<u64, Call>,
    lanes: HashMap<Vec<u8>, Lane>,
    /// Calls that were ready when they were put here.
    ready: BTreeSet<u64>,
    next: u64,
    workers: usize,
}

#[derive(Default)]
struct Lane {
    /// A batch has the log.
    is_taken: bool,
    waiting: BTreeSet<u64>,
}

impl State {
    /// Returns the number of waiting calls.
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn add(&mut self, call: Call) -> u64 {
        let number = self.next;
        self.next += 1;
        for key in &call.keys {
            let lane = self.lanes.entry(key.clone()).or_default();
            lane.waiting.insert(number);
        }
        self.calls.insert(number, call);
        self.note_if_ready(number);
        number
    }

    /// Removes a call, if it still waits.
    pub(super) fn remove(&mut self, number: u64) -> Option<Call> {
        let call = self.calls.remove(&number)?;
        for key in &call.keys {
            let Some(lane) = self.lanes.get_mut(key) else {
                continue;
            };
            lane.waiting.remove(&number);
            if lane.waiting.is_empty() && !lane.is_taken {
                self.lanes.remove(key);
            }
        }
        self.ready.remove(&number);
        self.note_first(&call.keys);
        Some(call)
    }

    /// Counts one more worker, if a call is ready and there are fewer than `most`.
    pub(super) fn hire(&mut self, most: usize) -> bool {
        let is_hired = !self.ready.is_empty() && self.workers < most.max(1);
        self.workers += usize::from(is_hired);
        is_hired
    }

    /// Counts one worker less. Returns the waiting calls if no worker is left.
    pub(super) fn lose_worker(&mut self) -> BTreeMap<u64, Call> {
        self.workers -= 1;
        if self.workers > 0 {
            return BTreeMap::new();
        }
        self.lanes.clear();
        self.ready.clear();
        mem::take(&mut self.calls)
    }

    /// Returns the next batch and its sorted logs. If there is none, counts one worker less.
    pub(super) fn take_batch(&mut self) -> Option<(Keys, Vec<Call>)> {
        let mut keys = BTreeSet::new();
        let mut calls = Vec::new();
        while let Some(number) = self.ready.pop_first() {
            if self.is_ready(number, &keys) {
                self.take(number, &mut keys, &mut calls);
                break;
            }
        }
        let Some(first) = calls.first() else {
            self.workers -= 1;
            return None;
        };
        for key in first.keys.clone() {
            while calls.len() < MOST_CALLS
                && let Some(number) = self.first(&key)
                && self.is_ready(number, &keys)
                && self.fits(number, &keys)
            {
                self.take(number, &mut keys, &mut calls);
            }
        }
        Some((keys.into_iter().collect(), calls))
    }

    /// Ends a batch.
    pub(super) fn release(&mut self, keys: &Keys) {
        for key in keys {
            match self.lanes.get_mut(key) {
                Some(lane) if !lane.waiting.is_empty() => lane.is_taken = false,
                _ => _ = self.lanes.remove(key),
            }
        }
        self.note_first(keys);
    }

    fn take(&mut self, number: u64, keys: &mut BTreeSet<Vec<u8>>, calls: &mut Vec<Call>) {
        let Some(call) = self.calls.remove(&number) else {
            return;
        };
        self.ready.remove(&number);
        for key in &call.keys {
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.waiting.remove(&number);
                lane.is_taken = true;
            }
            keys.insert(key.clone());
        }
        calls.push(call);
    }

    /// Returns the first waiting call of a lane.
    fn first(&self, key: &[u8]) -> Option<u64> {
        self.lanes.get(key)?.waiting.first().copied()
    }

    /// Returns `true` if a call is the first in all its lanes, and no batch but the one with these logs has taken one of them.
    fn is_ready(&self, number: u64, own: &BTreeSet<Vec<u8>>) -> bool {
        let is_first = |key: &Vec<u8>| {
            self.lanes.get(key).is_some_and(|lane| {
                lane.waiting.first() == Some(&number) && (!lane.is_taken || own.contains(key))
            })
        };
        self.calls
            .get(&number)
            .is_some_and(|call| call.keys.iter().all(is_first))
    }

    fn fits(&self, number: u64, keys: &BTreeSet<Vec<u8>>) -> bool {
        let is_new = |key: &&Vec<u8>| !keys.contains(*key);
        self.calls.get(&number).is_some_and(|call| {
            let more = call.keys.iter().filter(is_new).count();
            more == 0 || keys.len() + more <= MOST_LOGS
        })
    }

    fn note_first(&mut self, keys: &[Vec<u8>]) {
        for key in keys {
            if let Some(number) = self.first(key) {
                self.note_if_ready(number);
            }
        }
    }

    fn note_if_ready(&mut self, number: u64) {
        if self.is_ready(number, &BTreeSet::new()) {
            self.ready.insert(number);
        }
    }
}
