//! The numbers that Rust and the scripts share.
//!
//! `lua/README.md` describes the formats. `NUMBERS` are the names by which the scripts use these numbers.

use limiter_core::{Timestamp, Window};

/// Defines numbers, and lists them for the scripts.
macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $type = $value;)*

        /// The numbers by their names.
        pub(crate) const NUMBERS: &[(&str, u64)] = &[$((stringify!($name), $name as u64)),*];
    };
}

numbers! {
    // The kind of an operation.
    ACQUIRE: u8 = 1;
    ATTEMPT: u8 = 2;
    RECORD: u8 = 3;
    PEEK: u8 = 4;
    // The form of a request, a sum.
    RESOLUTION: u8 = 1;
    CALLER_ID: u8 = 2;
    // Of one of several operations, a sum: it never denies; it appends even if it is denied.
    ADVISORY: u8 = 1;
    KEPT: u8 = 2;

    // The code of a reply, a sum.
    ADMITTED: u8 = 1;
    /// In the reply to a settlement.
    APPLIED: u8 = 1;
    APPENDED: u8 = 2;
    REPEATED: u8 = 4;
    EMPTY: u8 = 8;
    REFUNDABLE: u8 = 16;
    /// Ends a reply with the clock alone: nothing was appended, because the deadline had passed.
    LATE: u8 = 127;
    /// Begins an error in place of a reply. No reply begins with it.
    FAILED: u8 = 128;

    // Bytes of requests, and the place of the deadline counted from 1.
    OWN_ID_LEN: usize = 6;
    CALLER_ID_LEN: usize = 16;
    LIMIT_LEN: usize = 2 * 7;
    DEADLINE_PLACE: usize = 4;
    /// Before the id: the ttl code is the last of it, and the first part of the store's id.
    OP_HEAD_LEN: usize = 3 + 7 + 7 + 2;
    OWN_HEAD_LEN: usize = OP_HEAD_LEN + OWN_ID_LEN - 2;
    CALLER_HEAD_LEN: usize = OP_HEAD_LEN + CALLER_ID_LEN;
    SETTLE_HEAD_LEN: usize = CALLER_ID_LEN + 3 * 7;
    RENEW_HEAD_LEN: usize = CALLER_ID_LEN + 2 * 7 + 4;

    // Times and expiries.
    /// The first time that is out of range.
    TIME_END: u64 = Timestamp::MAX.as_micros() + 1;
    /// Subtracted from a time in an entry, so that it is a negative number of seven bytes.
    TIME_BIAS: u64 = TIME_END;
    /// A ttl code is `TTL_CELLS * k + n` for `n` cells of 2^`k` microseconds.
    TTL_CELLS: u64 = 64;
    /// How much longer a key is kept whose last append had a given time.
    GIVEN_TIME_GRACE_MS: u64 = 60_000;

    // Bytes of entries, without the cost; places are counted from 1.
    SHORT_LEN: usize = 7 + 5 + 6 + 2 + OWN_ID_LEN;
    SHORT_COST_LEN: usize = SHORT_LEN + 7;
    SHORT_AGE_PLACE: usize = 1 + 7 + 5;
    SHORT_TTL_PLACE: usize = SHORT_LEN - 5;
    SHORT_FLAGS_PLACE: usize = SHORT_LEN - 3;
    LONG_LEN: usize = 7 + 2 + 7 + 1 + OWN_ID_LEN;
    LONG_COST_LEN: usize = LONG_LEN + 7;
    LONG_CALLER_LEN: usize = LONG_LEN - OWN_ID_LEN + 2 + CALLER_ID_LEN;
    LONG_TOTAL_PLACE: usize = 1 + 7 + 2;
    LONG_FLAGS_PLACE: usize = LONG_TOTAL_PLACE + 7;
    LONG_TTL_PLACE: usize = LONG_FLAGS_PLACE + 1;
    /// The member that finds a caller's id.
    ID_MEMBER_LEN: usize = 1 + CALLER_ID_LEN;

    // What entries hold.
    SHORT_TOTAL_END: u64 = 1 << 39;
    AGE_END: u64 = 1 << 48;
    SUM_MAX: u16 = u16::MAX;
    TOTAL_END: u64 = 1 << 53;
    LONG_BYTE: u64 = 1 << 7;
    LONG_BIT: u64 = 1 << 15;
    LAP_START: u64 = LONG_BIT + 1;
    LAP_END: u64 = 0xff << 8;
    MAX_COST: u64 = limiter_core::MAX_COST;
    // The flags of an entry, a sum; a merged one has all.
    HOLDS_IDS: u64 = 8;
    NO_EXPIRY: u64 = 16;
    RENEWED: u64 = 32;
    FINAL: u64 = 64;
    DENIED: u64 = 128;
    MERGED: u64 = 255;
    /// The flag in the last 32 bits of a short entry.
    DENIED_ID: u64 = DENIED << 24;

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

/// Returns a window, rounded up, from which the scripts compute when a key expires.
///
/// `TTL_CELLS * k + n` stands for `n` times 2^`k` microseconds. `n` is from 17 to 32 unless the window is shorter.
pub(crate) fn ttl_code(window: Window) -> u16 {
    let micros = window.as_micros();
    let mut k = 0;
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
            let cells = code % 64;
            let cell = 1 << (code / 64);
            assert!(cells * cell >= micros && cells <= 32, "{micros}");
            // The script also rounds the time up to a cell.
            let most = (cells + 1) * cell - micros;
            assert!(code < 64 || 8 * most <= micros, "{micros}: {most} more");
        }
    }
}
