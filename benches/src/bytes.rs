//! Measures memory with a counting allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::libraries::{Governor, Library, Limitador, Now, Quota, Throttlecrab, Trypema};
use crate::workload::keys;

/// The system allocator. Counts only while memory is measured. Only a flood measures times meanwhile.
#[derive(Debug)]
pub struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: usize, sign: isize) {
    if COUNTS.load(Ordering::Relaxed) {
        // The allocator adds a word and rounds up to a multiple of two words.
        let taken = (bytes + 8).next_multiple_of(16).max(32);
        BYTES.fetch_add(sign * taken as isize, Ordering::Relaxed);
    }
}

// SAFETY: forwards every call to the system allocator. Counting touches only two atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(size, 1);
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Counts the bytes taken from its start until it is asked. One at a time.
#[derive(Debug)]
pub(crate) struct Measuring {
    before: isize,
}

impl Measuring {
    pub(crate) fn start() -> Self {
        COUNTS.store(true, Ordering::Relaxed);
        Self { before: BYTES.load(Ordering::Relaxed) }
    }

    /// Returns the bytes taken and not given back.
    pub(crate) fn taken(&self) -> isize {
        BYTES.load(Ordering::Relaxed) - self.before
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        COUNTS.store(false, Ordering::Relaxed);
    }
}

/// The memory of a library with this many admitted requests per key.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Bytes {
    /// The library.
    pub library: String,
    /// Requests per key.
    pub entries: u32,
    /// Bytes per key.
    pub per_key: f64,
}

/// The numbers of requests per key.
pub const ENTRIES: [u32; 3] = [1, 10, 100];

/// Measures all libraries. The program must use [`Counting`] as its allocator.
#[must_use]
pub fn compare(count: usize) -> Vec<Bytes> {
    let all = ENTRIES.map(|entries| {
        // With 100 entries per key, a tenth of the keys gives the same precision.
        let count = if entries == 100 { count / 10 } else { count };
        vec![
            bytes::<Now>(count, entries),
            bytes::<Governor>(count, entries),
            bytes::<Trypema<1>>(count / 20, entries),
            bytes::<Trypema<100>>(count / 20, entries),
            bytes::<Limitador>(count / 20, entries),
            bytes::<Throttlecrab>(count, entries),
        ]
    });
    all.concat()
}

fn bytes<L: Library>(count: usize, entries: u32) -> Bytes {
    let keys = keys(count);
    let measuring = Measuring::start();
    let library = L::with(Quota::new(1000, Duration::from_secs(1000)));
    for _ in 0..entries {
        for key in keys.iter() {
            library.allows(key);
        }
    }
    let taken = measuring.taken();
    drop(library);
    Bytes { library: L::NAME.to_owned(), entries, per_key: taken as f64 / count as f64 }
}
