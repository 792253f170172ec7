//! Batches of rows that are read ahead.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use limiter_core::Timestamp;

use crate::trace::{Action, Row};

const ROWS: usize = 1 << 10;
const BYTES: usize = 1 << 20;

/// Some rows of a trace. All their keys share one buffer.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    keys: Vec<u8>,
    rows: Vec<BatchRow>,
}

#[derive(Debug)]
struct BatchRow {
    number: u64,
    at: Timestamp,
    action: Action,
    cost: u64,
    key: std::ops::Range<usize>,
}

impl Batch {
    /// Adds the row with this number.
    pub(crate) fn push(&mut self, number: u64, row: &Row<'_>) {
        let start = self.keys.len();
        self.keys.extend_from_slice(row.key);
        let key = start..self.keys.len();
        self.rows.push(BatchRow { number, at: row.at, action: row.action, cost: row.cost, key });
    }

    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.keys.shrink_to(2 * BYTES);
        self.rows.clear();
    }

    pub(crate) fn is_full(&self) -> bool {
        self.rows.len() >= ROWS || self.keys.len() >= BYTES
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the number of a row.
    pub(crate) fn number(&self, index: usize) -> u64 {
        self.rows[index].number
    }

    pub(crate) fn row(&self, index: usize) -> Row<'_> {
        let BatchRow { at, action, cost, key, .. } = &self.rows[index];
        Row { at: *at, key: &self.keys[key.clone()], action: *action, cost: *cost }
    }

    /// Returns every key with the indices of its rows, in the order of each key's first row.
    pub(crate) fn chains(&self) -> Vec<(&[u8], Vec<usize>)> {
        let mut chains: Vec<(&[u8], Vec<usize>)> = Vec::new();
        let mut places = HashMap::with_capacity_and_hasher(self.len(), FixedState::default());
        for index in 0..self.len() {
            let key = self.row(index).key;
            let place = *places.entry(key).or_insert(chains.len());
            match chains.get_mut(place) {
                Some((_, rows)) => rows.push(index),
                None => chains.push((key, vec![index])),
            }
        }
        chains
    }
}
