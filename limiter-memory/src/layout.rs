//! How an entry is laid out in a ring.

/// The words of an entry: those from the `i`-th on.
pub(crate) trait Layout {
    const WORDS: usize;
    /// Whether the entries have costs of their own; they all cost 1 if not.
    const COSTS: bool;
    /// How much a log may hold, and how old an entry may be beside the newest.
    const RANGE: u64;
    const FORM: Form;

    /// How much older the entry is than the newest, given the newest one's time.
    fn age(words: &[u32], i: usize, newest: u64) -> u64;
    /// The cost of this entry and all before it, modulo [`RANGE`](Self::RANGE) + 1.
    fn total(words: &[u32], i: usize) -> u64;
    fn write(words: &mut [u32], i: usize, at: u64, total: u64);
}

/// Which layout a ring has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Narrow,
    Wide,
    NarrowCosts,
    WideCosts,
}

/// The low half of the time: for windows of up to 71 minutes.
pub(crate) enum Narrow {}

/// The time.
pub(crate) enum Wide {}

/// The low half of the time and the total.
pub(crate) enum NarrowCosts {}

/// The time and the total.
pub(crate) enum WideCosts {}

#[inline(always)]
fn word(words: &[u32], i: usize) -> u32 {
    words.get(i).copied().unwrap_or_default()
}

#[inline(always)]
fn double(words: &[u32], i: usize) -> u64 {
    u64::from(word(words, i)) | u64::from(word(words, i + 1)) << 32
}

#[inline(always)]
fn set(words: &mut [u32], i: usize, value: u32) {
    if let Some(word) = words.get_mut(i) {
        *word = value;
    }
}

#[inline(always)]
fn set_double(words: &mut [u32], i: usize, value: u64) {
    set(words, i, value as u32);
    set(words, i + 1, (value >> 32) as u32);
}

impl Layout for Narrow {
    const WORDS: usize = 1;
    const COSTS: bool = false;
    const RANGE: u64 = u32::MAX as u64;
    const FORM: Form = Form::Narrow;

    #[inline(always)]
    fn age(words: &[u32], i: usize, newest: u64) -> u64 {
        u64::from((newest as u32).wrapping_sub(word(words, i)))
    }

    #[inline(always)]
    fn total(_: &[u32], _: usize) -> u64 {
        0
    }

    #[inline(always)]
    fn write(words: &mut [u32], i: usize, at: u64, _: u64) {
        set(words, i, at as u32);
    }
}

impl Layout for Wide {
    const WORDS: usize = 2;
    const COSTS: bool = false;
    const RANGE: u64 = u64::MAX;
    const FORM: Form = Form::Wide;

    #[inline(always)]
    fn age(words: &[u32], i: usize, newest: u64) -> u64 {
        newest.wrapping_sub(double(words, i))
    }

    #[inline(always)]
    fn total(_: &[u32], _: usize) -> u64 {
        0
    }

    #[inline(always)]
    fn write(words: &mut [u32], i: usize, at: u64, _: u64) {
        set_double(words, i, at);
    }
}

impl Layout for NarrowCosts {
    const WORDS: usize = 2;
    const COSTS: bool = true;
    const RANGE: u64 = u32::MAX as u64;
    const FORM: Form = Form::NarrowCosts;

    #[inline(always)]
    fn age(words: &[u32], i: usize, newest: u64) -> u64 {
        u64::from((newest as u32).wrapping_sub(word(words, i)))
    }

    #[inline(always)]
    fn total(words: &[u32], i: usize) -> u64 {
        u64::from(word(words, i + 1))
    }

    #[inline(always)]
    fn write(words: &mut [u32], i: usize, at: u64, total: u64) {
        set(words, i, at as u32);
        set(words, i + 1, total as u32);
    }
}

impl Layout for WideCosts {
    const WORDS: usize = 4;
    const COSTS: bool = true;
    const RANGE: u64 = u64::MAX;
    const FORM: Form = Form::WideCosts;

    #[inline(always)]
    fn age(words: &[u32], i: usize, newest: u64) -> u64 {
        newest.wrapping_sub(double(words, i))
    }

    #[inline(always)]
    fn total(words: &[u32], i: usize) -> u64 {
        double(words, i + 2)
    }

    #[inline(always)]
    fn write(words: &mut [u32], i: usize, at: u64, total: u64) {
        set_double(words, i, at);
        set_double(words, i + 2, total);
    }
}
