//! How an entry is laid out in a ring.

use limiter_core::store::Op;

use crate::keep::retention_zeros;

/// What the words of an entry say.
pub(crate) trait Layout {
    /// An entry.
    type Words: 'static;
    const WORDS: usize = size_of::<Self::Words>() / size_of::<u32>();
    /// Whether the entries have costs of their own; they all cost 1 if not.
    const COSTS: bool;
    /// How much a log may hold, and how old an entry may be beside the newest.
    const RANGE: u64;

    fn entries(words: &mut [u32]) -> &mut [Self::Words];
    fn set_at(entry: &mut Self::Words, at: u64);
    fn set_before(entry: &mut Self::Words, before: u64);
    /// How much older the entry is than the newest, given the newest one's time.
    fn age(entry: &Self::Words, newest: u64) -> u64;
    /// The cost of all entries before this one, modulo [`RANGE`](Self::RANGE) + 1.
    fn before(entry: &Self::Words) -> u64;
}

/// Whether this layout can say the operation's entry beside entries that cost `held`.
#[inline(always)]
pub(crate) fn fits<L: Layout>(op: &Op<'_>, held: u64) -> bool {
    let cost = if L::COSTS { held.saturating_add(op.cost) <= L::RANGE } else { op.cost == 1 };
    cost && u32::from(retention_zeros(op)) >= L::RANGE.leading_zeros()
}

/// The low half of the time: for windows of up to 71 minutes.
pub(crate) type Narrow = Numbers<1, 1>;

/// The time.
pub(crate) type Wide = Numbers<2, 2>;

/// The low half of the time, and that of the total before.
pub(crate) type NarrowCosts = Numbers<2, 1>;

/// The time and the total before.
pub(crate) type WideCosts = Numbers<4, 2>;

/// So many words, the first of which are the time, and the others, if there are, as wide a total of all before.
pub(crate) enum Numbers<const WORDS: usize, const TIME: usize> {}

impl<const WORDS: usize, const TIME: usize> Layout for Numbers<WORDS, TIME> {
    type Words = [u32; WORDS];
    const COSTS: bool = WORDS > TIME;
    const RANGE: u64 = if TIME == 1 { u32::MAX as u64 } else { u64::MAX };

    #[inline(always)]
    fn entries(words: &mut [u32]) -> &mut [Self::Words] {
        words.as_chunks_mut().0
    }

    #[inline(always)]
    fn set_at(entry: &mut Self::Words, at: u64) {
        set_number(&mut entry[..TIME], at);
    }

    #[inline(always)]
    fn set_before(entry: &mut Self::Words, before: u64) {
        set_number(&mut entry[TIME..], before);
    }

    #[inline(always)]
    fn age(entry: &Self::Words, newest: u64) -> u64 {
        newest.wrapping_sub(number(&entry[..TIME])) & Self::RANGE
    }

    #[inline(always)]
    fn before(entry: &Self::Words) -> u64 {
        number(&entry[TIME..])
    }
}

#[inline(always)]
fn set_number(words: &mut [u32], number: u64) {
    for (i, word) in words.iter_mut().enumerate() {
        *word = (number >> (32 * i)) as u32;
    }
}

/// The number that the words say, of which the first is the low half.
#[inline(always)]
fn number(words: &[u32]) -> u64 {
    words.iter().rev().fold(0, |number, word| number << 32 | u64::from(*word))
}
