//! The parser of limits and windows. `policy!` and `FromStr` share it, so it consists of `const` functions.

use std::time::Duration;

use crate::policy::Policy;
use crate::policy::bounds::{MAX_LIMITS, OutOfRange};
use crate::policy::limit::Limit;
use crate::policy::time::Window;

/// The units, longest first: length in microseconds, and names. `Display` prints the first name.
pub(crate) const UNITS: [(u64, &[&str]); 6] = [
    (86_400_000_000, &["d", "day", "days"]),
    (3_600_000_000, &["h", "hour", "hours", "hr"]),
    (60_000_000, &["m", "minute", "minutes", "min"]),
    (1_000_000, &["s", "second", "seconds", "sec"]),
    (1_000, &["ms", "millisecond", "milliseconds"]),
    (1, &["us", "µs", "μs", "microsecond", "microseconds"]),
];

/// A parse error, and the part of the text that it is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParseError<'a> {
    pub(crate) reason: Reason,
    pub(crate) found: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Reason {
    NoLimit,
    NoNumber,
    NoUnit,
    NumberTooLarge,
    OutOfRange(OutOfRange),
    TooManyLimits,
}

impl Reason {
    /// The message without numbers, which a `const` function cannot format.
    pub(crate) const fn expected(self) -> &'static str {
        match self {
            Self::NoLimit => "expected MAX/WINDOW, as in 100/60s or 100 per minute",
            Self::NoNumber => "expected a whole number",
            Self::NoUnit => "expected a whole number and a unit of us, ms, s, m, h or d, as in 60s",
            Self::NumberTooLarge => {
                "the number is out of range: expected 1 to 2^52 units within 1 to 2^53 - 1 µs"
            }
            Self::OutOfRange(error) => error.expected(),
            Self::TooManyLimits => "expected at most 8 limits",
        }
    }
}

const fn error<T>(found: &[u8], reason: Reason) -> Result<T, ParseError<'_>> {
    Err(ParseError { reason, found })
}

const fn in_range<T: Copy>(text: &[u8], value: Result<T, OutOfRange>) -> Result<T, ParseError<'_>> {
    match value {
        Ok(value) => Ok(value),
        Err(out_of_range) => error(text, Reason::OutOfRange(out_of_range)),
    }
}

/// The operator `?`, which a `const` function cannot use.
macro_rules! tri {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return Err(error),
        }
    };
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// Returns the parts before and after the first `separator`.
const fn split<'a>(text: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let mut at = 0;
    while at + separator.len() <= text.len() {
        let (before, rest) = text.split_at(at);
        let (found, after) = rest.split_at(separator.len());
        if equal(found, separator) {
            return Some((before, after));
        }
        at += 1;
    }
    None
}

const fn number(text: &[u8]) -> Result<u64, ParseError<'_>> {
    let mut at = 0;
    let mut number = 0_u64;
    while at < text.len() {
        if !text[at].is_ascii_digit() {
            return error(text, Reason::NoNumber);
        }
        number = match number.checked_mul(10) {
            Some(tens) if tens <= u64::MAX - 9 => tens + (text[at] - b'0') as u64,
            _ => return error(text, Reason::NumberTooLarge),
        };
        at += 1;
    }
    if text.is_empty() {
        error(text, Reason::NoNumber)
    } else {
        Ok(number)
    }
}

/// Parses a window, such as `"60s"`, `"1 minute"`, `"minute"` or `"250ms"`.
pub(crate) const fn window(text: &[u8]) -> Result<Window, ParseError<'_>> {
    let text = text.trim_ascii();
    in_range(text, Window::from_micros(tri!(micros(text))))
}

/// Parses a number and a unit.
const fn micros(text: &[u8]) -> Result<u64, ParseError<'_>> {
    let mut digits = 0;
    while digits < text.len() && text[digits].is_ascii_digit() {
        digits += 1;
    }
    let (count, name) = text.split_at(digits);
    let count = if count.is_empty() {
        1
    } else {
        tri!(number(count))
    };
    let mut unit = 0;
    while unit < UNITS.len() {
        let (length, names) = UNITS[unit];
        let mut i = 0;
        while i < names.len() {
            if equal(name.trim_ascii(), names[i].as_bytes()) {
                return match count.checked_mul(length) {
                    Some(micros) => Ok(micros),
                    None => error(text, Reason::NumberTooLarge),
                };
            }
            i += 1;
        }
        unit += 1;
    }
    error(text, Reason::NoUnit)
}

/// Parses a limit, such as `"100/60s"`, `"100 per minute"`, `"1000000/30d~1h"` or `"9/1h~10s+1s"`.
pub(crate) const fn limit(text: &[u8]) -> Result<Limit, ParseError<'_>> {
    let text = text.trim_ascii();
    let (max, rest) = match (split(text, b"/"), split(text, b" per ")) {
        (Some(parts), _) | (None, Some(parts)) => parts,
        (None, None) => return error(text, Reason::NoLimit),
    };
    let max = tri!(number(max.trim_ascii()));
    let (rest, lease) = option(rest, b"+");
    let (length, resolution) = option(rest, b"~");
    let mut limit = tri!(in_range(
        text,
        Limit::with_window(max, tri!(window(length)))
    ));
    if let Some(text) = resolution {
        let resolution = Duration::from_micros(tri!(micros(text)));
        limit = tri!(in_range(text, limit.with_resolution(resolution)));
    }
    if let Some(text) = lease {
        let lease = Duration::from_micros(tri!(micros(text)));
        limit = tri!(in_range(text, limit.with_lease(lease)));
    }
    Ok(limit)
}

/// Returns the part before the first `sign`, and the one after it, if there is one.
const fn option<'a>(text: &'a [u8], sign: &[u8]) -> (&'a [u8], Option<&'a [u8]>) {
    match split(text, sign) {
        Some((before, after)) => (before, Some(after.trim_ascii())),
        None => (text, None),
    }
}

/// Parses the literal of `policy!`.
///
/// # Panics
/// If the text is malformed. `policy!` calls this in a `const` block, so the panic is a compile error.
#[allow(
    clippy::panic,
    reason = "`policy!` calls it in a const block, so the panic is a compile error"
)]
#[must_use]
pub const fn policy_from_literal(text: &str) -> Policy {
    match limits(text.as_bytes()) {
        Ok((limits, count)) => Policy::from_checked(limits, count),
        Err(error) => panic!("{}", error.reason.expected()),
    }
}

/// Parses limits separated by commas, such as `"3/1s, 100/1h"`. Returns them at the front of the array, and their number.
pub(crate) const fn limits(text: &[u8]) -> Result<([Limit; MAX_LIMITS], usize), ParseError<'_>> {
    let all = text;
    let mut limits = [Limit::UNUSED; MAX_LIMITS];
    let mut count = 0;
    let mut rest = Some(text);
    while let Some(text) = rest {
        let (next, after) = match split(text, b",") {
            Some((next, after)) => (next, Some(after)),
            None => (text, None),
        };
        if count == MAX_LIMITS {
            return error(text, Reason::TooManyLimits);
        }
        limits[count] = tri!(limit(next));
        (count, rest) = (count + 1, after);
    }
    tri!(in_range(all, Limit::check_resolutions(&limits)));
    Ok((limits, count))
}
