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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Form {
    /// All of the time, not only its low half.
    pub(crate) wide: bool,
    /// Totals, too.
    pub(crate) costs: bool,
}

/// The low half of the time: for windows of up to 71 minutes.
pub(crate) type Narrow = Numbers<1, false>;

/// The time.
pub(crate) type Wide = Numbers<2, false>;

/// The low half of the time, and the total.
pub(crate) type NarrowCosts = Numbers<1, true>;

/// The time and the total.
pub(crate) type WideCosts = Numbers<2, true>;

/// One number of so many words for the time, and one for the total if there are costs.
pub(crate) enum Numbers<const WORDS: usize, const COSTS: bool> {}

impl<const WORDS: usize, const COSTS: bool> Layout for Numbers<WORDS, COSTS> {
    const WORDS: usize = if COSTS { 2 * WORDS } else { WORDS };
    const COSTS: bool = COSTS;
    const RANGE: u64 = if WORDS == 1 { u32::MAX as u64 } else { u64::MAX };
    const FORM: Form = Form { wide: WORDS > 1, costs: COSTS };

    #[inline(always)]
    fn age(words: &[u32], i: usize, newest: u64) -> u64 {
        newest.wrapping_sub(number::<WORDS>(words, i)) & Self::RANGE
    }

    #[inline(always)]
    fn total(words: &[u32], i: usize) -> u64 {
        if COSTS { number::<WORDS>(words, i + WORDS) } else { 0 }
    }

    #[inline(always)]
    fn write(words: &mut [u32], i: usize, at: u64, total: u64) {
        set_number::<WORDS>(words, i, at);
        if COSTS {
            set_number::<WORDS>(words, i + WORDS, total);
        }
    }
}

#[inline(always)]
fn number<const WORDS: usize>(words: &[u32], i: usize) -> u64 {
    let word = |i| u64::from(words.get(i).copied().unwrap_or_default());
    if WORDS == 1 { word(i) } else { word(i) | word(i + 1) << 32 }
}

#[inline(always)]
fn set_number<const WORDS: usize>(words: &mut [u32], i: usize, value: u64) {
    for half in 0..WORDS {
        if let Some(word) = words.get_mut(i + half) {
            *word = (value >> (32 * half)) as u32;
        }
    }
}
