//! The floor of a cell: a program that touches only what any exact log must touch.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use foldhash::fast::RandomState;
use limiter_core::Policy;

use super::library::Library;

/// Reads the clock, hashes the key, probes a table of cache lines, reads the oldest entry and, unless the limit is used up,
/// overwrites it with the newest. It has no lock, no window and no decision. Logs of up to four entries lie in the slot.
pub(crate) struct Floor {
    clock: quanta::Clock,
    seed: RandomState,
    slots: Box<[Slot]>,
    /// The entries of all keys. Each has `room` of them, a power of two.
    entries: Box<[AtomicU32]>,
    room: usize,
    allowed: bool,
}

#[derive(Default)]
#[repr(align(64))]
struct Slot {
    key: Option<[u8; 16]>,
    /// The index of the key, and of its block in `entries`.
    block: usize,
    number: AtomicU64,
    inline: [AtomicU32; INLINE],
}

const INLINE: usize = 4;

impl Floor {
    /// Returns the position of a key's slot, or of the vacant one in which it belongs.
    #[inline(always)]
    fn position(&self, key: &[u8; 16]) -> usize {
        let mask = self.slots.len() - 1;
        let mut hasher = self.seed.build_hasher();
        hasher.write(key);
        let mut at = hasher.finish() as usize & mask;
        while self.slots[at].key.is_some_and(|other| other != *key) {
            at = (at + 1) & mask;
        }
        at
    }
}

impl Library for Floor {
    const NAME: &str = "floor";

    fn with(policy: &Policy) -> Self {
        Self::filled(policy, &[], 1, true)
    }

    fn filled(_: &Policy, keys: &[String], entries: u32, allowed: bool) -> Self {
        let room = (entries as usize).next_power_of_two();
        let slots = (keys.len() * 4 / 3 + 1).next_power_of_two();
        let outside = if room > INLINE { keys.len() * room } else { 0 };
        let mut floor = Self {
            clock: quanta::Clock::new(),
            seed: RandomState::default(),
            slots: std::iter::repeat_with(Slot::default).take(slots).collect(),
            entries: std::iter::repeat_with(AtomicU32::default).take(outside).collect(),
            room,
            allowed,
        };
        for (block, key) in keys.iter().filter_map(|key| key.as_bytes().first_chunk()).enumerate() {
            let at = floor.position(key);
            floor.slots[at].key = Some(*key);
            floor.slots[at].block = block;
        }
        floor
    }

    #[inline(always)]
    fn allows_n(&self, key: &String, _: u32) -> bool {
        let now = self.clock.raw() as u32;
        let Some(key) = key.as_bytes().first_chunk() else { return false };
        let slot = &self.slots[self.position(key)];
        let number = slot.number.load(Relaxed);
        let entry = if self.room > INLINE {
            &self.entries[slot.block * self.room + (number as usize & (self.room - 1))]
        } else {
            &slot.inline[number as usize & (self.room - 1)]
        };
        let expired = entry.load(Relaxed) != now;
        if self.allowed {
            entry.store(now, Relaxed);
            slot.number.store(number + u64::from(expired), Relaxed);
        }
        std::hint::black_box(expired);
        self.allowed
    }
}
