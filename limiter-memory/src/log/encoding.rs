//! An entry's encodings in a compact log, 4 to 16 bytes.

use std::marker::PhantomData;

use limiter_core::Timestamp;
use limiter_core::store::Op;

use super::lifetime::{Lifetime, retention_zeros};

/// The words of one entry. An entry that has a cost stores the total cost of all entries *before* it.
pub(crate) trait Encoding {
    type Entry: AsRef<[u32]> + AsMut<[u32]> + 'static;
    type Header: Header;
    const WORDS: usize = size_of::<Self::Entry>() / size_of::<u32>();
    /// How many words of an entry hold its time. The others hold the total.
    const TIME: usize;
    /// Whether entries have costs. Otherwise each costs 1.
    const COSTS: bool = Self::WORDS > Self::TIME;
    /// The largest age and the largest total cost.
    const RANGE: u64 = if Self::TIME == 1 {
        u32::MAX as u64
    } else {
        u64::MAX
    };
    /// How many words behind the entries are hints.
    const HINTS: usize;

    fn entries(words: &mut [u32]) -> &mut [Self::Entry];

    #[inline(always)]
    fn set_at(entry: &mut Self::Entry, at: u64) {
        write(&mut entry.as_mut()[..Self::TIME], at);
    }

    #[inline(always)]
    fn set_total_before(entry: &mut Self::Entry, total: u64) {
        write(&mut entry.as_mut()[Self::TIME..], total);
    }

    /// Returns how much older the entry is than the newest, whose time is an argument.
    #[inline(always)]
    fn age(entry: &Self::Entry, newest: u64) -> u64 {
        newest.wrapping_sub(read(&entry.as_ref()[..Self::TIME])) & Self::RANGE
    }

    /// Returns the total cost of all entries before this one, modulo [`RANGE`](Self::RANGE) + 1.
    #[inline(always)]
    fn total_before(entry: &Self::Entry) -> u64 {
        read(&entry.as_ref()[Self::TIME..])
    }
}

/// The range of entry numbers, which are consecutive modulo 2^32.
pub(crate) trait Header {
    /// Whether the log has more than four entries at times.
    const GROWS: bool;

    /// Returns the first entry's number.
    fn first(&self) -> u32;

    fn len(&self) -> usize;

    /// Sets the first entry's number, and how many entries there are.
    fn set_range(&mut self, first: u32, len: usize);

    fn set_newest<E: Encoding>(&mut self, at: Timestamp, kept: Lifetime);

    /// Whether the log can append the operation's entry to `len` others without a conversion, as far as the header decides.
    fn can_push<E: Encoding>(&self, op: &Op<'_>, len: usize, capacity: usize) -> bool;
}

/// An entry of `WORDS` words. The first `TIME` hold the time, the rest, if any, the total.
pub(crate) struct Words<const WORDS: usize, const TIME: usize, const HINTS: usize, H>(
    PhantomData<H>,
);

/// Whether this encoding can express the operation's entry next to entries that cost `held`.
#[inline(always)]
pub(crate) fn can_encode<E: Encoding>(op: &Op<'_>, held: u64) -> bool {
    let cost = if E::COSTS {
        held.saturating_add(op.cost) <= E::RANGE
    } else {
        op.cost == 1
    };
    cost && u32::from(retention_zeros(op)) >= E::RANGE.leading_zeros()
}

impl<const WORDS: usize, const TIME: usize, const HINTS: usize, H: Header> Encoding
    for Words<WORDS, TIME, HINTS, H>
{
    type Entry = [u32; WORDS];
    type Header = H;
    const TIME: usize = TIME;
    const HINTS: usize = HINTS;

    #[inline(always)]
    fn entries(words: &mut [u32]) -> &mut [Self::Entry] {
        words.as_chunks_mut().0
    }
}

#[inline(always)]
fn write(words: &mut [u32], number: u64) {
    for (i, word) in words.iter_mut().enumerate() {
        *word = (number >> (32 * i)) as u32;
    }
}

#[inline(always)]
fn read(words: &[u32]) -> u64 {
    words
        .iter()
        .rev()
        .fold(0, |number, word| number << 32 | u64::from(*word))
}
