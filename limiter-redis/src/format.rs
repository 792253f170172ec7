//! The numbers that Rust and the scripts share.
//!
//! `lua/prelude.lua` describes an entry, `lua/apply_fast.lua` a request and a reply. [`PLACEHOLDERS`] are the names by which the
//! scripts use these numbers: `$TIME_BIAS` in a script becomes 9007199254740992 when it is loaded.

use limiter_core::store::Merging;
use limiter_core::{Timestamp, Window};

/// Defines numbers, and lists them for the scripts.
macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$doc])* pub(crate) const $name: $type = $value;)*

        /// The numbers by their names.
        pub(crate) const PLACEHOLDERS: &[(&str, u64)] = &[$((stringify!($name), $name as u64)),*];
    };
}

numbers! {
    // The kind of an operation.
    ACQUIRE: u8 = 1;
    ATTEMPT: u8 = 2;
    RECORD: u8 = 3;
    PEEK: u8 = 4;
    /// Added to the kind for each limit of the limiter's default policy.
    KINDS: u8 = 8;

    // The bits of the code that a reply begins with.
    ADMITTED: u8 = 1;
    /// In the reply to a settlement.
    APPLIED: u8 = 1;
    APPENDED: u8 = 2;
    REPEATED: u8 = 4;
    /// Nothing was appended, because the deadline had passed.
    LATE: u8 = 8;
    EMPTY: u8 = 16;
    SHORT: u8 = 32;
    REFUNDABLE: u8 = 64;
    /// Begins an error's text, in place of one of several replies.
    FAILED: u8 = 128;

    // The flags of one of several operations: it denies nothing; it appends whatever the others do.
    ADVISORY: u8 = 1;
    KEPT: u8 = 2;

    /// The bytes of an id that the store makes: a ttl code and 32 bits, of which the first two are 0.
    OWN_ID_LEN: usize = 6;
    /// The bit of the last 32 that a short entry sets if it was denied.
    DENIED_ID: u32 = 1 << 31;
    DENIED_BYTE: u32 = DENIED_ID >> 24;
    /// The bit of the last 32 that a short entry sets if it was admitted, but is not refundable.
    FINAL_ID: u32 = 1 << 30;
    FINAL_BYTE: u32 = FINAL_ID >> 24;
    /// The bytes of a caller's id.
    CALLER_ID_LEN: usize = 16;
    /// The bytes before the id in an operation: its kind, deadline and cost.
    OP_HEAD_LEN: usize = 1 + 7 + 7;
    /// The bytes before the limits in an operation with the store's id.
    OWN_HEAD_LEN: usize = OP_HEAD_LEN + OWN_ID_LEN;
    OWN_HEAD_REST: usize = OWN_HEAD_LEN % LIMIT_LEN;
    /// The bytes before the limits in a settlement: an id, two times and a cost.
    SETTLE_HEAD_LEN: usize = CALLER_ID_LEN + 3 * 7;
    /// The bytes of a limit in a request: its window and its maximum.
    LIMIT_LEN: usize = 14;

    /// A ttl code is `TTL_CELLS * k + n` for `n` cells of 2^`k` microseconds.
    TTL_CELLS: u64 = 64;
    /// The first time that is out of range.
    TIME_END: u64 = Timestamp::MAX.as_micros() + 1;
    /// Subtracted from a time in an entry, so that it is a negative number of seven bytes.
    TIME_BIAS: u64 = TIME_END;
    /// The first byte of the earliest time in an entry. Only entries begin with this byte or a higher one.
    FIRST_TIME_BYTE: u64 = (TIME_BIAS.wrapping_neg() >> 48) & 0xff;

    /// The bytes of a short entry of cost 1: time, running total, age, sum and id.
    SHORT_LEN: usize = 7 + 5 + 6 + 2 + OWN_ID_LEN;
    SHORT_COST_LEN: usize = SHORT_LEN + 7;
    /// The bytes of a long entry of cost 1 with the store's id: time, running total, tag and id.
    LONG_LEN: usize = 7 + 9 + 1 + OWN_ID_LEN;
    LONG_COST_LEN: usize = LONG_LEN + 7;
    /// The bytes of a long entry of cost 1 with a caller's id.
    LONG_CALLER_LEN: usize = 7 + 9 + 1 + CALLER_ID_LEN;
    /// The bytes of the member that finds a caller's id: `i` and the id.
    ID_MEMBER_LEN: usize = 1 + CALLER_ID_LEN;

    // A short entry has a running total of 39 bits, so that the first bit of its five bytes is 0 and sets it apart from a long
    // one, an age of six bytes, and a sum of two.
    SHORT_TOTAL_END: u64 = 1 << 39;
    AGE_END: u64 = 1 << 48;
    SUM_MAX: u16 = u16::MAX;
    // A long entry has a running total of 23 high bits behind a bit that is set, and 48 low bits.
    LONG_BYTE: u64 = 1 << 7;
    LONG_BIT: u64 = 1 << 23;
    HIGH_END: u64 = 1 << 23;
    LOW_END: u64 = 1 << 48;
    FALL_FROM: u64 = (1 << 22) + (1 << 21);
    FALL: u64 = 1 << 22;
    /// The most units that a reply reports. A larger number may not be exact in Lua.
    USED_MAX: u64 = 1 << 53;
    MAX_COST: u64 = limiter_core::MAX_COST;
    /// How long a log with named entries keeps them apart, in microseconds.
    TEN_MINUTES: u64 = Merging::NAMED_FOR.as_micros();
    // The marks of an entry in its tag.
    NAMED: u64 = 16;
    NAMED_BEFORE: u64 = 32;
    /// The bit in an entry's tag if it was admitted, but is not refundable.
    FINAL: u64 = 64;
    /// The bytes before the boundaries in an operation's windows.
    WINDOWS_HEAD_LEN: usize = 1 + 3 * 7;
    /// The bytes of a boundary: its age, the next window and a resolution.
    BOUNDARY_LEN: usize = 3 * 7;
    /// How much longer a key is kept whose last append had a given time.
    GIVEN_TIME_GRACE_MS: u64 = 60_000;
    // A repetition looks for the entry of an earlier attempt from this long before that was sent, among at most this number.
    REPEAT_SLACK_MICROS: u64 = 1_000_000;
    REPEAT_SEARCH_MAX: u64 = 128;
    // How many members one command reads or writes.
    BATCH: u64 = 64;
    FIND_BATCH: u64 = 8;
    READ_BATCH: u64 = 512;
    REWRITE_BATCH: u64 = 16;
    PRUNE_BATCH: u64 = 64;
}

// The fast path recognises a request without a caller's id by its length.
const _: () = assert!(OWN_ID_LEN < CALLER_ID_LEN && CALLER_ID_LEN < OWN_ID_LEN + LIMIT_LEN);

/// Returns a window, rounded up, as `expiry` in `prelude.lua` reads it.
///
/// `TTL_CELLS * k + n` stands for `n` times 2^`k` microseconds. `n` is from 17 to 32 unless the window is shorter.
pub(crate) fn ttl_code(window: Window) -> u16 {
    let (micros, mut k) = (window.as_micros(), 0);
    while micros.div_ceil(1 << k) > 32 {
        k += 1;
    }
    u16::try_from(TTL_CELLS * k + micros.div_ceil(1 << k)).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_kept_for_its_window_and_an_eighth_more_at_most() {
        let windows = (0..53)
            .flat_map(|k| [(1_u64 << k) - 1, 1 << k, (1 << k) + 1])
            .chain([Window::MAX.as_micros()]);
        for micros in windows.filter(|micros| *micros > 0) {
            let code = u64::from(ttl_code(Window::from_micros(micros).unwrap()));
            let (cells, cell) = (code % 64, 1 << (code / 64));
            assert!(cells * cell >= micros && cells <= 32, "{micros}");
            // The script also rounds the time up to a cell.
            let most = (cells + 1) * cell - micros;
            assert!(code < 64 || 8 * most <= micros, "{micros}: {most} more");
        }
    }
}
