//! The parser of limits and windows. `policy!` and `FromStr` share it, so it consists of `const` functions.

use std::time::Duration;

use crate::bounds::OutOfRange;
use crate::limit::Limit;
use crate::limits::Limits;
use crate::limits::MAX_LIMITS;
use crate::time::Window;

/// The units, longest first: length in microseconds, and names. `Display` prints the first name.
pub(crate) const UNITS: [(u64, &[&str]); 6] = [
    (86_400_000_000, &["d", "day", "days"]),
    (3_600_000_000, &["h", "hour", "hours", "hr"]),
    (60_000_000, &["m", "minute", "minutes", "min"]),
    (1_000_000, &["s", "second", "seconds", "sec"]),
    (1_000, &["ms", "millisecond", "milliseconds"]),
    (1, &["us", "µs", "μs", "microsecond", "microseconds"]),
];

/// A parse error and its position in the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParseError {
    pub(crate) reason: Reason,
    pub(crate) found: Span,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Reason {
    NoLimit,
    NoNumber,
    NoUnit,
    NumberTooLarge,
    OutOfRange(OutOfRange),
    Resolution(OutOfRange),
    TooManyLimits,
}

impl Reason {
    /// The message without numbers, which a `const` function cannot format.
    pub(crate) const fn expected(self) -> &'static str {
        match self {
            Self::NoLimit => "expected MAX/WINDOW, as in 100/60s or 100 per minute",
            Self::NoNumber => "expected a whole number",
            Self::NoUnit => "expected a whole number and a unit of us, ms, s, m, h or d, as in 60s",
            Self::NumberTooLarge => "the number is out of range: expected 1 to 2^52 units within 1 to 2^53 - 1 µs",
            Self::OutOfRange(_) => "out of range: expected 1 to 2^52 units within 1 to 2^53 - 1 µs",
            Self::Resolution(_) => {
                "expected a resolution of 1, 10 or 100 us, 1, 10 or 100 ms, 1 or 10 s, 1 or 10 m, 1 or 6 h or 1 d, no \
                 longer than the window"
            }
            Self::TooManyLimits => "expected at most 8 limits",
        }
    }
}

/// The bytes `start..end` of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Span {
    const fn of(text: &[u8]) -> Self {
        Self { start: 0, end: text.len() }
    }

    const fn to(self, end: usize) -> Self {
        Self { start: self.start, end }
    }

    const fn from(self, start: usize) -> Self {
        Self { start, end: self.end }
    }

    const fn trim(mut self, text: &[u8]) -> Self {
        while self.start < self.end && text[self.start].is_ascii_whitespace() {
            self.start += 1;
        }
        while self.start < self.end && text[self.end - 1].is_ascii_whitespace() {
            self.end -= 1;
        }
        self
    }

    /// The first position of `pattern`.
    const fn find(self, text: &[u8], pattern: &[u8]) -> Option<usize> {
        let mut at = self.start;
        while at + pattern.len() <= self.end {
            if (Self { start: at, end: at + pattern.len() }).is(text, pattern) {
                return Some(at);
            }
            at += 1;
        }
        None
    }

    const fn is(self, text: &[u8], pattern: &[u8]) -> bool {
        if self.end - self.start != pattern.len() {
            return false;
        }
        let mut i = 0;
        while i < pattern.len() {
            if text[self.start + i] != pattern[i] {
                return false;
            }
            i += 1;
        }
        true
    }

    const fn error<T>(self, reason: Reason) -> Result<T, ParseError> {
        Err(ParseError { reason, found: self })
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

const fn number(text: &[u8], span: Span) -> Result<u64, ParseError> {
    let (mut at, mut number) = (span.start, 0_u64);
    while at < span.end {
        if !text[at].is_ascii_digit() {
            return span.error(Reason::NoNumber);
        }
        number = match number.checked_mul(10) {
            Some(tens) if tens <= u64::MAX - 9 => tens + (text[at] - b'0') as u64,
            _ => return span.error(Reason::NumberTooLarge),
        };
        at += 1;
    }
    if span.start == span.end { span.error(Reason::NoNumber) } else { Ok(number) }
}

/// Parses a window, such as `"60s"`, `"1 minute"`, `"minute"` or `"250ms"`.
pub(crate) const fn window(text: &[u8]) -> Result<Window, ParseError> {
    window_in(text, Span::of(text))
}

const fn window_in(text: &[u8], span: Span) -> Result<Window, ParseError> {
    let span = span.trim(text);
    match Window::from_micros(tri!(micros_in(text, span))) {
        Ok(window) => Ok(window),
        Err(error) => span.error(Reason::OutOfRange(error)),
    }
}

/// Parses a number and a unit.
const fn micros_in(text: &[u8], span: Span) -> Result<u64, ParseError> {
    let mut digits = span.start;
    while digits < span.end && text[digits].is_ascii_digit() {
        digits += 1;
    }
    let count = if digits == span.start { 1 } else { tri!(number(text, span.to(digits))) };
    let name = span.from(digits).trim(text);
    let mut unit = 0;
    while unit < UNITS.len() {
        let (length, names) = UNITS[unit];
        let mut i = 0;
        while i < names.len() {
            if name.is(text, names[i].as_bytes()) {
                return match count.checked_mul(length) {
                    Some(micros) => Ok(micros),
                    None => span.error(Reason::NumberTooLarge),
                };
            }
            i += 1;
        }
        unit += 1;
    }
    span.error(Reason::NoUnit)
}

/// Parses a limit, such as `"100/60s"`, `"100 per minute"` or `"1000000/30d~1h"`.
pub(crate) const fn limit(text: &[u8]) -> Result<Limit, ParseError> {
    limit_in(text, Span::of(text))
}

const fn limit_in(text: &[u8], span: Span) -> Result<Limit, ParseError> {
    let span = span.trim(text);
    let (max, window) = match (span.find(text, b"/"), span.find(text, b" per ")) {
        (Some(at), _) => (span.to(at), span.from(at + 1)),
        (None, Some(at)) => (span.to(at), span.from(at + 5)),
        (None, None) => return span.error(Reason::NoLimit),
    };
    let max = tri!(number(text, max.trim(text)));
    let (window, resolution) = match window.find(text, b"~") {
        Some(at) => (window.to(at), Some(window.from(at + 1).trim(text))),
        None => (window, None),
    };
    let window = tri!(window_in(text, window));
    let limit = match Limit::with_window(max, window) {
        Ok(limit) => limit,
        Err(error) => return span.error(Reason::OutOfRange(error)),
    };
    let Some(resolution) = resolution else { return Ok(limit) };
    let micros = tri!(micros_in(text, resolution));
    match limit.with_resolution(Duration::from_micros(micros)) {
        Ok(limit) => Ok(limit),
        Err(error) => resolution.error(Reason::Resolution(error)),
    }
}

/// Parses limits separated by commas, such as `"3/1s, 100/1h"`.
pub(crate) const fn limits(text: &[u8]) -> Result<Limits, ParseError> {
    let (mut limits, mut count) = ([Limit::UNUSED; MAX_LIMITS], 0);
    let mut rest = Span::of(text);
    loop {
        let end = match rest.find(text, b",") {
            Some(comma) => comma,
            None => rest.end,
        };
        if count == MAX_LIMITS {
            return rest.error(Reason::TooManyLimits);
        }
        limits[count] = tri!(limit_in(text, rest.to(end)));
        count += 1;
        if end == rest.end {
            return Ok(Limits::new(limits, count));
        }
        rest = rest.from(end + 1);
    }
}
